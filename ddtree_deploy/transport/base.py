"""What all transports share: settings, options, and the contract of a byte stream to the agent's process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Optional, Self

if TYPE_CHECKING:
    from ddtree_deploy.transport.session import AgentSession


@dataclass(frozen=True)
class ConnectionSettings:
    """How a host is reached. What is None comes from ``~/.ssh/config``, then from SSH's defaults.

    ``jump``: hops ``user@host:port`` in the order in which they are passed. ``connect_timeout``: seconds until the
    host, behind all its jump hosts, must have let us in. ``python``: the host's Python for the agent; without it
    the first of 3.9 or later on PATH, else ``base_python``.
    """

    kind: Literal["local", "ssh"]
    address: str = "localhost"
    port: Optional[int] = None
    user: Optional[str] = None
    identity: Optional[str] = None
    jump: list[str] = field(default_factory=list)
    connect_timeout: float = 10
    python: Optional[str] = None
    base_python: Optional[str] = None


@dataclass(frozen=True)
class ConnectOptions:
    """The user's choices for this run. ``known_hosts`` replaces ``~/.ssh/known_hosts`` and the system's file (also set
    by ``DDTREE_KNOWN_HOSTS``); ``on_stderr`` gets each line that the agent's process writes to stderr."""

    accept_new_host_keys: bool = False
    known_hosts: Optional[Path] = None
    on_stderr: Optional[Callable[[str], None]] = None


class Stream(ABC):
    """stdin, stdout and stderr of a process on the host. Failures of the way to it raise UnreachableError."""

    @abstractmethod
    def read(self, timeout: float) -> bytes:
        """Some bytes of stdout, b"" at its end. Raises TimeoutError after ``timeout`` seconds without any."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """All of ``data`` to stdin. Raises BrokenPipeError when the process does not read it any more."""

    @abstractmethod
    def close_input(self) -> None:
        """End of file on stdin."""

    @abstractmethod
    def exit_status(self, timeout: float) -> Optional[int]:
        """Exit status (negative: a signal), or None if the process has not ended or it cannot be known."""

    @abstractmethod
    def lost(self) -> bool:
        """Whether the way to the host is gone, rather than the process."""

    @abstractmethod
    def stderr(self) -> str:
        """The last part of what the process wrote to stderr."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back; the process gets end of file."""


class Transport(ABC):
    """A connection to a host. A context manager; several agents may be started over one."""

    label: str  # the host in messages: "local", "root@gpu1:22"

    @abstractmethod
    def agent(self) -> AgentSession:
        """Start the agent, sending its code when the host does not have it yet. UnreachableError, StepError."""

    @abstractmethod
    def close(self) -> None:
        """Disconnect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
