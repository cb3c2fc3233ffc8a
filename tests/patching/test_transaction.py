"""Replacing files on file systems that are unlike a laptop's."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
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


def acl(reader: int) -> bytes:
    """A POSIX ACL as the kernel keeps it: rw-r--r--, and user ``reader`` may read."""
    nobody = 0xFFFFFFFF
    entries = [(1, 6, nobody), (2, 4, reader), (4, 4, nobody), (16, 4, nobody), (32, 4, nobody)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


def set_attribute(path: Path, name: str, value: bytes) -> None:
    try:
        os.setxattr(path, name, value)
    except OSError as error:
        pytest.skip(f"no {name} here: {error}")


def test_a_replaced_file_keeps_its_acl_and_attributes(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("old")
    set_attribute(file, "user.note", b"\0kept")
    set_attribute(file, "system.posix_acl_access", acl(1234))
    (tmp_path / "link.py").symlink_to(file)
    replace_files({file: b"new", tmp_path / "link.py": b"new"})
    for path in (file, tmp_path / "link.py"):
        assert os.getxattr(path, "user.note") == b"\0kept"
        assert os.getxattr(path, "system.posix_acl_access") == acl(1234)
        assert path.stat().st_mode & 0o777 == 0o644 and path.read_text() == "new" and not path.is_symlink()


def test_a_replaced_file_gets_no_acl_that_it_did_not_have(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("old")
    set_attribute(tmp_path, "system.posix_acl_default", acl(1234))
    replace_files({file: b"new", tmp_path / "new.py": b"new"})
    assert "system.posix_acl_access" not in os.listxattr(file)
    assert os.getxattr(tmp_path / "new.py", "system.posix_acl_access") == acl(1234)


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
@pytest.mark.parametrize("function", ["listxattr", "getxattr", "setxattr"])
def test_attributes_that_may_not_be_set_do_not_stop_it(
    function: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*arguments: object, **named: object) -> None:
        raise OSError(number, os.strerror(number))

    given = []
    monkeypatch.setattr(os, "listxattr", lambda *arguments, **named: ["security.selinux", "security.ima", "trusted.x"])
    monkeypatch.setattr(os, "getxattr", lambda *arguments, **named: b"value")
    monkeypatch.setattr(os, "setxattr", lambda path, name, *arguments, **named: given.append(name))
    monkeypatch.setattr(os, function, refuses)
    (tmp_path / "module.py").write_text("old")
    replace_files({tmp_path / "module.py": b"new"})
    assert (tmp_path / "module.py").read_text() == "new"
    assert "security.ima" not in given  # it is the old content's


def test_a_copy_to_go_back_to_keeps_the_owner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the file system has no hard links."""

    def no_links(*arguments: object, **named: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def full(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "module.py"
    file.write_text("old")
    file.chmod(0o4755)
    try:
        os.chown(file, 1234, 1234)
        file.chmod(0o4755)
    except PermissionError:
        pytest.skip("only root gives files away")
    monkeypatch.setattr(os, "link", no_links)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_files({file: b"new"})
    info = file.stat()
    assert (file.read_text(), info.st_uid, info.st_gid, info.st_mode & 0o7777) == ("old", 1234, 1234, 0o4755)


@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL])
def test_a_file_of_another_user_stays_its_group_s(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A venv that a group works in: who is in it may give the file to the group, and not to its owner; or a container
    that does not know the owner."""

    def chown(path: Path, owner: int, group: int) -> None:
        if owner != -1:
            raise OSError(number, os.strerror(number))
        given.append((Path(path).name, group))

    given: list[tuple[str, int]] = []
    file = tmp_path / "module.py"
    file.write_text("old")
    file.chmod(0o4755)
    monkeypatch.setattr(os, "lchown", chown)
    replace_files({file: b"new"})
    assert (file.read_text(), file.stat().st_mode & 0o7777) == ("new", 0o755)
    assert given == [(".module.py.ddtree-new", file.stat().st_gid)]


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
