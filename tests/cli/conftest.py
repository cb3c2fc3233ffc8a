"""For tests of what commands ask and print: operations in this process, for an agent needs half a second to start."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy import sessions
from ddtree_deploy.agent.operations import find
from ddtree_deploy.agent.protocol import ProgressSink, silent
from ddtree_deploy.errors import DeployError
from ddtree_deploy.inventory.settings import HostSettings
from ddtree_deploy.release.files import sha256_file


class SessionHere:
    """What is asked and answered passes JSON, as between the processes."""

    def call(self, op: str, params: dict[str, Any], on_progress: ProgressSink | None = None) -> dict[str, Any]:
        try:
            result = find(op)(json.loads(json.dumps(params)), on_progress or silent)
        except DeployError as error:
            raise DeployError.from_dict(json.loads(json.dumps(error.to_dict()))) from None
        return dict(json.loads(json.dumps(result)))

    def put_blobs(self, paths: Iterable[Path], root: str, on_progress: ProgressSink | None = None) -> dict[str, str]:
        return {sha256_file(path): str(path) for path in paths}  # they are on this host


@pytest.fixture
def agent_here(monkeypatch: pytest.MonkeyPatch, home: object) -> None:
    """Hosts with a local connection; their caches are below the test's own home."""

    def opener(accept_new_host_keys: bool) -> Callable[[HostSettings], AbstractContextManager[SessionHere]]:
        @contextmanager
        def open_session(host: HostSettings) -> Iterator[SessionHere]:
            assert host.connection.kind == "local"
            yield SessionHere()

        return open_session

    monkeypatch.setattr(sessions, "_transport_opener", opener)
