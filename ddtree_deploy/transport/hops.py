"""From settings and ``~/.ssh/config`` to the chain of SSH servers to pass."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from ddtree_deploy.errors import InputError
from ddtree_deploy.transport.base import ConnectionSettings
from ddtree_deploy.transport.ssh_config import lookup

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
    identity = Path(settings.identity).expanduser() if settings.identity else None
    if identity is not None and not identity.is_file():
        raise InputError(
            "identity-missing",
            f"the identity file {identity} does not exist",
            where=settings.address,
            hint="connection.identity is the private key's path on this machine",
        )
    options = lookup(settings.address, settings.user)
    hops = [_hop(options, settings.address, settings.user, settings.port, identity)]
    specs = list(settings.jump) or _jumps(options, settings.address)
    while specs:
        alias, user, port = _parse(specs.pop())
        options = lookup(alias, user)
        hops.insert(0, _hop(options, alias, user, port, identity))
        if not specs:
            specs = _jumps(options, alias)  # the first hop may itself have a ProxyJump
        if len(hops) > MAX_HOPS:
            raise InputError(
                "too-many-jumps", f"more than {MAX_HOPS} jump hosts, or a loop of ProxyJump in ~/.ssh/config"
            )
    return hops


def _hop(
    options: dict[str, Any], alias: str, user: Optional[str], port: Optional[int], identity: Optional[Path]
) -> Hop:
    """The hop that is called ``alias``. ``options``: what ~/.ssh/config has for it; the other arguments go before."""
    address = options["hostname"]
    number = port or _port(options.get("port", str(DEFAULT_PORT)), alias)
    name = options.get("hostkeyalias") or (address if number == DEFAULT_PORT else f"[{address}]:{number}")
    identities = [identity] if identity else [Path(path).expanduser() for path in options.get("identityfile", [])]
    return Hop(
        address=address,
        port=number,
        user=user or options.get("user") or getpass.getuser(),
        name=name,
        identities=tuple(path for path in identities if path.is_file()),
        only_identities=identity is not None or options.get("identitiesonly", "no").lower() == "yes",
    )


def _jumps(options: dict[str, Any], alias: str) -> list[str]:
    """The ProxyJump specifications. As for OpenSSH, of ProxyJump and ProxyCommand the one that comes first counts; only
    ``ProxyJump none`` lets a ProxyCommand after it count."""
    said = {key: value for key, value in options.items() if key in ("proxyjump", "proxycommand")}
    jump = said.get("proxyjump", "none")
    if jump.lower() != "none" and next(iter(said)) == "proxyjump":
        return [spec.strip() for spec in jump.split(",")]
    if said.get("proxycommand", "none").lower() != "none":
        raise InputError(
            "proxy-command",
            f"~/.ssh/config reaches {alias} by a ProxyCommand, which is not supported",
            where="~/.ssh/config",
            hint="use ProxyJump there, or connection.jump in the inventory",
        )
    return []


def _port(text: str, alias: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise InputError(
            "ssh-config",
            f"~/.ssh/config has Port {text!r} for {alias}, which is no port",
            where="~/.ssh/config",
            hint="a port is a number from 1 to 65535",
        )
    return int(text)


def _parse(spec: str) -> tuple[str, Optional[str], Optional[int]]:
    match = _SPEC.match(spec.removeprefix("ssh://"))
    if match is None or not 0 < int(match["port"] or DEFAULT_PORT) < 65536:
        raise InputError("bad-jump", f"not a jump host: {spec!r}", hint="expected user@host:port")
    return match["six"] or match["host"], match["user"], int(match["port"]) if match["port"] else None
