"""Replacing files on file systems that are unlike a laptop's."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from ddtree_deploy.patching.transaction import replace_files


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
