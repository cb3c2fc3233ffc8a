"""A host's settings: defaults < groups in their order < host, merged key by key, each value with its origin."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory import arguments
from ddtree_deploy.inventory.models import ConnectionOptions, HostOptions, SourceOptions
from ddtree_deploy.inventory.secrets import Secret, is_reference, resolve
from ddtree_deploy.plan.inputs import PlanSettings
from ddtree_deploy.profiles.model import Source
from ddtree_deploy.serve.spec import is_loopback

DEFAULT_ROOT = "/opt/ddtree"
DEFAULT_PORTS = (30000, 30099)
DEFAULT_SOURCE = SourceOptions(index="default")


@dataclass(frozen=True)
class Layer:
    """One of what is merged. ``name``: ``defaults``, ``group NAME`` or ``host``; ``path``: its place in the file."""

    name: str
    path: tuple[str, ...]
    options: HostOptions


@dataclass(frozen=True)
class Origin:
    """Which layer set a value, and where (``file:line:column``); ``built in`` where no file did."""

    layer: str
    where: Optional[str] = None


BUILT_IN = Origin("built in")


@dataclass(frozen=True)
class Connection:
    """How a host is reached; the fields of the transport's settings. What is None, ``~/.ssh/config`` may say.

    ``connect_timeout`` in seconds, for the whole way.
    """

    kind: str  # ssh | local
    address: str
    port: Optional[int] = None
    user: Optional[str] = None
    identity: Optional[str] = None
    jump: list[str] = field(default_factory=list)  # user@host:port, in the order in which they are passed
    connect_timeout: int = 10
    python: Optional[str] = None


@dataclass(frozen=True)
class HostSettings:
    """Merged settings of one host. ``None``: not set. Secrets are references until one of the ``*secret*`` calls."""

    name: str
    groups: tuple[str, ...]
    connection: Connection
    folder: Path  # of the inventory file; relative paths and references are resolved against it
    root: str = DEFAULT_ROOT
    base: Optional[str] = None
    profile: Optional[str] = None
    source: SourceOptions = DEFAULT_SOURCE
    model: Optional[str] = None
    draft: Optional[str] = None
    gpus: Optional[tuple[int, ...]] = None  # None: all
    budget: int | str | None = None  # 1..511 or "auto"
    engine_arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    secret_environment: dict[str, str] = field(default_factory=dict)  # name -> reference
    listen: str = "127.0.0.1"
    ports: tuple[int, int] = DEFAULT_PORTS  # first and last
    api_key: Optional[str] = None  # reference
    launch_timeout: int = 900  # seconds until a service must have answered
    origins: dict[str, Origin] = field(default_factory=dict)  # dotted key -> origin

    @property
    def loopback(self) -> bool:
        """Whether services listen on this host alone."""
        return is_loopback(self.listen)

    @property
    def where(self) -> Optional[str]:
        """The host's place in the inventory."""
        return self.origin("").where

    def origin(self, key: str) -> Origin:
        """Where ``key`` (``connection.user``, ``environment.HF_HOME``) was set."""
        return self.origins.get(key, BUILT_IN)

    def require(self, key: str) -> str:
        """The value of ``key``, one of base, profile, model, draft. Raises InputError ``not-set``."""
        value = getattr(self, key)
        if value is None:
            raise InputError(
                "not-set",
                f"host {self.name} has no {key}",
                where=self.where,
                hint=f"set {key}: for this host, a group of it, or under defaults",
            )
        return str(value)

    def to_plan_settings(self) -> PlanSettings:
        """What provisioning reads; without secrets. Raises InputError ``not-set`` without a base venv."""
        return PlanSettings(
            host=self.name,
            root=self.root,
            base=self.require("base"),
            model=self.model,
            draft=self.draft,
            gpus=list(self.gpus) if self.gpus is not None else None,
            budget=str(self.budget) if self.budget is not None else None,
            environment=dict(self.environment),
        )

    def plan_source(self) -> Source:
        """The source for the planner. An index given by reference stays one (see :meth:`index_urls`); a donor host
        without a path has None for ``location``: ``Inventory.plan_source`` fills in its base venv."""
        options = self.source
        if options.donor:
            host, path = split_donor(options.donor)
            return Source(
                kind="donor",
                location=path,
                host=host,
                rest=self._rest(options),
                take_edited=bool(options.take_edited),
                compress=bool(options.compress),
            )
        return self._rest(options) or Source(kind="index")

    def _rest(self, options: SourceOptions) -> Optional[Source]:
        """The index or the wheelhouse of ``options``: the source itself, or what a donor lacks comes from there."""
        if options.wheelhouse:
            return Source(kind="wheelhouse", location=str(self.wheelhouse_path()))
        if not (options.index or options.extra_index):
            return None
        location = None if options.index in (None, "default") else options.index
        return Source(kind="index", location=location, extra=list(options.extra_index or []))

    def wheelhouse_path(self) -> Optional[Path]:
        """The wheelhouse folder on this machine."""
        if not self.source.wheelhouse:
            return None
        return self.folder / Path(self.source.wheelhouse).expanduser()

    def index_urls(self, source: Optional[Source] = None) -> list[Secret]:
        """URLs of the source's indexes, references read: empty for uv's own alone; otherwise first the main index,
        or ``default`` for uv's own, and then the extra ones."""
        source = source or self.plan_source()
        if source.kind != "index" or (source.location is None and not source.extra):
            return []
        urls = [source.location or "default", *source.extra]
        return [self._read("source", url) if is_reference(url) else Secret(url, url) for url in urls]

    def secret_api_key(self) -> Optional[Secret]:
        """The API key, read now."""
        return self._read("api_key", self.api_key) if self.api_key else None

    def secret_values(self) -> dict[str, Secret]:
        """The environment's secrets, read now."""
        return {name: self._read(f"environment.{name}", ref) for name, ref in self.secret_environment.items()}

    def _read(self, key: str, reference: str) -> Secret:
        return resolve(reference, self.folder, self.origin(key).where)


