"""The only ways this package writes into a release: new file, fsync, rename. Standard library only (agent-safe).

A file of a release may share its inode with the base venv, with a staging venv and with uv's cache. So an existing
file is never opened for writing, chmod-ed or touched; it is replaced.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from ddtree_deploy.errors import StepError

AnyPath = Union[str, "os.PathLike[str]"]
_CHUNK = 1 << 20
_NO_OWNER = (errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
_OF_CONTENT = ("security.capability", "security.ima", "security.evm")  # the kernel would drop, or not believe, them
# The file system has no such extended attributes, it is not ours to read or to set, or it is gone.
_NO_ATTRIBUTE = (errno.ENOTSUP, errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENODATA)


def replace_file(
    path: AnyPath,
    data: bytes,
    mode: Optional[int] = None,
    sync: bool = True,
    attributes: Sequence[Tuple[str, bytes]] = (),
) -> None:
    """Put a new file with ``data`` at ``path`` by rename. Whatever was there keeps its inode, so hard links of it
    elsewhere stay as they are. ``mode``: permission bits; by default those of the file replaced, else 0644. The
    owner of the file replaced is kept where we may. ``sync``: bring it to disk before the rename. ``attributes``:
    extended ones that the new file gets where we may. Raises OSError; a temporary file is then gone again."""
    target = os.fspath(path)
    folder = os.path.dirname(target) or "."
    before: Optional[os.stat_result] = None
    with contextlib.suppress(FileNotFoundError):
        before = os.lstat(target)
    regular = before is not None and stat.S_ISREG(before.st_mode)
    if mode is None:
        mode = stat.S_IMODE(before.st_mode) if before is not None and regular else 0o644
    make_writable(folder)
    descriptor, temporary = tempfile.mkstemp(prefix=".ddtree-", suffix=".tmp", dir=folder)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            if before is not None and os.geteuid() == 0:
                mode &= ~take_owner(before, stream.fileno())
            # After the writing and chown, which drop file capabilities; before a mode that may forbid it.
            set_attributes(temporary, attributes)
            os.fchmod(stream.fileno(), mode)
            if sync:
                os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def break_link(path: AnyPath, sync: bool = True) -> bool:
    """Give ``path`` an inode of its own, with the same bytes, mode, times and, where we may, extended attributes (file
    capabilities, ACLs). False if it already had one. ``sync``: see :func:`replace_file`."""
    before = os.lstat(path)
    if not stat.S_ISREG(before.st_mode) or before.st_nlink == 1:
        return False
    with open(path, "rb") as stream:
        replace_file(path, stream.read(), stat.S_IMODE(before.st_mode), sync, attributes_of(path))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return True


def take_owner(status: os.stat_result, file: Union[int, AnyPath]) -> int:
    """Give ``file``, a descriptor or a path (of a link: the link), the owner and group of ``status``, or the group
    alone, or neither: who is not root may not, nor root on a share that makes it nobody, or in a container that the
    owner is unknown in. Returns the bits of a mode that the file must not get then: to run as us is not what its
    setuid bit said."""
    for owner in (status.st_uid, -1):
        try:
            if isinstance(file, int):
                os.fchown(file, owner, status.st_gid)
            else:
                os.lchown(file, owner, status.st_gid)
            return 0 if owner == status.st_uid else stat.S_ISUID
        except OSError as error:
            if error.errno not in _NO_OWNER:
                raise
    return stat.S_ISUID | stat.S_ISGID


def attributes_of(path: AnyPath, other_content: bool = False) -> List[Tuple[str, bytes]]:
    """The extended attributes of ``path`` that we may read, POSIX ACLs among them. ``other_content``: without those
    that speak of its bytes, because they are for a file that has others."""
    found: List[Tuple[str, bytes]] = []
    with _attributes_as_far_as_possible():
        for name in os.listxattr(path, follow_symlinks=False):
            if other_content and name in _OF_CONTENT:
                continue
            with _attributes_as_far_as_possible():
                found.append((name, os.getxattr(path, name, follow_symlinks=False)))
    return found


def set_attributes(path: AnyPath, attributes: Sequence[Tuple[str, bytes]]) -> None:
    """Give ``path`` the extended ``attributes`` that it may be given."""
    for name, value in attributes:
        with _attributes_as_far_as_possible():
            os.setxattr(path, name, value, follow_symlinks=False)


@contextlib.contextmanager
def _attributes_as_far_as_possible() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTE:
            raise


def link_again(source: AnyPath, path: AnyPath) -> None:
    """Make ``path`` another name of ``source``."""
    target = os.fspath(path)
    folder = os.path.dirname(target) or "."
    make_writable(folder)
    temporary = os.path.join(folder, f".ddtree-{os.getpid()}.tmp")
    remove_file(temporary)
    os.link(source, temporary)
    os.replace(temporary, target)


def make_writable(folder: str) -> None:
    """Let the owner write into ``folder`` (one of a release of ours; folders are never shared)."""
    if not os.access(folder, os.W_OK):
        os.chmod(folder, stat.S_IMODE(os.stat(folder).st_mode) | 0o700)


def make_folders(path: AnyPath) -> None:
    """``mkdir -p`` that also works under a folder without the write bit."""
    target = os.fspath(path)
    if os.path.isdir(target):
        return
    parent = os.path.dirname(target)
    if parent and parent != target:
        make_folders(parent)
        make_writable(parent)
    os.makedirs(target, exist_ok=True)


def remove_file(path: AnyPath) -> bool:
    """Unlink ``path`` (a file or symlink); False if nothing was there."""
    target = os.fspath(path)
    try:
        os.unlink(target)
    except FileNotFoundError:
        return False
    except PermissionError:
        make_writable(os.path.dirname(target))
        os.unlink(target)
    return True


def remove_tree(path: AnyPath) -> None:
    """Remove a folder and all below it, never following symlinks; folders without the write bit too."""
    target = os.fspath(path)
    if os.path.islink(target) or not os.path.isdir(target):
        remove_file(target)
        return

    def open_up(function: Callable[..., Any], name: str, info: Any) -> None:
        kind = info[0]
        if issubclass(kind, FileNotFoundError):
            return
        if not issubclass(kind, PermissionError):
            raise info[1]
        make_writable(os.path.dirname(name))
        if os.path.isdir(name) and not os.path.islink(name):
            make_writable(name)
            remove_tree_again(name)
        else:
            os.unlink(name)

    def remove_tree_again(name: str) -> None:
        with os.scandir(name) as entries:
            for entry in list(entries):
                remove_tree(entry.path)
        os.rmdir(name)

    # What a killed run started may still write for a moment, until the kernel has ended it too.
    for pause in (0.1, 0.4, 1.5, 3.0, None):
        try:
            shutil.rmtree(target, onerror=open_up)
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or pause is None:
                raise
            time.sleep(pause)


def file_states(tree: str, folder: str) -> Dict[str, Tuple[int, int, int]]:
    """Path relative to ``tree`` -> inode, size and time of change of each file below ``folder``; byte code left out."""
    found = {}
    for place, folders, names in os.walk(f"{tree}/{folder}"):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for name in names:
            info = os.lstat(f"{place}/{name}")
            found[f"{place[len(tree) + 1 :]}/{name}"] = (info.st_ino, info.st_size, info.st_mtime_ns)
    return found


def leads_out(path: AnyPath, root: str) -> bool:
    """Whether the symlink ``path`` ends outside of the folder ``root`` (a real path), at a file or at nothing: one that
    an installer made instead of a file, into its cache. Links to folders outside are somebody's checkout."""
    real = os.path.realpath(path)
    return not real.startswith(root + "/") and not os.path.isdir(real)


