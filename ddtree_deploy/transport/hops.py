"""From settings and ``~/.ssh/config`` to the chain of SSH servers to pass."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import paramiko

from ddtree_deploy.errors import InputError
from ddtree_deploy.transport.base import ConnectionSettings

DEFAULT_PORT = 22
MAX_HOPS = 8
_SPEC = re.compile(r"(?:(?P<user>[^@]+)@)?(?:\[(?P<six>[^\]]+)\]|(?P<host>[^:@\[\]]+))(?::(?P<port>\d{1,5}))?\Z")


@dataclass(frozen=True)
class Hop:
    """One SSH server. ``name`` is what known_hosts calls it; ``identities`` are files to try before the defaults."""

    address: str
    port: int
    user: str
    name: str
    identities: tuple[Path, ...] = ()
    only_identities: bool = False

    @property
    def label(self) -> str:
        host = f"[{self.address}]" if ":" in self.address else self.address
        return f"{self.user}@{host}:{self.port}"


def chain(settings: ConnectionSettings) -> list[Hop]:
    """The hops to ``settings.address``, itself last. Raises InputError for mistakes in ~/.ssh/config or ``jump``."""
    config = _read_config()
    identity = Path(settings.identity).expanduser() if settings.identity else None
    if identity is not None and not identity.is_file():
        raise InputError(
            "identity-missing",
            f"the identity file {identity} does not exist",
            where=settings.address,
            hint="connection.identity is the private key's path on this machine",
        )
    # Port 22 is what an inventory gives when it says nothing, so that ~/.ssh/config may still say something else.
    port = None if settings.port == DEFAULT_PORT else settings.port
    target, jumps = _hop(config, settings.address, settings.user, port, identity)
    specs = list(settings.jump) or jumps
    hops = [target]
    while specs:
        hop, further = _hop(config, *_parse(specs.pop()), identity)
        hops.insert(0, hop)
        if not specs:
            specs = further  # the first hop may itself have a ProxyJump
        if len(hops) > MAX_HOPS:
            raise InputError(
                "too-many-jumps", f"more than {MAX_HOPS} jump hosts, or a loop of ProxyJump in ~/.ssh/config"
            )
    return hops


def _hop(
    config: paramiko.SSHConfig, alias: str, user: Optional[str], port: Optional[int], identity: Optional[Path]
) -> tuple[Hop, list[str]]:
    """The hop and the ProxyJump specifications that ~/.ssh/config has for it."""
    options: dict[str, Any] = dict(config.lookup(alias))
    jump = options.get("proxyjump", "none")
    if jump == "none" and options.get("proxycommand", "none") != "none":
        raise InputError(
            "proxy-command",
            f"~/.ssh/config reaches {alias} by a ProxyCommand, which is not supported",
            where="~/.ssh/config",
            hint="use ProxyJump there, or connection.jump in the inventory",
        )
    address = options.get("hostname", alias)
    number = port or int(options.get("port", DEFAULT_PORT))
    name = options.get("hostkeyalias") or (address if number == DEFAULT_PORT else f"[{address}]:{number}")
    identities = [identity] if identity else [Path(path).expanduser() for path in options.get("identityfile", [])]
    hop = Hop(
        address=address,
        port=number,
        user=user or options.get("user") or getpass.getuser(),
        name=name,
        identities=tuple(path for path in identities if path.is_file()),
        only_identities=identity is not None or options.get("identitiesonly", "no").lower() == "yes",
    )
    return hop, [] if jump == "none" else [spec.strip() for spec in jump.split(",")]


def _parse(spec: str) -> tuple[str, Optional[str], Optional[int]]:
    match = _SPEC.match(spec.removeprefix("ssh://"))
    if match is None or not 0 < int(match["port"] or DEFAULT_PORT) < 65536:
        raise InputError("bad-jump", f"not a jump host: {spec!r}", hint="expected user@host:port")
    return match["six"] or match["host"], match["user"], int(match["port"]) if match["port"] else None


def _read_config() -> paramiko.SSHConfig:
    path = Path.home() / ".ssh" / "config"
    try:
        return paramiko.SSHConfig.from_path(str(path))
    except FileNotFoundError:
        return paramiko.SSHConfig()
    except (OSError, UnicodeDecodeError, paramiko.SSHException) as error:
        raise InputError("ssh-config", f"cannot read {path}: {error}", where=str(path)) from error
