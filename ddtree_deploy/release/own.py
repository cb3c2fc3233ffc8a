"""A release's own copies of the files that it shares by hard links. Standard library only (agent-safe).

A command of the user's may open any file of the release and write into it. Where that file is a hard link, it would
write into the base venv, into a staging venv and into uv's cache as well.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from typing import Dict, List, NamedTuple, Sequence, Tuple

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.release.files import break_link, link_again
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.space import require_space

# Bytes; larger files stay shared. They are most of a release's bytes, and nearly all are shared libraries, which people
# replace and seldom edit: they are looked at after a command instead.
LARGE = 16 << 20
_EVERY = 512

_State = Tuple[int, int, int, int, int]  # what a command could change of a file in place


class LargeFile(NamedTuple):
    """A shared file of the release, by its path in it, as it was."""

    path: str
    inode: Tuple[int, int]
    state: _State


@dataclass
class Owned:
    """``files`` that got an inode of their own, their ``bytes``, and the ``large`` ones that are still shared."""

    files: int = 0
    bytes: int = 0
    large: List[LargeFile] = field(default_factory=list)


def own_files(tree: str, progress: ProgressSink) -> Owned:
    """Give every file of the release at ``tree`` that has a name outside of it, and is not large, an inode of its own.

    Files that share an inode within the release alone go on to do so. What is done already is not done again. Raises
    StepError ``no-space`` before anything is written; OSError.
    """
    done = Owned()
    doomed: List[Tuple[List[str], int]] = []
    for paths, info in _shared(tree):
        if info.st_size > LARGE:
            done.large += [LargeFile(path, _inode(info), _state(info)) for path in paths]
        else:
            doomed.append((paths, info.st_size))
    done.large.sort()
    total_bytes, total = sum(size for _, size in doomed), len(doomed)
    if not doomed:
        return done
    require_space(tree, total_bytes, "the release's own copies of the files that a command may write into need")
    for paths, size in doomed:
        first = f"{tree}/{paths[0]}"
        break_link(first, sync=False)  # all is brought to disk when the release is finished
        for path in paths[1:]:
            link_again(first, f"{tree}/{path}")
        done.files += 1
        done.bytes += size
        if done.files % _EVERY == 0:
            progress(_progress(done, total_bytes, total))
    progress(_progress(done, total_bytes, total, finished=True))
    return done


def changed_in_place(tree: str, large: List[LargeFile]) -> List[LargeFile]:
    """Those that were written into, or got another mode or owner. One that was replaced or removed is nobody else's."""
    found = []
    for file in large:
        try:
            info = os.lstat(f"{tree}/{file.path}")
        except OSError:
            continue
        if _inode(info) == file.inode and _state(info) != file.state:
            found.append(file)
    return found


def other_names(tree: str, file: LargeFile, venvs: Sequence[str], layout: Layout) -> List[str]:
    """Paths of the same inode in ``venvs``, in staging venvs and in releases other than that at ``tree``."""
    places = [os.path.realpath(venv) for venv in venvs]
    for folder in (layout.stagings, layout.releases):
        if folder.is_dir():
            places += sorted(entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False))
    names = [f"{place}/{file.path}" for place in places if place != tree]
    return [name for name in names if _is(name, file.inode)]


def _is(path: str, inode: Tuple[int, int]) -> bool:
    try:
        return _inode(os.lstat(path)) == inode
    except OSError:
        return False


def _shared(tree: str) -> List[Tuple[List[str], os.stat_result]]:
    """(its paths in ``tree``, stat) of each regular file that also has a name elsewhere."""
    found: Dict[Tuple[int, int], Tuple[List[str], os.stat_result]] = {}
    folders = [""]
    while folders:
        relative = folders.pop()
        with os.scandir(os.path.join(tree, relative)) as entries:
            for entry in entries:
                path = f"{relative}/{entry.name}" if relative else entry.name
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif entry.is_file(follow_symlinks=False):
                    info = entry.stat(follow_symlinks=False)
                    if info.st_nlink > 1:
                        found.setdefault(_inode(info), ([], info))[0].append(path)
    return [(paths, info) for paths, info in found.values() if len(paths) < info.st_nlink]


def _inode(info: os.stat_result) -> Tuple[int, int]:
    return info.st_dev, info.st_ino


def _state(info: os.stat_result) -> _State:
    return info.st_size, info.st_mtime_ns, stat.S_IMODE(info.st_mode), info.st_uid, info.st_gid


def _progress(done: Owned, total_bytes: int, total: int, finished: bool = False) -> Progress:
    message = "copying files that the release shares, before a command"
    return Progress("own", message, done.bytes, total_bytes, done.files, total, finished)
