"""Free TCP ports, found by binding them (public reports of port races: sglang#7418, #18009)."""

from __future__ import annotations

import contextlib
import socket
from typing import Iterable, List, Sequence, Set

from ddtree_deploy.errors import InputError

DEFAULT_RANGE = (30000, 30099)


def is_free(port: int) -> bool:
    """True if ``port`` can be bound on every address of this host, IPv4 and IPv6.

    SO_REUSEADDR is set as servers do: connections in TIME_WAIT do not keep a port busy, a listener does.
    """
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:  # this family is not supported here
            continue
        with contextlib.closing(probe):
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if family == socket.AF_INET6 and error.errno == 99:  # EADDRNOTAVAIL: IPv6 is switched off
                    continue
                return False
    return True


def allocate(
    ports: range, taken: Iterable[int], count: int, prefer: Sequence[int] = (), freed: Iterable[int] = ()
) -> List[int]:
    """``count`` ports that are free now and not in ``taken`` (ports of our other services, bound or not yet).

    ``prefer`` are tried first, so that a service keeps its ports; ``freed`` are held by what will be stopped before.
    Raises InputError ``ports-exhausted``.
    """
    free = set(freed)
    refused: Set[int] = set(taken)
    found: List[int] = []
    for port in [*(port for port in prefer if port in ports), *ports]:
        if len(found) == count:
            break
        if port not in refused and port not in found and (port in free or is_free(port)):
            found.append(port)
    if len(found) < count:
        raise InputError(
            "ports-exhausted",
            f"ports {ports.start}-{ports.stop - 1} are used up: {count} are needed, {len(found)} free",
            where="ports",
            hint="stop services that are not needed, or give a wider port range",
        )
    return found
