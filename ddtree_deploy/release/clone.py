"""Copying a venv's tree by reflink, hard link or plain copy. Standard library only (agent-safe).

57,000 files are linked in a second or two, so the loop works on strings and ``os.scandir`` alone. Nothing of the
source is opened for writing, and byte code is left out: it names its source's path.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
from dataclasses import dataclass, field
from typing import Dict, List, Tuple

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.errors import DriftError, StepError
from ddtree_deploy.release.files import remove_file, shown, take_owner
from ddtree_deploy.release.space import is_full

METHODS = ("reflink", "hardlink", "copy")
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)
# A single file may refuse to be linked: the inode has 65,000 links (ext4), or it is not ours (protected_hardlinks).
_LINK_REFUSED = {errno.EPERM, errno.EACCES, errno.EXDEV, errno.EMLINK, errno.EOPNOTSUPP, errno.ENOTSUP}
_EVERY = 1024  # files between two progress reports


@dataclass
class Cloned:
    """What a clone did. Paths are relative to the tree. ``files``: (path, size) of every regular file; ``folders``:
    path and the source's lstat, parents first; ``counts``: files by the method that was used in the end."""

    files: List[Tuple[str, int]] = field(default_factory=list)
    folders: List[Tuple[str, os.stat_result]] = field(default_factory=list)
    symlinks: int = 0
    outward: List[Tuple[str, str]] = field(default_factory=list)  # symlinks that leave the tree, and their targets
    skipped: List[str] = field(default_factory=list)  # sockets, pipes and devices
    counts: Dict[str, int] = field(default_factory=dict)
    bytes: int = 0


def choose_method(source_file: str, folder: str) -> str:
    """The best of METHODS that really works from ``source_file`` into ``folder``. It is tried out: st_dev alone does
    not say, bind mounts of one file system refuse links between them."""
    probe = os.path.join(folder, f".ddtree-probe-{os.getpid()}")
    remove_file(probe)
    try:
        for method in ("reflink", "hardlink"):
            try:
                if method == "reflink":
                    _reflink(source_file, probe)
                else:
                    os.link(source_file, probe)
                return method
            except OSError:
                continue
            finally:
                remove_file(probe)
    finally:
        remove_file(probe)
    return "copy"


class Copier:
    """Places single files by ``method``, falling back to a copy where one file refuses to be linked."""

    def __init__(self, method: str) -> None:
        self.method = method
        self.counts: Dict[str, int] = dict.fromkeys(METHODS, 0)
        self._seen: Dict[Tuple[int, int], str] = {}
        self._root = os.geteuid() == 0

    def place(self, source: str, target: str, info: os.stat_result) -> None:
        """``target`` must not exist. Keeps mode, times, owner (as root) and hard links among the placed files."""
        if self.method == "hardlink":
            try:
                os.link(source, target)
                self.counts["hardlink"] += 1
                return
            except OSError as error:
                if error.errno not in _LINK_REFUSED:
                    raise
        if info.st_nlink > 1:
            first = self._seen.setdefault((info.st_dev, info.st_ino), target)
            if first is not target:
                os.link(first, target)
                self.counts["hardlink"] += 1
                return
        used = "copy"
        if self.method == "reflink":
            try:
                _reflink(source, target)
                used = "reflink"
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise
                remove_file(target)
        if used == "copy":
            shutil.copyfile(source, target)
        lost = take_owner(info, target) if self._root else 0
        os.chmod(target, stat.S_IMODE(info.st_mode) & ~lost)
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
        self.counts[used] += 1