def sync_folder(path: AnyPath) -> None:
    """fsync a folder, so that a rename in it survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:  # some network file systems refuse to sync a folder
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def sha256_file(path: AnyPath) -> str:
    """Hex sha256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        for chunk in iter(lambda: stream.read(_CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def record_hash(data: bytes) -> str:
    """``sha256=...`` as RECORD files write it (PEP 376, urlsafe base64 without padding)."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode("ascii")


def record_hash_file(path: AnyPath) -> Tuple[str, int]:
    """``record_hash`` and size of a file on disk."""
    return recorded_form(sha256_file(path)), os.stat(path).st_size


def recorded_form(sha256: str) -> str:
    """``sha256=...`` of a hex digest."""
    return "sha256=" + base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode("ascii")


def shown(path: AnyPath) -> str:
    """``path`` for messages: bytes that are no UTF-8 and control characters are escaped."""
    text = os.fsencode(path).decode("utf-8", "backslashreplace")
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


class InsideCheck:
    """Refuses to work through a folder that leads out of a release, such as a symlink to somebody's checkout."""

    def __init__(self, root: AnyPath) -> None:
        self._root = os.path.realpath(root)
        self._known: dict[str, bool] = {}

    def holds(self, path: str) -> bool:
        """Whether the folder that ``path`` (file or symlink, existing or not) is in really lies in the release."""
        folder = os.path.dirname(path)
        known = self._known.get(folder)
        if known is None:
            real = os.path.realpath(folder)
            known = real == self._root or real.startswith(self._root + "/")
            self._known[folder] = known
        return known

    def require(self, path: str) -> None:
        if not self.holds(path):
            folder = shown(os.path.dirname(path))
            raise StepError(
                "outside-release",
                f"{folder} leads out of the release to {shown(os.path.realpath(folder))}; nothing is written there",
                where=folder,
                hint="replace the symlink in the base venv with a regular install of the package",
            )
