"""One SSH server: negotiate, check its host key, authenticate. All within a deadline."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Union

import paramiko

from ddtree_deploy.errors import UnreachableError
from ddtree_deploy.transport.authentication import authenticate
from ddtree_deploy.transport.hops import Hop
from ddtree_deploy.transport.known_hosts import KnownHosts
from ddtree_deploy.transport.sockets import Deadline

KEEPALIVE = 15  # seconds between packets on an idle connection, for the sake of firewalls in between


def open_transport(
    connection: Union[socket.socket, paramiko.Channel], hop: Hop, known_hosts: KnownHosts, deadline: Deadline
) -> paramiko.Transport:
    """An authenticated SSH connection to ``hop`` over ``connection``, which is closed on failure.

    Raises UnreachableError ``ssh-silent``, ``ssh-failed``, ``host-key-...`` and ``auth-failed``.
    """
    try:
        transport = paramiko.Transport(connection)
    except BaseException:
        connection.close()
        raise
    try:
        _negotiate(transport, hop, known_hosts, deadline)
        known_hosts.check(hop, transport.get_remote_server_key())
        authenticate(transport, hop, deadline)
        transport.set_keepalive(KEEPALIVE)
    except (paramiko.SSHException, EOFError, OSError) as error:  # the connection broke between two of the steps
        transport.close()
        text = f"the connection to {hop.label} broke while it was made: {error or type(error).__name__}"
        raise UnreachableError("ssh-failed", text, where=hop.label, hint="try again; sshd's log tells more") from error
    except BaseException:
        transport.close()
        raise
    return transport


def _negotiate(transport: paramiko.Transport, hop: Hop, known_hosts: KnownHosts, deadline: Deadline) -> None:
    transport.daemon = True
    # the deadline is kept here; paramiko's own shorter ones must not come first
    transport.banner_timeout = transport.handshake_timeout = deadline.seconds + 1
    security = transport.get_security_options()
    security.key_types = _known_first(security.key_types, known_hosts.kinds(hop))
    done = threading.Event()
    transport.start_client(event=done)
    if not done.wait(deadline.left()):
        what = "began to speak SSH and fell silent" if transport.remote_version else "accepts connections and is silent"
        raise UnreachableError(
            "ssh-silent",
            f"{hop.label} {what}: {deadline.seconds:g} s have passed",
            where=hop.label,
            hint="is that sshd's port? A host under heavy load needs a longer connect_timeout",
        )
    if not transport.is_active():
        error = transport.get_exception()
        raise UnreachableError(
            "ssh-failed",
            f"{hop.label} does not speak SSH with us: {error or 'it closed the connection'}",
            where=hop.label,
            hint="is that sshd's port? sshd closes connections at once when it has too many (MaxStartups)",
        )


def _known_first(offered: Sequence[str], known: list[str]) -> list[str]:
    """Ask for the kind of host key that is on record, as OpenSSH does: a server shows only one of its keys."""
    wanted = [name for kind in known for name in (["rsa-sha2-512", "rsa-sha2-256"] if kind == "ssh-rsa" else [kind])]
    first = [name for name in wanted if name in offered]
    return first + [name for name in offered if name not in first]
