"""Replacing files on file systems that are unlike a laptop's."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from patching_tree import install, snapshot

from ddtree_deploy.errors import InputError, LockedError
from ddtree_deploy.patching.commands import apply_path, check_path, reverse_path
from ddtree_deploy.patching.transaction import exclusive, replace_files

HOLD = """
import sys, time
from pathlib import Path
from ddtree_deploy.patching.transaction import exclusive
with exclusive(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
APPLY = """
import sys
from pathlib import Path
from ddtree_deploy.errors import DeployError
from ddtree_deploy.patching.commands import apply_path, reverse_path
for turn in range(8):
    try:
        (apply_path if turn % 2 == 0 else reverse_path)(Path(sys.argv[1]), sys.argv[2])
    except DeployError as error:
        print(error.id)
"""


def test_a_file_system_that_does_not_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    really_sync = os.fsync
    refused = []

    def sync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            refused.append(descriptor)
            raise OSError(errno.EINVAL, "Invalid argument")
        really_sync(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    (tmp_path / "old.py").write_text("old")
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "last.py").write_text("last")
    replace_files({tmp_path / "old.py": b"new", tmp_path / "gone" / "last.py": None})
    assert refused
    assert (tmp_path / "old.py").read_text() == "new" and not (tmp_path / "gone").exists()


def test_one_run_at_a_time_changes_a_tree(site: Path, patch_folder: Path) -> None:
    before = snapshot(site)
    holder = subprocess.Popen([sys.executable, "-c", HOLD, site], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        for change in (apply_path, reverse_path):
            with pytest.raises(LockedError) as caught:
                change(site, str(patch_folder))
            assert (caught.value.id, caught.value.exit_code, caught.value.where) == ("locked", 6, str(site))
        assert check_path(site, str(patch_folder)).summary == "pristine", "reading needs no lock"
    finally:
        holder.kill()
        holder.wait()
    assert snapshot(site) == before, "the lock left nothing"
    assert apply_path(site, str(patch_folder)).summary == "applied", "the lock ended with its process"
    assert reverse_path(site, str(patch_folder)).summary == "pristine"
    assert snapshot(site) == before


def test_several_runs_at_once_never_spoil_each_other(site: Path, patch_folder: Path) -> None:
    command = [sys.executable, "-c", APPLY, site, patch_folder]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(4)]
    said = "".join(run.communicate(timeout=120)[0] for run in runs)
    assert set(said.split()) <= {"locked"}
    assert check_path(site, str(patch_folder)).summary in ("pristine", "applied")
    assert not [path for path in site.rglob(".*") if path.name.endswith((".ddtree-new", ".ddtree-old"))]


def test_the_lock_is_given_back_after_an_error(tmp_path: Path, patch_folder: Path) -> None:
    other = install(tmp_path / "other", {"sglang/__init__.py": b""}, version="0.5.9")
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            apply_path(other, str(patch_folder))
        assert caught.value.id == "engine-version"


def test_a_file_system_that_cannot_lock_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.EBADF, "Bad file descriptor")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with exclusive(tmp_path):
        pass