def clone_tree(
    source: str,
    target: str,
    method: str,
    progress: ProgressSink,
    *,
    total_files: int = 0,
    total_bytes: int = 0,
    leave_out: Tuple[str, ...] = (),
) -> Cloned:
    """Clone the folder ``source`` to ``target``, which must not exist. ``leave_out``: names at the top level.

    Folders get their modes and times only from :func:`finish_folders`, when all has been written into them. Raises
    DriftError when files vanish meanwhile, StepError ``no-space`` and ``unreadable``.
    """
    done = Cloned()
    copier = Copier(method)
    done.counts = copier.counts
    stack = [""]
    try:
        while stack:
            relative = stack.pop()
            here = os.path.join(source, relative) if relative else source
            there = os.path.join(target, relative) if relative else target
            os.mkdir(there, 0o700)
            done.folders.append((relative, os.lstat(here)))
            with os.scandir(here) as entries:
                for entry in entries:
                    name = entry.name
                    path = f"{relative}/{name}" if relative else name
                    if entry.is_symlink():
                        _clone_symlink(entry.path, f"{there}/{name}", path, done)
                    elif entry.is_dir():
                        if name != "__pycache__" and (relative or name not in leave_out):
                            stack.append(path)
                    elif entry.is_file():
                        info = entry.stat()
                        copier.place(entry.path, f"{there}/{name}", info)
                        done.files.append((path, info.st_size))
                        done.bytes += info.st_size
                        if len(done.files) % _EVERY == 0:
                            progress(_progress(done, total_files, total_bytes))
                    else:
                        done.skipped.append(path)
    except FileNotFoundError as error:
        raise DriftError(
            "base-changed",
            f"{shown(error.filename or source)} vanished while the base venv was being cloned",
            where=source,
            hint="let no installer run in the base venv, then provision again",
        ) from error
    except OSError as error:
        raise clone_error(error, source, target, total_bytes - done.bytes) from error
    progress(_progress(done, total_files, total_bytes, finished=True))
    return done


def finish_folders(target: str, folders: List[Tuple[str, os.stat_result]]) -> None:
    """Give the clone's folders the modes, owners and times of the source's."""
    as_root = os.geteuid() == 0
    for relative, info in reversed(folders):
        path = os.path.join(target, relative) if relative else target
        lost = take_owner(info, path) if as_root else 0
        os.chmod(path, stat.S_IMODE(info.st_mode) & ~lost)
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def clone_error(error: OSError, source: str, target: str, missing: int) -> StepError:
    """The StepError for an OSError met while files were placed; ``missing``: bytes still to come, as far as known."""
    if is_full(error):
        return _no_space(error, source, target, max(missing, 0))
    name = shown(error.filename) if error.filename else source
    if error.errno in (errno.EACCES, errno.EPERM):
        return StepError(
            "unreadable",
            f"cannot read or place {name}: {error.strerror}",
            where=name,
            hint="run as the owner of the base venv or as root",
        )
    return StepError("file-error", f"{name}: {error.strerror}", where=name)


def _no_space(error: OSError, source: str, target: str, missing: int) -> StepError:
    disk = os.statvfs(os.path.dirname(target))
    free = disk.f_bavail * disk.f_frsize
    hint = (
        "free some space (`ddtree-deploy prune HOST --keep 1`), or put the root on the base venv's file "
        "system, where files are linked and need none"
    )
    if error.errno == errno.EDQUOT:
        what = "the user's disk quota is used up"
    elif disk.f_files and not disk.f_favail:  # 0 of 0: a file system that has them without limit
        what = f"the file system has no inodes left for files and folders, though {free:,} bytes are free"
        hint = "remove files there (`ddtree-deploy prune HOST --keep 1`), or put the root on another file system"
    elif missing:
        what = f"about {missing:,} more bytes are needed, {free:,} are free"
    else:
        what = f"{free:,} bytes are free"
    return StepError(
        "no-space",
        f"no space left while copying {source}: {what}",
        where=target,
        hint=hint,
        details={"free_bytes": free, "free_inodes": disk.f_favail, "missing_bytes": missing},
    )


def _clone_symlink(source: str, target: str, path: str, done: Cloned) -> None:
    """Symlinks are made as they are; those that must change are handled when the clone is moved to its new path."""
    destination = os.readlink(source)
    os.symlink(destination, target)
    info = os.lstat(source)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)
    if os.geteuid() == 0:
        take_owner(info, target)
    done.symlinks += 1
    if os.path.isabs(destination) or os.path.normpath(os.path.join(os.path.dirname(path), destination)).startswith(
        ".."
    ):
        done.outward.append((path, destination))


def _reflink(source: str, target: str) -> None:
    with open(source, "rb") as reader, open(target, "xb") as writer:
        fcntl.ioctl(writer.fileno(), _FICLONE, reader.fileno())


def _progress(done: Cloned, total_files: int, total_bytes: int, finished: bool = False) -> Progress:
    return Progress(
        "clone",
        "cloning the base venv",
        done_bytes=done.bytes,
        total_bytes=total_bytes or None,
        done_files=len(done.files),
        total_files=total_files or None,
        finished=finished,
    )
