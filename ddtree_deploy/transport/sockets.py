"""Deadlines, and a TCP connection that keeps them."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ddtree_deploy.errors import UnreachableError
from ddtree_deploy.transport.hops import Hop

T = TypeVar("T")

USER_TIMEOUT_MS = 90_000  # unacknowledged data for so long: the connection is dead


class Deadline:
    """``seconds`` from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def call(self, function: Callable[[], T]) -> T:
        """``function``'s result. Raises TimeoutError; then its thread is left behind (name servers and SSH agents
        have no timeouts of their own)."""
        result: list[T] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                result.append(function())
            except BaseException as error:
                failure.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(self.left())
        if failure:
            raise failure[0]
        if not result:
            raise TimeoutError
        return result[0]


def connect_tcp(hop: Hop, deadline: Deadline) -> socket.socket:
    """Connect to the first of the host's addresses that answers; the time is shared among them.

    Raises UnreachableError ``name-unknown``, ``name-timeout``, ``connection-refused``, ``connect-timeout`` and
    ``network-unreachable``.
    """
    try:
        found = deadline.call(lambda: socket.getaddrinfo(hop.address, hop.port, type=socket.SOCK_STREAM))
    except TimeoutError:
        what = f"the name server did not answer within {deadline.seconds:g} s"
        raise _error(hop, "name-timeout", what, "does this machine's network work?") from None
    except (OSError, UnicodeError) as error:
        what = f"the name {hop.address!r} cannot be resolved ({getattr(error, 'strerror', None) or error})"
        raise _error(hop, "name-unknown", what, "is the address spelled right? ~/.ssh/config may name it") from error
    last: Exception = TimeoutError()
    for number, (family, kind, protocol, _, address) in enumerate(found):
        connection = socket.socket(family, kind, protocol)
        try:
            connection.settimeout(max(0.05, deadline.left() / (len(found) - number)))
            connection.connect(address)
        except OSError as error:
            connection.close()
            last = error
            continue
        _keep_alive(connection)
        return connection
    raise _tcp_error(hop, last, deadline) from last


def _keep_alive(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with contextlib.suppress(AttributeError, OSError):  # Linux only
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)


def _tcp_error(hop: Hop, error: Any, deadline: Deadline) -> UnreachableError:
    if isinstance(error, TimeoutError):
        return _error(hop, "connect-timeout", f"no answer within {deadline.seconds:g} s", "is it up? a firewall?")
    if error.errno == errno.ECONNREFUSED:
        return _error(hop, "connection-refused", "nothing listens on that port", "is sshd running, and the port right?")
    return _error(hop, "network-unreachable", str(error.strerror or error), "a firewall, or a VPN that is off?")


def _error(hop: Hop, id: str, what: str, hint: str) -> UnreachableError:
    return UnreachableError(id, f"cannot reach {hop.label}: {what}", where=hop.label, hint=hint)
