"""Sessions with the agents of hosts: opened for a while, and all closed at once when a run is interrupted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Iterator, Protocol

from ddtree_deploy.agent.protocol import ProgressSink
from ddtree_deploy.errors import InputError

if TYPE_CHECKING:
    from ddtree_deploy.inventory.settings import HostSettings


class Session(Protocol):
    """What we need of ``transport.session.AgentSession``."""

    def call(self, op: str, params: Mapping[str, Any], on_progress: ProgressSink | None = None) -> dict[str, Any]: ...

    def put_blobs(
        self, paths: Iterable[Path], root: str, on_progress: ProgressSink | None = None
    ) -> dict[str, str]: ...

    def stream(
        self,
        op: str,
        params: Mapping[str, Any],
        on_data: Callable[[bytes], None],
        on_progress: ProgressSink | None = None,
    ) -> dict[str, Any]: ...

    def upload(
        self, op: str, params: Mapping[str, Any], on_progress: ProgressSink | None = None
    ) -> AbstractContextManager[Upload]: ...


class Upload(Protocol):
    """What we need of ``transport.session.Upload``."""

    def write(self, data: bytes) -> None: ...

    def result(self) -> dict[str, Any]: ...


Open = Callable[["HostSettings"], AbstractContextManager[Session]]


class Connector:
    """``with connector(host) as session``. ``open_session`` is how (default: the host's transport)."""

    def __init__(self, accept_new_host_keys: bool = False, open_session: Open | None = None) -> None:
        self._open = open_session or _transport_opener(accept_new_host_keys)
        self._stacks: set[ExitStack] = set()
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, host: HostSettings) -> Iterator[Session]:
        with ExitStack() as stack:
            session = stack.enter_context(self._open(host))
            with self._lock:
                self._stacks.add(stack)
            try:
                yield session
            finally:
                with self._lock:
                    self._stacks.discard(stack)

    def close_all(self) -> None:
        """End every open session: the agents get end of file, stop what they do, and let go of their locks."""
        with self._lock:
            stacks = list(self._stacks)
        closers = [threading.Thread(target=stack.close, daemon=True) for stack in stacks]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()


def _transport_opener(accept_new_host_keys: bool) -> Open:
    @contextmanager
    def open_session(host: HostSettings) -> Iterator[Session]:
        from ddtree_deploy.transport import ConnectOptions, connect

        options = ConnectOptions(accept_new_host_keys=accept_new_host_keys)
        with connect(host, options) as transport:
            try:
                agent = transport.agent()
            except InputError as error:
                if error.id == "no-python":  # the inventory names a wrong one, as a rule
                    error.where = host.origin("connection.python").where or error.where
                raise
            with agent as session:
                yield session

    return open_session
