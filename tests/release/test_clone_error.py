"""What a clone says when the disk takes no more."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import StepError
from ddtree_deploy.release.clone import clone_error, clone_tree, finish_folders


def told(path: Path, code: int = errno.ENOSPC, missing: int = 0) -> StepError:
    return clone_error(OSError(code, os.strerror(code)), "/opt/venv", str(path / "release"), missing)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    status = SimpleNamespace(f_bavail=1000, f_frsize=4096, f_files=5000, f_favail=70)
    monkeypatch.setattr(os, "statvfs", lambda path: status)
    return status


def test_bytes(disk: SimpleNamespace, tmp_path: Path) -> None:
    error = told(tmp_path, missing=9_000_000)
    assert error.id == "no-space"
    assert error.message.endswith("about 9,000,000 more bytes are needed, 4,096,000 are free")
    assert told(tmp_path).message.endswith(": 4,096,000 bytes are free"), "nobody knows how many are needed"


def test_inodes(disk: SimpleNamespace, tmp_path: Path) -> None:
    disk.f_favail = 0
    error = told(tmp_path, missing=9_000_000)
    assert error.id == "no-space" and "no inodes left" in error.message and "more bytes" not in error.message
    assert error.details["free_inodes"] == 0
    disk.f_files = 0
    assert "9,000,000 more bytes" in told(tmp_path, missing=9_000_000).message, "without a limit of inodes"


def test_a_quota(disk: SimpleNamespace, tmp_path: Path) -> None:
    assert "quota" in told(tmp_path, errno.EDQUOT, 5).message


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
def test_root_that_may_not_give_files_away_clones_all_the_same(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a share that makes root nobody; in a container that an owner is unknown in."""

    def refuse(*arguments: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    for function in ("chown", "lchown"):
        monkeypatch.setattr(os, function, refuse)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "base/lib").mkdir(parents=True)
    (tmp_path / "base/lib/module.py").write_text("text")
    (tmp_path / "base/lib/module.py").chmod(0o6755)
    (tmp_path / "base/lib64").symlink_to("lib")
    done = clone_tree(str(tmp_path / "base"), str(tmp_path / "clone"), "copy", silent)
    finish_folders(str(tmp_path / "clone"), done.folders)
    module = tmp_path / "clone/lib64/module.py"
    assert module.read_text() == "text"
    assert module.stat().st_mode & 0o7777 == 0o755  # whose it was is lost, so nobody is to run it as root
