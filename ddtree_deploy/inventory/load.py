"""Reading an inventory, and choosing hosts of it."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Iterable, Optional

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory import arguments
from ddtree_deploy.inventory.models import MISPLACED, NAME, HostEntry, InventoryFile
from ddtree_deploy.inventory.settings import (
    HostSettings,
    Layer,
    Merged,
    Origin,
    build_settings,
    split_donor,
    split_login,
)
from ddtree_deploy.inventory.validation import Finding, near, report, unknown_name, validate
from ddtree_deploy.inventory.yaml_lines import Document, KeyPath, read_yaml
from ddtree_deploy.profiles.model import Source
from ddtree_deploy.resources import data_dir

PORTS_PER_SERVICE = 2
_VERBATIM = frozenset({"environment", "engine_arguments"})


@dataclass(frozen=True)
class Described:
    """One setting as ``inventory show`` prints it. ``value`` is plain data; a secret shows as its reference."""

    key: str
    value: Any
    layer: str  # defaults | group NAME | host | built in
    where: Optional[str]
    secret: bool = False


@dataclass(frozen=True)
class Inventory:
    """A checked inventory: every host's settings merge without error."""

    path: Path
    file: InventoryFile
    document: Document

    @property
    def hosts(self) -> list[str]:
        """Names of all hosts, in the file's order."""
        return list(self.file.hosts)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of the hosts of each group."""
        members: dict[str, list[str]] = {name: [] for name in self.file.groups}
        for host, entry in self.file.hosts.items():
            for group in entry.groups:
                members[group].append(host)
        return members

    def host(self, name: str) -> HostSettings:
        """The merged settings of one host. Raises InputError ``unknown-host``."""
        if name not in self.file.hosts:
            raise unknown_name("host", name, self.hosts, str(self.path))
        return _merge(name, self.file, self.document)

    def select(self, patterns: Iterable[str]) -> list[HostSettings]:
        """Hosts named by host, group, ``all`` or a pattern such as ``gpu-*``; each once, in the order asked for.

        Raises InputError ``unknown-host`` for a name, ``no-host-matches`` for a pattern without a match.
        """
        groups = self.groups
        chosen: dict[str, None] = {}
        for pattern in patterns:
            if pattern in self.file.hosts:
                names = [pattern]
            elif pattern in groups:
                names = groups[pattern]
            elif pattern == "all":
                names = self.hosts
            elif any(character in pattern for character in "*?["):
                names = [host for host in self.hosts if fnmatch.fnmatchcase(host, pattern)]
                matching = [group for group in groups if fnmatch.fnmatchcase(group, pattern)]
                names += [host for group in matching for host in groups[group]]
            else:
                raise unknown_name("host", pattern, [*self.hosts, *groups], str(self.path))
            if not names:
                what = (
                    f"group {pattern!r} has no hosts" if pattern in groups else f"no host or group matches {pattern!r}"
                )
                hint = f"known: {', '.join(self.hosts[:20])}"
                raise InputError("no-host-matches", what, where=str(self.path), hint=hint)
            chosen.update(dict.fromkeys(names))
        return [self.host(name) for name in chosen]

    def plan_source(self, settings: HostSettings) -> Source:
        """Where the host's packages come from, with the path of a donor host's venv (default: its base venv)."""
        source = settings.plan_source()
        if source.kind == "donor" and source.host is not None and source.location is None:
            return replace(source, location=self.host(source.host).require("base"))
        return source

    def describe(self, name: str) -> list[Described]:
        """Every setting of a host with its value and origin."""
        return describe(self.host(name))


def default_inventory() -> Path:
    """The inventory that is shipped: ``localhost``."""
    return data_dir("inventory") / "default.yaml"


def load_inventory(path: Path | str | None = None) -> Inventory:
    """Read and check an inventory; None reads the shipped one. Raises InputError (exit 3) with all that is wrong."""
    path = Path(path) if path is not None else default_inventory()
    document = read_yaml(path, "inventory", _VERBATIM)
    file = validate(InventoryFile, document, MISPLACED)
    findings = [*_names(file), *_group_findings(file)]
    if not findings:
        for name in file.hosts:
            findings += _host_findings(_merge(name, file, document), file)
    if findings:
        raise report(findings, document)
    return Inventory(path=path, file=file, document=document)


def describe(settings: HostSettings) -> list[Described]:
    """As :meth:`Inventory.describe`, for settings that are at hand."""
    rows: list[Described] = []

    def row(key: str, value: Any, secret: bool = False) -> None:
        origin = settings.origin(key)
        rows.append(Described(key, value, origin.layer, origin.where, secret))

    for key in ("kind", "address", "port", "user", "identity", "jump", "connect_timeout", "python"):
        if settings.connection.kind == "ssh" or key in ("kind", "python"):
            row(f"connection.{key}", getattr(settings.connection, key))
    for key in ("root", "base", "profile", "model", "draft"):
        row(key, getattr(settings, key))
    for key, value in settings.source.model_dump(exclude_none=True).items():
        row(f"source.{key}", value)
    row("gpus", "all" if settings.gpus is None else list(settings.gpus))
    row("budget", settings.budget)
    for flag, occurrences in arguments.parse(list(settings.engine_arguments)).items():
        row(f"engine_arguments.{flag}", [" ".join(values) for values in occurrences or []])
    for key, value in settings.environment.items():
        row(f"environment.{key}", value)
    for key, value in settings.secret_environment.items():
        row(f"environment.{key}", value, secret=True)
    row("listen", settings.listen)
    row("ports", "{}-{}".format(*settings.ports))
    row("api_key", settings.api_key, secret=settings.api_key is not None)
    row("launch_timeout", settings.launch_timeout)
    return rows


def _merge(name: str, file: InventoryFile, document: Document) -> HostSettings:
    entry = file.hosts[name]
    layers = [Layer("defaults", ("defaults",), file.defaults)]
    layers += [Layer(f"group {group}", ("groups", group), file.groups[group]) for group in entry.groups]
    layers += [Layer("host", ("hosts", name), entry)]
    merged = Merged()
    merged.origins[""] = Origin("host", document.where(("hosts", name), key=True))
    for layer in layers:
        merged.add(layer.options, lambda *keys, layer=layer: Origin(layer.name, document.where((*layer.path, *keys))))
    return build_settings(name, tuple(entry.groups), merged, document.path.absolute().parent)


def _names(file: InventoryFile) -> list[Finding]:
    findings: list[Finding] = []
    for kind, names in (("groups", file.groups), ("hosts", file.hosts)):
        for name in names:
            path: KeyPath = (kind, name)
            if not NAME.fullmatch(name):
                hint = "letters, digits, and - _ . after the first; an address goes under connection"
                findings.append(Finding("bad-name", f"{name!r} is not a name for a {kind[:-1]}", path, hint, True))
            elif name == "all":
                findings.append(Finding("bad-name", "'all' stands for every host", path, "use another name", True))
            elif kind == "hosts" and name in file.groups:
                findings.append(Finding("name-clash", "there is a group of that name too", path, "rename one", True))
    if not file.hosts:
        findings.append(Finding("no-hosts", "expected at least one host, found none", ("hosts",)))
    return findings


def _group_findings(file: InventoryFile) -> list[Finding]:
    findings: list[Finding] = []
    for host, entry in file.hosts.items():
        for index, group in enumerate(entry.groups):
            path: KeyPath = ("hosts", host, "groups", index)
            if group not in file.groups:
                close = near(group, file.groups)
                hint = f"did you mean {close!r}?" if close else f"known: {', '.join(file.groups) or 'none'}"
                findings.append(Finding("unknown-group", f"unknown group {group!r}", path, hint))
            elif group in entry.groups[:index]:
                findings.append(Finding("bad-value", f"group {group!r} is listed twice", path))
    return findings


def _host_findings(settings: HostSettings, file: InventoryFile) -> list[Finding]:
    """What only the merged settings show. Each is told of the host, at the place of the key that decides it."""
    findings: list[Finding] = []
    host = ("hosts", settings.name)

    def add(id: str, message: str, hint: str | None, *keys: str) -> None:
        places = (settings.origin(key).where for key in keys)
        findings.append(Finding(id, message, host, hint, True, next(filter(None, places), None)))

    if not settings.loopback and not settings.api_key:
        message = f"listens on {settings.listen} without an API key: anyone who reaches it could use it"
        add("api-key-required", message, "set api_key: env:NAME or file:PATH, or listen: 127.0.0.1", "listen")
    ports, gpus = settings.ports[1] - settings.ports[0] + 1, len(settings.gpus or (0,))
    if ports < PORTS_PER_SERVICE * gpus:
        need = "1 service needs" if gpus == 1 else f"{gpus} services need"
        message = f"{need} {PORTS_PER_SERVICE * gpus} ports, the range has {ports}"
        add("bad-ports", message, "a service has one port for requests and one for its own processes", "ports", "gpus")
    donor = settings.source.donor
    problem = _donor_problem(donor, settings, file.hosts) if donor else None
    if problem is not None:
        add(*problem, "source.donor")
    return findings


def _donor_problem(
    donor: str, settings: HostSettings, hosts: dict[str, HostEntry]
) -> tuple[str, str, str | None] | None:
    """Id, message and hint."""
    host, path = split_donor(donor)
    login = split_login(host) is not None if host else False
    if login and path is None:
        return "bad-path", f"donor {donor!r}: which venv there?", f"donor: {donor}:/path/of/venv"
    if host is not None and host not in hosts and not login:
        close = near(host, hosts)
        hint = f"did you mean {close!r}?" if close else "write HOST, HOST:/path, USER@ADDRESS:/path or /path"
        return "unknown-host", f"donor {donor!r} names no host of this inventory", hint
    if path is not None and not path.startswith(("/", "~/")):
        return "bad-path", f"donor {donor!r}: expected an absolute path after the host", "begin it with / or ~/"
    if host == settings.name and path is None:
        return "bad-source", "the donor is the host itself", "name another venv: donor: /path"
    return None
