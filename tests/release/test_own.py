"""A release's own copies of files that it shares by hard links."""

from __future__ import annotations

import os
from pathlib import Path
from typing import List

import pytest
import venvs

from ddtree_deploy.agent.protocol import Progress, silent
from ddtree_deploy.errors import StepError
from ddtree_deploy.release import own
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.own import changed_in_place, other_names, own_files


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A base and a tree that is linked to it; files of more than 100 bytes are large."""
    monkeypatch.setattr(own, "LARGE", 100)
    base, tree = tmp_path / "base", tmp_path / "tree"
    (base / "lib" / "deep").mkdir(parents=True)
    (base / "lib" / "small.py").write_text("small\n")
    (base / "lib" / "deep" / "script").write_text("script\n")
    (base / "lib" / "deep" / "script").chmod(0o750)
    (base / "lib" / "large.so").write_bytes(b"x" * 101)
    os.utime(base / "lib" / "small.py", ns=(1_000_000_000, 2_000_000_000))
    for file in ("lib/small.py", "lib/deep/script", "lib/large.so"):
        (tree / file).parent.mkdir(parents=True, exist_ok=True)
        os.link(base / file, tree / file)
    (tree / "lib" / "mine.py").write_text("mine\n")
    (tree / "lib64").symlink_to("lib")
    (tree / "lib" / "outside.py").symlink_to(base / "lib" / "small.py")
    return tree


def test_small_files_are_copied_once_as_they_are(shared: Path) -> None:
    before, base = venvs.tree_state(shared), venvs.tree_state(shared.parent / "base")
    seen: List[Progress] = []
    done = own_files(str(shared), seen.append)
    assert (done.files, done.bytes, [file.path for file in done.large]) == (2, 13, ["lib/large.so"])
    after = venvs.tree_state(shared)
    assert {path: state for path, state in after.items() if state[0] != "other"} == {
        path: state for path, state in before.items() if state[0] != "other"
    }
    assert venvs.tree_state(shared.parent / "base") == base
    assert venvs.link_counts(shared) == {
        str(shared / path): 2 if path == "lib/large.so" else 1
        for path in ("lib/small.py", "lib/deep/script", "lib/large.so", "lib/mine.py")
    }
    assert (seen[-1].phase, seen[-1].done_files, seen[-1].finished) == ("own", 2, True)
    again = own_files(str(shared), silent)
    assert (again.files, again.large) == (0, done.large)


def test_links_within_the_release_stay_links(shared: Path) -> None:
    os.link(shared / "lib" / "mine.py", shared / "lib" / "twin.py")
    os.link(shared / "lib" / "small.py", shared / "lib" / "other.py")
    inode = (shared / "lib" / "mine.py").stat().st_ino
    assert own_files(str(shared), silent).files == 2
    assert (shared / "lib" / "mine.py").stat().st_ino == (shared / "lib" / "twin.py").stat().st_ino == inode
    one, other = (shared / "lib" / "small.py").stat(), (shared / "lib" / "other.py").stat()
    assert (one.st_ino, one.st_nlink) == (other.st_ino, 2)
    assert (shared.parent / "base" / "lib" / "small.py").stat().st_nlink == 1
    assert not list(shared.rglob("*.tmp"))


def test_no_space_is_found_before_anything_is_copied(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("usage", (), {"free": 5})
    monkeypatch.setattr("ddtree_deploy.release.space.shutil.disk_usage", lambda path: usage)
    counts = venvs.link_counts(shared)
    with pytest.raises(StepError, match="a command may write into") as caught:
        own_files(str(shared), silent)
    assert caught.value.id == "no-space"
    assert venvs.link_counts(shared) == counts


@pytest.mark.parametrize("how", ["write", "touch", "chmod"])
def test_large_files_that_change(shared: Path, how: str) -> None:
    large, file = own_files(str(shared), silent).large, shared / "lib" / "large.so"
    assert changed_in_place(str(shared), large) == []
    if how == "write":
        file.write_bytes(b"y" * 101)
    elif how == "touch":
        os.utime(file, ns=(1, 1))
    else:
        file.chmod(0o600)
    assert [one.path for one in changed_in_place(str(shared), large)] == ["lib/large.so"]
    layout = Layout(str(shared.parent / "root"))
    assert other_names(str(shared), large[0], [str(shared.parent / "base")], layout) == [
        str(shared.parent / "base" / "lib" / "large.so")
    ]


def test_large_files_that_are_replaced_or_removed_are_nobody_elses(shared: Path) -> None:
    large = own_files(str(shared), silent).large
    (shared / "new").write_bytes(b"z")
    (shared / "new").rename(shared / "lib" / "large.so")
    assert changed_in_place(str(shared), large) == []
    (shared / "lib" / "large.so").unlink()
    assert changed_in_place(str(shared), large) == []
