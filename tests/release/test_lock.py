from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Iterator

import pytest

from ddtree_deploy.errors import LockedError, StepError
from ddtree_deploy.release import lock as module
from ddtree_deploy.release.lock import Lock, holder, read_owner

HOLD = """
import sys
from pathlib import Path
from ddtree_deploy.release.lock import Lock
with Lock(Path(sys.argv[1]), "hold it"):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its stdin is closed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_held_lock_names_its_owner(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    with pytest.raises(LockedError, match="hold it") as caught, Lock(tmp_path / "lock", "second"):
        pass
    owner = caught.value.details["owner"]
    assert owner["pid"] == other.pid
    assert owner["command"] == "hold it"
    assert owner["boot_id"] and owner["started"] and owner["host"] and owner["user"]
    assert f"pid {other.pid}" in (holder(tmp_path / "lock") or "")
    assert read_owner(tmp_path / "lock") is not None  # the failed attempt left the record alone


def test_a_dead_owners_lock_is_taken_over_with_a_note(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    assert holder(tmp_path / "lock") is None
    with Lock(tmp_path / "lock", "second") as lock:
        assert lock.note is not None
        assert "hold it" in lock.note
        assert str(os.getpid()) in (tmp_path / "lock").read_text()
    with Lock(tmp_path / "lock", "third") as lock:
        assert lock.note is None  # the second one left in order


def test_released_on_error(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), Lock(tmp_path / "lock", "first"):
        _ = 1 / 0
    with Lock(tmp_path / "lock", "second") as lock:
        assert lock.note is None


def test_a_half_written_record_is_no_owner(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"pid": 1, "started"')
    with Lock(tmp_path / "lock", "first") as lock:
        assert lock.note is None


def test_an_owner_is_told_from_a_later_process_of_the_same_pid(tmp_path: Path) -> None:
    with Lock(tmp_path / "lock", "first"):
        assert read_owner(tmp_path / "lock") is not None
    assert read_owner(tmp_path / "lock") is None  # the record goes with the lock
    ours = module._ourselves("x")
    assert not module.owner_gone(ours)
    other_start = module.Owner(**{**ours.__dict__, "started": (ours.started or 0) + 1})
    assert module.owner_gone(other_start)
    other_boot = module.Owner(**{**ours.__dict__, "boot_id": "another"})
    assert module.owner_gone(other_boot)
    elsewhere = module.Owner(**{**ours.__dict__, "host": "elsewhere", "pid": 1, "started": 0})
    assert not module.owner_gone(elsewhere)  # cannot be told from here


def test_a_root_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StepError) as caught, Lock(tmp_path / "file" / "lock", "first"):
        pass
    assert caught.value.id == "root-not-writable"