def split_donor(text: str) -> tuple[Optional[str], Optional[str]]:
    """``(host, path)`` of ``/path`` (on the target itself), ``HOST`` (its base venv), ``HOST:/path`` or
    ``USER@ADDRESS[:PORT]:/path``; of ``HOST:``, which is none of these, the path is empty."""
    if text.startswith(("/", "~")):
        return None, text
    if "@" in text.partition("/")[0]:
        match = re.match(r"(?P<login>[^@]+@(?:\[[^\]]*\]|[^:\[\]]*)(?::\d+)?)(?::(?P<path>.*))?\Z", text)
        if match is not None:
            return match["login"], match["path"]
    host, colon, path = text.partition(":")
    return host, path if colon else None


def split_login(text: str) -> Optional[tuple[str, str, Optional[int]]]:
    """``(user, address, port)`` of ``USER@ADDRESS[:PORT]``; None for anything else, such as the name of a host."""
    match = re.fullmatch(r"([^@:/\[\]]+)@(?:\[([0-9A-Fa-f:.%\w]+)\]|([^@:/\[\]]+))(?::(\d{1,5}))?", text)
    if match is None or not 0 < int(match[4] or 22) < 65536:
        return None
    return match[1], match[2] or match[3], int(match[4]) if match[4] else None


@dataclass
class Merged:
    """Values of the layers so far, and where each came from."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)

    def add(self, options: HostOptions, origin_of: Any) -> None:
        """Put one layer over what is there. ``origin_of(*keys)`` is the origin of a value in this layer."""
        for key in options.model_fields_set - {"groups"}:
            value = getattr(options, key)
            if value is None:
                self._forget(key)
            elif key == "connection":
                self._add_connection(value, origin_of)
            elif key == "environment":
                self._add_environment(value, origin_of)
            elif key == "engine_arguments":
                self._add_arguments(value, origin_of)
            else:
                self._forget(key)
                self.values[key] = value
                self.origins[key] = origin_of(key)
                if isinstance(value, SourceOptions):
                    self.origins.update({f"{key}.{name}": origin_of(key, name) for name in value.model_fields_set})

    def _forget(self, key: str) -> None:
        self.values.pop(key, None)
        for name in [name for name in self.origins if name == key or name.startswith(f"{key}.")]:
            del self.origins[name]

    def _add_connection(self, value: ConnectionOptions, origin_of: Any) -> None:
        lower = self.values.get("connection", {})
        kind = value.kind or lower.get("kind", "ssh")
        if kind != lower.get("kind", "ssh"):  # what says how to reach a host over ssh means nothing locally
            self._forget("connection")
            lower = {}
        said = {name: getattr(value, name) for name in value.model_fields_set}
        merged = {name: item for name, item in {**lower, **said, "kind": kind}.items() if item is not None}
        self.values["connection"] = merged
        for name, item in said.items():
            self.origins.pop(f"connection.{name}", None)
            if item is not None:
                self.origins[f"connection.{name}"] = origin_of("connection", name)

    def _add_environment(self, value: dict[str, Any], origin_of: Any) -> None:
        environment = self.values.setdefault("environment", {})
        for name, item in value.items():
            environment.pop(name, None)
            self.origins.pop(f"environment.{name}", None)
            if item is not None:
                environment[name] = item
                self.origins[f"environment.{name}"] = origin_of("environment", name)

    def _add_arguments(self, value: arguments.Flags, origin_of: Any) -> None:
        self.values["engine_arguments"] = arguments.merge(self.values.get("engine_arguments", {}), value)
        for flag, occurrences in value.items():
            self.origins.pop(f"engine_arguments.{flag}", None)
            if occurrences is not None:
                self.origins[f"engine_arguments.{flag}"] = origin_of("engine_arguments")


def build_settings(name: str, groups: tuple[str, ...], merged: Merged, folder: Path) -> HostSettings:
    """The settings of merged values, with what is built in for the rest."""
    values = dict(merged.values)
    connection = {"kind": "ssh", "address": name, **values.pop("connection", {})}
    if connection["kind"] == "local":
        connection["address"] = name
    if "identity" in connection:
        connection["identity"] = str(folder / Path(connection["identity"]).expanduser())
    environment = values.pop("environment", {})
    flags = values.pop("engine_arguments", {})
    gpus = values.pop("gpus", None)
    return HostSettings(
        name=name,
        groups=groups,
        connection=Connection(**connection),
        folder=folder,
        gpus=None if gpus in (None, "all") else tuple(gpus),
        engine_arguments=tuple(arguments.to_list(flags)),
        environment={key: item.text for key, item in environment.items() if item.text is not None},
        secret_environment={key: item.reference for key, item in environment.items() if item.reference is not None},
        origins=merged.origins,
        **values,
    )
