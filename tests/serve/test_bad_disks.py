"""Services on a disk that is full or read-only: what runs is shown and can be stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import fill
from served_host import Host

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import StepError
from ddtree_deploy.serve.manager import start_service
from ddtree_deploy.serve.operations import op_restart
from ddtree_deploy.serve.process import is_alive


@pytest.fixture
def full(small_disk: Path) -> Iterator[Host]:
    """A ready service on a disk that has become full."""
    host = Host(small_disk / "root")
    host.launch()
    filler = fill(small_disk)
    yield host
    filler.unlink()
    host.stop()


@pytest.fixture
def read_only(host: Host) -> Iterator[Host]:
    """A ready service whose root has become read-only, as after an error of the disk."""
    host.launch()
    for words in (["--bind", host.root, host.root], ["-o", "remount,bind,ro", host.root]):
        if subprocess.run(["mount", *words], check=False).returncode != 0:
            pytest.skip("may not mount")
    yield host
    subprocess.run(["umount", str(host.root)], check=True)


@pytest.mark.parametrize("kind", ["full", "read_only"])
def test_what_runs_is_shown_and_stopped(kind: str, request: pytest.FixtureRequest) -> None:
    host: Host = request.getfixturevalue(kind)
    assert host.status()["probe"]["ok"]
    files = sorted(path.name for path in host.folder().path.iterdir())
    engine = host.state().engine
    (stopped,) = host.stop()["services"]
    assert (stopped["changed"], stopped["state"]) == (True, "dead")
    assert str(host.folder().state_file) in stopped["detail"]
    assert not is_alive(engine)
    assert sorted(path.name for path in host.folder().path.iterdir()) == files


def test_nothing_is_stopped_where_it_could_not_start_again(full: Host) -> None:
    engine = full.state().engine
    for act in (
        lambda: op_restart({"root": str(full.root)}, silent),
        lambda: full.launch(budget=9, replace=True),
    ):
        with pytest.raises(StepError) as caught:
            act()
        assert caught.value.id == "no-space"
    assert full.launch()["changed"] is False
    assert is_alive(engine) and full.status()["state"] == "ready"


def test_no_engine_is_started_that_nobody_would_know_of(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk becomes full just before the supervisor's first state."""
    host = Host(small_disk / "root")
    folder, started = host.folder(), small_disk.parent / "started"
    python = host.release / "bin" / "python"
    python.write_text(f"#!/bin/sh\ntouch {started}\n")
    folder.write(host.spec({}), {})
    folder.log.touch()
    folder.lock.touch()
    monkeypatch.setattr("ddtree_deploy.serve.manager._GONE_S", 1.0)
    filler = fill(small_disk)
    with pytest.raises(StepError) as caught:
        start_service(folder, "test")
    filler.unlink()
    assert caught.value.id == "no-space"
    assert not started.exists() and not folder.is_kept()
