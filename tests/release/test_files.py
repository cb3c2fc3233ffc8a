from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ddtree_deploy.errors import StepError
from ddtree_deploy.release.files import InsideCheck, break_link, make_folders, remove_tree, replace_file, shown


def test_replace_file_leaves_other_links_alone(tmp_path: Path) -> None:
    shared, ours = tmp_path / "shared", tmp_path / "ours"
    shared.write_bytes(b"base")
    shared.chmod(0o640)
    os.link(shared, ours)
    replace_file(ours, b"changed")
    assert shared.read_bytes() == b"base"
    assert (ours.read_bytes(), ours.stat().st_mode & 0o777, ours.stat().st_nlink) == (b"changed", 0o640, 1)
    assert shared.stat().st_nlink == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours", "shared"]


def test_replace_file_makes_new_files_and_sets_modes(tmp_path: Path) -> None:
    replace_file(tmp_path / "new", b"x")
    replace_file(tmp_path / "script", b"x", 0o755)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o644
    assert (tmp_path / "script").stat().st_mode & 0o777 == 0o755


def test_replace_file_replaces_a_symlink_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"target")
    (tmp_path / "link").symlink_to("target")
    replace_file(tmp_path / "link", b"file")
    assert (tmp_path / "target").read_bytes() == b"target"
    assert not (tmp_path / "link").is_symlink()


def test_replace_file_that_cannot_be_renamed_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder" / "full").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):
        replace_file(tmp_path / "folder", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
def test_replace_file_where_root_may_not_give_files_away(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A share that makes root nobody; a container that the file's owner is unknown in."""

    def refuse(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", refuse)
    file = tmp_path / "file"
    file.write_bytes(b"old")
    file.chmod(0o6755)
    replace_file(file, b"new")
    assert (file.read_bytes(), file.stat().st_mode & 0o7777) == (b"new", 0o755)


def test_break_link_keeps_bytes_mode_and_times(tmp_path: Path) -> None:
    shared, ours = tmp_path / "shared", tmp_path / "ours"
    shared.write_bytes(b"base")
    shared.chmod(0o600)
    os.utime(shared, ns=(1_000_000_000, 2_000_000_000))
    os.link(shared, ours)
    assert break_link(ours)
    assert not break_link(ours)
    info = ours.stat()
    assert (ours.read_bytes(), info.st_mode & 0o777, info.st_mtime_ns) == (b"base", 0o600, 2_000_000_000)
    assert info.st_ino != shared.stat().st_ino


@pytest.mark.parametrize("mode", [0o644, 0o444])
def test_break_link_keeps_extended_attributes(mode: int, tmp_path: Path) -> None:
    shared, ours = tmp_path / "shared", tmp_path / "ours"
    shared.write_bytes(b"base")
    try:
        os.setxattr(shared, "user.ddtree", b"\0value")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")
    shared.chmod(mode)
    os.link(shared, ours)
    assert break_link(ours)
    assert os.getxattr(ours, "user.ddtree") == b"\0value"
    assert (ours.stat().st_mode & 0o777, ours.stat().st_nlink) == (mode, 1)


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EPERM, errno.ENODATA])
@pytest.mark.parametrize("function", ["listxattr", "getxattr", "setxattr"])
def test_break_link_without_extended_attributes(
    function: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*arguments: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "listxattr", lambda *arguments, **named: ["security.capability"])
    monkeypatch.setattr(os, "getxattr", lambda *arguments, **named: b"value")
    monkeypatch.setattr(os, function, refuses)
    if function != "setxattr":
        monkeypatch.setattr(os, "setxattr", lambda *arguments, **named: pytest.fail("there is nothing to set"))
    shared, ours = tmp_path / "shared", tmp_path / "ours"
    shared.write_bytes(b"base")
    os.link(shared, ours)
    assert break_link(ours)
    assert (ours.read_bytes(), ours.stat().st_nlink) == (b"base", 1)


def test_remove_tree_follows_no_symlink_and_takes_read_only_folders(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("keep")
    doomed = tmp_path / "doomed"
    make_folders(doomed / "a" / "b")
    (doomed / "a" / "b" / "file").write_text("x")
    (doomed / "a" / "link").symlink_to(outside)
    (doomed / "a" / "b").chmod(0o555)
    (doomed / "a").chmod(0o555)
    remove_tree(doomed)
    assert not doomed.exists()
    assert (outside / "keep").read_text() == "keep"
    remove_tree(doomed)  # gone already: fine


def test_inside_check_sees_through_symlinks(tmp_path: Path) -> None:
    release, checkout = tmp_path / "release", tmp_path / "checkout"
    (release / "lib").mkdir(parents=True)
    checkout.mkdir()
    (release / "lib64").symlink_to("lib")
    (release / "lib" / "pkg").symlink_to(checkout)
    inside = InsideCheck(release)
    inside.require(f"{release}/lib64/new/file")
    with pytest.raises(StepError, match="leads out of the release") as caught:
        inside.require(f"{release}/lib/pkg/file")
    assert caught.value.id == "outside-release"


def test_shown_escapes_what_a_terminal_should_not_get() -> None:
    assert shown("a\nb\x1b[31m") == "a\\nb\\x1b[31m"
    assert shown(os.fsdecode(b"caf\xe9")) == "caf\\xe9"
    assert shown("Grüße") == "Grüße"
