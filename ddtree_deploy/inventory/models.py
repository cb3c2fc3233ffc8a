"""What an inventory file may say. Everything is optional in every layer; ``settings.py`` merges the layers."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Any, Literal, Optional, Union
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, model_validator

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory import arguments
from ddtree_deploy.inventory.secrets import is_reference, reference_problem
from ddtree_deploy.inventory.validation import StrictModel, found, number_hint, wrong
from ddtree_deploy.plan.inputs import AUTO, BUDGET_HINT, parse_budget
from ddtree_deploy.release.layout import Layout

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?")
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIALS?)$", re.I)
# http's user alone is a token, as a rule; other schemes name one (ssh://git@host)
_SECRET_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#\s:@]*:[^/?#\s@]+@|https?://[^/?#\s@]+@", re.I)


def _text(value: str) -> str:
    if not value.strip() or any(ord(character) < 32 for character in value):
        raise wrong("bad-value", f"expected one line of text, found {found(value)}")
    return value


def _absolute(value: str) -> str:
    if not _text(value).startswith(("/", "~/")):
        raise wrong("bad-path", f"expected an absolute path on the host, found {found(value)}", "begin it with / or ~/")
    if value.startswith("/") and value.strip("/") == "":
        raise wrong("bad-path", "expected a folder below /, found /")
    return value.rstrip("/")


def _root(value: str) -> str:
    """What a root may be is the agent's to say; ``~`` is the home of its user."""
    value = _absolute(value)
    try:
        Layout(value.lstrip("~"))
    except InputError as error:
        raise wrong("bad-path", error.message, error.hint or "") from None
    return value


def _reference(value: Any) -> str:
    problem = "expected a reference, env:NAME or file:PATH" if not isinstance(value, str) else reference_problem(value)
    if problem:
        hint = "a secret is never written into an inventory: api_key: env:DDTREE_API_KEY, or api_key: file:api-key"
        raise wrong("secret-in-plain-text", problem, hint)
    return str(value)


def _gpus(value: Any) -> Any:
    if value == "all":
        return value
    hint = "write all, or a list of indices such as [0, 1]"
    if not isinstance(value, list) or not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        what = found(value)
        if isinstance(value, list):
            what = "a list with " + found(next(item for item in value if type(item) is not int))
        raise wrong("wrong-type", f"expected all or a list of GPU indices, found {what}", hint)
    if not value:
        raise wrong(
            "bad-value", "expected at least one GPU, found an empty list", f"{hint}; leave it out on a CPU host"
        )
    if min(value) < 0:
        raise wrong("bad-value", f"expected GPU indices from 0 up, found {min(value)}", hint)
    if len(set(value)) < len(value):
        twice = next(item for item in value if value.count(item) > 1)
        raise wrong("bad-value", f"GPU {twice} is listed twice", "one service runs on each GPU")
    return value


def _budget(value: Any) -> Any:
    if type(value) is not int and value != AUTO:  # here a number in quotes is a text, as everywhere in the file
        what = (number_hint(value) if isinstance(value, str) else None) or BUDGET_HINT
        raise wrong("budget-invalid", f"expected a whole number or auto, found {found(value)}", what)
    try:
        return parse_budget(value)
    except InputError as error:
        raise wrong(error.id, error.message, error.hint or "") from None


def _ports(value: Any) -> Any:
    """``(first, last)`` of ``30000-30099`` or of one number."""
    if isinstance(value, str) and (match := re.fullmatch(r"([1-9]\d{0,5})\s*-\s*([1-9]\d{0,5})", value.strip())):
        first, last = int(match[1]), int(match[2])
    elif type(value) is int:
        first = last = value
    else:
        hint = number_hint(value) if isinstance(value, str) else None
        raise wrong("bad-ports", f"expected a range such as 30000-30099, found {found(value)}", hint or "")
    if not 1 <= first <= 65535 or not 1 <= last <= 65535:
        raise wrong("bad-ports", f"expected ports from 1 to 65535, found {value}")
    if first > last:
        raise wrong("bad-ports", f"the range ends before it begins: {value}", f"write {last}-{first}")
    return (first, last)


def _listen(value: str) -> str:
    try:
        ipaddress.ip_address(value)
    except ValueError:
        if not _HOST_NAME.fullmatch(value) or re.fullmatch(r"[\d.]+", value):
            hint = "write the address alone; the port is chosen from `ports`" if ":" in value else ""
            hint = "every address is 0.0.0.0, or '::'" if value == "*" else hint
            raise wrong("bad-address", f"expected an IP address or host name, found {found(value)}", hint) from None
    return value


