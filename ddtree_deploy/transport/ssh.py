"""The agent over SSH: through any number of jump hosts, each with its own host key check.

Fabric is not used for this: its connections to gateways accept any host key and know no deadline.
"""

from __future__ import annotations

import contextlib
import logging
import shlex
from typing import Optional

import paramiko

from ddtree_deploy.agent.protocol import SILENCE
from ddtree_deploy.errors import UnreachableError
from ddtree_deploy.transport.base import ConnectionSettings, ConnectOptions, Stream, Transport
from ddtree_deploy.transport.handshake import open_transport
from ddtree_deploy.transport.hops import Hop, chain
from ddtree_deploy.transport.known_hosts import KnownHosts
from ddtree_deploy.transport.session import AgentSession
from ddtree_deploy.transport.sockets import Deadline, connect_tcp
from ddtree_deploy.transport.start import PYTHONS, start_agent
from ddtree_deploy.transport.stderr import StderrCollector

logging.getLogger("paramiko").addHandler(logging.NullHandler())  # its errors reach us as exceptions

_GONE = (OSError, EOFError, paramiko.SSHException)  # what paramiko raises once a connection is lost


class SshTransport(Transport):
    """Connects when it is made. Raises UnreachableError and InputError."""

    def __init__(self, settings: ConnectionSettings, options: ConnectOptions) -> None:
        hops = chain(settings)
        self.label = hops[-1].label
        self._settings = settings
        self._options = options
        self._transports: list[paramiko.Transport] = []
        known_hosts = KnownHosts(options.known_hosts, options.accept_new_host_keys)
        deadline = Deadline(settings.connect_timeout)
        try:
            for hop in hops:
                self._connect(hop, known_hosts, deadline)
        except BaseException:
            self.close()
            raise

    def agent(self) -> AgentSession:
        fallback = [self._settings.base_python] if self._settings.base_python else []
        pythons = [self._settings.python] if self._settings.python else [*PYTHONS, *fallback]
        return start_agent(self._execute, pythons, self.label)

    def close(self) -> None:
        for transport in reversed(self._transports):
            transport.close()
        self._transports = []

    def _connect(self, hop: Hop, known_hosts: KnownHosts, deadline: Deadline) -> None:
        if self._transports:
            connection = _tunnel(self._transports[-1], hop, deadline)
            self._transports.append(open_transport(connection, hop, known_hosts, deadline))
        else:
            self._transports.append(open_transport(connect_tcp(hop, deadline), hop, known_hosts, deadline))

    def _execute(self, command: list[str]) -> Stream:
        try:
            channel = self._transports[-1].open_session(timeout=self._settings.connect_timeout)
            channel.settimeout(self._settings.connect_timeout)
            channel.exec_command(shlex.join(command))
        except (*_GONE, IndexError) as error:
            raise UnreachableError(
                "session-refused",
                f"{self.label} let us in, but opens no session: {error or type(error).__name__}",
                where=self.label,
                hint="sshd's MaxSessions, a ForceCommand, or the connection was lost",
            ) from error
        return SshStream(channel, self._transports[-1], self._options)


def _tunnel(gateway: paramiko.Transport, hop: Hop, deadline: Deadline) -> paramiko.Channel:
    """A TCP connection to ``hop`` made by the jump host ``gateway``."""
    try:
        return gateway.open_channel("direct-tcpip", (hop.address, hop.port), ("127.0.0.1", 0), timeout=deadline.left())
    except paramiko.ChannelException as error:
        if error.code == 1:  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED, RFC 4254 5.1
            id, what, hint = "jump-forbidden", "does not forward connections", "sshd_config: AllowTcpForwarding yes"
        else:
            id, what, hint = "connection-refused", "cannot connect to it", "is sshd running, and the port right?"
        text = f"cannot reach {hop.label}: the jump host before it {what} ({error.text})"
        raise UnreachableError(id, text, where=hop.label, hint=hint) from error
    except _GONE as error:
        text = f"cannot reach {hop.label}: no connection from the jump host within {deadline.seconds:g} s"
        raise UnreachableError("connect-timeout", text, where=hop.label, hint="is it up? a firewall?") from error


class SshStream(Stream):
    def __init__(self, channel: paramiko.Channel, transport: paramiko.Transport, options: ConnectOptions) -> None:
        self._channel = channel
        self._transport = transport
        self._stderr = StderrCollector(self._read_stderr, options.on_stderr)

    def read(self, timeout: float) -> bytes:
        self._channel.settimeout(timeout)
        try:
            return self._channel.recv(1 << 16)
        except TimeoutError:
            raise
        except _GONE:
            return b""

    def write(self, data: bytes) -> None:
        self._channel.settimeout(SILENCE)
        try:
            self._channel.sendall(data)
        except TimeoutError:
            raise
        except _GONE as error:
            raise BrokenPipeError(str(error)) from error

    def _read_stderr(self) -> bytes:
        while True:
            try:
                return self._channel.recv_stderr(1 << 16)
            except TimeoutError:
                continue  # the timeout is the channel's, set for stdout
            except _GONE:
                return b""

    def close_input(self) -> None:
        with contextlib.suppress(*_GONE):
            self._channel.shutdown_write()

    def exit_status(self, timeout: float) -> Optional[int]:
        if not self._channel.status_event.wait(timeout):
            return None
        status = self._channel.exit_status
        if status >= 0:
            return status
        if not self._channel.eof_received:  # no signal ended it: paramiko closes the channels, and then calls it lost
            self._transport.join(2.0)
        return None

    def lost(self) -> bool:
        return not self._transport.is_active()

    def stderr(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        with contextlib.suppress(*_GONE):
            self._channel.close()
