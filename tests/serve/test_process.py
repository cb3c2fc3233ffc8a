from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest
from processes import wait_until

from ddtree_deploy.serve.process import (
    MARKER,
    ProcessIdentity,
    identify,
    is_alive,
    kill_service_processes,
    send_signal,
    service_processes,
)

SLEEP = [sys.executable, "-c", "print(flush=True); import time; time.sleep(600)"]
# a child that leaves the session and drops the marker, as a daemon of somebody's would
ESCAPE = (
    "import os, subprocess, sys; environment = dict(os.environ); environment.pop('DDTREE_SERVICE', None); "
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], env=environment, "
    "start_new_session=True); print(child.pid, flush=True); import time; time.sleep(600)"
)


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(SLEEP, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()


def test_identity(sleeper: subprocess.Popen[str]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    assert is_alive(identity)
    assert not is_alive(None)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not is_alive(identity)  # a zombie does not live
    sleeper.wait()
    assert not is_alive(identity)


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_a_reused_pid_is_neither_alive_nor_signalled(sleeper: subprocess.Popen[str], change: dict[str, object]) -> None:
    identity = identify(sleeper.pid)
    assert identity is not None
    stale = dataclasses.replace(identity, **change)
    assert not is_alive(stale)
    assert not send_signal(stale, signal.SIGKILL)
    assert sleeper.poll() is None
    assert send_signal(identity, signal.SIGKILL)
    assert sleeper.wait() == -signal.SIGKILL


def test_found_by_marker_by_session_and_by_descent() -> None:
    marker = uuid.uuid4().hex
    environment = {**os.environ, MARKER: marker}
    leader = subprocess.Popen(
        [sys.executable, "-c", ESCAPE], env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    marked = subprocess.Popen(SLEEP, env=environment, start_new_session=True, stdout=subprocess.PIPE)
    other = subprocess.Popen(SLEEP, stdout=subprocess.PIPE)
    try:
        assert leader.stdout is not None
        assert marked.stdout is not None
        escaped = int(leader.stdout.readline())
        marked.stdout.readline()
        identity = identify(leader.pid)

        def pids(**ways: object) -> set[int]:
            found = service_processes(ways.get("marker", "-"), ways.get("leader"), ways.get("ancestor"))  # type: ignore[arg-type]
            return {process.pid for process in found}

        assert pids(marker=marker) == {leader.pid, marked.pid}
        assert pids(leader=identity) == {leader.pid}
        assert pids(ancestor=leader.pid) == {escaped}
        assert identity is not None
        assert pids(leader=dataclasses.replace(identity, start_ticks=1)) == set()  # the number is somebody else's
        assert kill_service_processes(marker, identity, leader.pid) == []
        assert marked.wait() == -signal.SIGKILL
        wait_until(lambda: not is_alive(identify(escaped)), "what it had started to end")  # killed, but nobody's to see
        assert other.poll() is None
    finally:
        for process in (leader, marked, other):
            process.kill()
            process.wait()


def test_identity_of_nobody() -> None:
    assert identify(2**22 + 1) is None
    assert not send_signal(ProcessIdentity(2**22 + 1, 1, "x"), signal.SIGKILL)


FORK = """
import os, sys, time
from ddtree_deploy.children import die_with_parent
arm, parent = die_with_parent(), os.getpid()
if os.fork() == 0:
    while sys.argv[1] == "gone" and os.getppid() == parent:
        time.sleep(0.01)
    arm()
    print("armed", flush=True)
    time.sleep(60)
time.sleep(0 if sys.argv[1] == "gone" else 60)
"""


def test_a_child_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", FORK, "stays"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "armed\n"
        process.kill()
        assert process.communicate(timeout=60)[0] == "", "the pipe is closed: nobody is left"


def test_a_child_whose_parent_was_killed_before_it_was_armed() -> None:
    """No signal comes for a parent that ended between fork and ``prctl``."""
    said = subprocess.check_output([sys.executable, "-c", FORK, "gone"], text=True, timeout=60)
    assert said == ""