def _address(value: str) -> str:
    try:
        ipaddress.ip_address(value.strip("[]").split("%")[0])
    except ValueError:
        if not _HOST_NAME.fullmatch(value) or re.fullmatch(r"[\d.]+", value):
            hint = "user and port have keys of their own" if "@" in value or ":" in value else ""
            raise wrong("bad-address", f"expected a host name or IP address, found {found(value)}", hint) from None
    return value.strip("[]")


def _user(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9_.][A-Za-z0-9_.@\\-]*\$?", value):
        raise wrong("bad-value", f"expected a user name, found {found(value)}")
    return value


def _jump(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _hop(value: str) -> str:
    """``[user@]host[:port]``, IPv6 in brackets."""
    match = re.fullmatch(r"(?:([^@]+)@)?(\[[0-9A-Fa-f:.%\w]+\]|[^:@\[\]]+)(?::(\d{1,5}))?", value)
    if match is None or not (1 <= int(match[3] or 22) <= 65535):
        raise wrong("bad-jump", f"expected user@host:port, found {found(value)}", "as in admin@gate.example.com:22")
    if match[1]:
        _user(match[1])
    _address(match[2])
    return value


def _url(value: str) -> str:
    """An index: ``default``, a URL without credentials, or a reference to one."""
    if value == "default" or is_reference(value):
        if value != "default" and reference_problem(value):
            raise wrong("bad-index", str(reference_problem(value)))
        return value
    try:
        parts = urlsplit(value)
        credentials = parts.username or parts.password
    except ValueError:
        raise wrong("bad-index", f"expected a URL, found {found(value)}") from None
    if credentials:
        raise wrong(
            "secret-in-plain-text",
            "expected a URL without user and password, found one with them (not shown)",
            "put the whole URL into a variable or file and write index: env:NAME or file:PATH",
        )
    if parts.scheme not in ("http", "https", "file") or not (parts.netloc or parts.path.strip("/")):
        hint = "for a folder of wheels use wheelhouse:" if value.startswith(("/", ".", "~")) else "begin with https://"
        raise wrong("bad-index", f"expected the URL of a package index, found {found(value)}", hint)
    return value


def _environment(value: Any) -> Any:
    """name -> text, a reference (``env:``/``file:``), or None, which takes it back."""
    if not isinstance(value, dict):
        raise wrong(
            "wrong-type", f"expected a mapping of variable to text, found {found(value)}", "as in HF_HOME: /data"
        )
    return {name: _variable(name, item) for name, item in value.items()}


def _variable(name: str, value: Any) -> Optional[EnvironmentValue]:
    at = (name,)
    if not VARIABLE.fullmatch(name):
        raise wrong("bad-environment", "not the name of an environment variable", "letters, digits and _", at)
    if value is None:
        return None
    literal = isinstance(value, dict) and list(value) == ["value"]
    text = value["value"] if literal else value
    if isinstance(text, bool):
        text = "true" if text else "false"
    if not isinstance(text, str):
        raise wrong("wrong-type", f"expected text, found {found(text)}", "or {value: TEXT} for text as it is", at)
    if "\0" in text or "\n" in text:
        raise wrong("bad-environment", "expected one line of text", at=at)
    if not literal and is_reference(text):
        problem = reference_problem(text)
        if problem:
            raise wrong("bad-environment", problem, "write {value: TEXT} for text that is no reference", at)
        return EnvironmentValue(reference=text)
    if _SECRET_URL.search(text):
        raise wrong(
            "secret-in-plain-text",
            "expected a URL without user and password, found one with them (not shown)",
            f"put the whole text into a variable or file and write {name}: env:NAME or file:PATH",
            at,
        )
    if not literal and text and _SECRET_NAME.search(name) and not re.fullmatch(r"\d+|true|false", text):
        raise wrong(
            "secret-in-plain-text",
            "expected a reference, env:NAME or file:PATH, for what looks like a secret (not shown)",
            f"write {name}: env:{name}; if it is no secret, write {name}: {{value: TEXT}}",
            at,
        )
    return EnvironmentValue(text=text)


Text = Annotated[str, AfterValidator(_text)]
HostPath = Annotated[str, AfterValidator(_absolute)]
Reference = Annotated[str, PlainValidator(_reference)]
IndexUrl = Annotated[str, AfterValidator(_url)]
Port = Annotated[int, Field(ge=1, le=65535)]


class EnvironmentValue(StrictModel):
    """Text as it is, or a reference to a secret."""

    text: Optional[str] = None
    reference: Optional[str] = None


class ConnectionOptions(StrictModel):
    """How the host is reached. ``jump`` hops are ``user@host:port``, in the order in which they are passed."""

    kind: Optional[Literal["ssh", "local"]] = None
    address: Optional[Annotated[str, AfterValidator(_address)]] = None
    port: Optional[Port] = None
    user: Optional[Annotated[str, AfterValidator(_user)]] = None
    identity: Optional[Text] = None
    jump: Optional[Annotated[list[Annotated[str, AfterValidator(_hop)]], BeforeValidator(_jump)]] = None
    connect_timeout: Optional[Annotated[int, Field(ge=1, le=600)]] = None
    python: Optional[HostPath] = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value not in ("ssh", "local"):
                hint = "a host is named with connection: {address: HOST}"
                raise wrong("bad-connection", f"expected local, ssh or a mapping, found {found(value)}", hint)
            return {"kind": value}
        return value

    @model_validator(mode="after")
    def _local_is_here(self) -> ConnectionOptions:
        if self.kind == "local":
            extra = sorted(self.model_fields_set - {"kind", "python", "connect_timeout"})
            if extra:
                raise wrong(
                    "bad-connection", f"a local connection has no {', '.join(extra)}", "remove it, or kind: ssh"
                )
        return self


class SourceOptions(StrictModel):
    """Where an overlay's packages come from: an index, a wheelhouse folder, or a donor's venv; beside a donor, the
    index or wheelhouse is for what the donor lacks."""

    index: Optional[IndexUrl] = None
    extra_index: Optional[list[IndexUrl]] = None
    wheelhouse: Optional[Text] = None
    donor: Optional[Text] = None
    take_edited: Optional[bool] = None
    compress: Optional[bool] = None

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if isinstance(value, str):
            if value != "index":
                hint = "write source: {index: URL}, {wheelhouse: FOLDER} or {donor: HOST:PATH}"
                raise wrong("bad-source", f"expected index or a mapping, found {found(value)}", hint)
            return {"index": "default"}
        return value

    @model_validator(mode="after")
    def _one(self) -> SourceOptions:
        kinds = ["wheelhouse"] if self.wheelhouse else []
        kinds += ["index"] if self.index or self.extra_index else []
        if len(kinds) + bool(self.donor) == 0 or len(kinds) > 1:
            what = "none" if not kinds else " and ".join(sorted(kinds))
            raise wrong("bad-source", f"expected one of index, wheelhouse and donor, found {what}")
        for key in ("take_edited", "compress"):
            if getattr(self, key) is not None and not self.donor:
                raise wrong("bad-source", f"{key} is about a donor, and there is none", "remove it")
        return self


class HostOptions(StrictModel):
    """Settings of a host, a group or the defaults. None means "not said here"; written as null, it takes back."""

    connection: Optional[ConnectionOptions] = None
    root: Optional[Annotated[str, AfterValidator(_root)]] = None
    base: Optional[HostPath] = None
    profile: Optional[Text] = None
    source: Optional[SourceOptions] = None
    model: Optional[Text] = None
    draft: Optional[Text] = None
    gpus: Optional[Annotated[Union[str, list[int]], PlainValidator(_gpus)]] = None
    budget: Optional[Annotated[Union[int, str], PlainValidator(_budget)]] = None
    engine_arguments: Optional[Annotated[arguments.Flags, PlainValidator(arguments.parse)]] = None
    environment: Optional[Annotated[dict[str, Optional[EnvironmentValue]], PlainValidator(_environment)]] = None
    listen: Optional[Annotated[str, AfterValidator(_listen)]] = None
    ports: Optional[Annotated[tuple[int, int], PlainValidator(_ports)]] = None
    api_key: Optional[Reference] = None
    launch_timeout: Optional[Annotated[int, Field(ge=1, le=86400)]] = None


class HostEntry(HostOptions):
    """A host: its settings, and its groups in the order in which they apply."""

    groups: list[str] = Field(default_factory=list)


def _empty(value: Any) -> Any:
    return {} if value is None else value


class InventoryFile(StrictModel):
    """The whole file."""

    defaults: Annotated[HostOptions, BeforeValidator(_empty)] = HostOptions()
    groups: Annotated[dict[str, Annotated[HostOptions, BeforeValidator(_empty)]], BeforeValidator(_empty)] = Field(
        default_factory=dict
    )
    hosts: dict[str, Annotated[HostEntry, BeforeValidator(_empty)]]


MISPLACED = {
    **dict.fromkeys(("address", "port", "user", "identity", "jump", "connect_timeout", "python"), "connection"),
    "groups": "hosts",
    **dict.fromkeys(("index", "extra_index", "wheelhouse", "donor", "take_edited", "compress"), "source"),
}
