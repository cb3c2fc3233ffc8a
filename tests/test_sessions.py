from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.inventory.settings import Connection, HostSettings
from ddtree_deploy.sessions import Connector, Session

HOST = HostSettings("a", (), Connection("local", "a"), Path("/"))


class Recorder:
    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0

    @contextmanager
    def open(self, host: HostSettings) -> Iterator[Session]:
        self.opened += 1
        try:
            yield object()  # type: ignore[misc]
        finally:
            self.closed += 1


def test_a_session_is_closed_also_after_an_error() -> None:
    recorder = Recorder()
    connect = Connector(open_session=recorder.open)
    with connect(HOST):
        assert (recorder.opened, recorder.closed) == (1, 0)
    with pytest.raises(ZeroDivisionError), connect(HOST):
        raise ZeroDivisionError
    assert (recorder.opened, recorder.closed) == (2, 2)


def test_close_all_ends_open_sessions_once() -> None:
    recorder = Recorder()
    connect = Connector(open_session=recorder.open)
    with connect(HOST), connect(HOST):
        connect.close_all()
        assert recorder.closed == 2
    assert recorder.closed == 2


def test_the_local_agent_answers() -> None:
    seen: list[Any] = []
    with Connector()(HOST) as session:
        answer = session.call("hello", {}, seen.append)
    assert answer["protocol"] == 1
