"""The files of an environment as the audit sees them: logical paths, and where the bytes really are.

A tree is scanned from disk (``scan``), or put together from several (``overlay``, ``without``) to audit a mix that does
not exist yet. Paths are POSIX, absolute and logical: what the file will be called in the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG
from typing import Dict, Iterable, List, NamedTuple, Optional, Set, Tuple


class Entry(NamedTuple):
    """A file: where its bytes are, size in bytes, and the identity that caches use."""

    real: str
    size: int
    mtime_ns: int
    device: int
    inode: int


@dataclass
class Tree:
    """``files`` by logical path; ``aliases`` are folder symlinks inside the tree (``lib64`` -> ``lib``)."""

    files: Dict[str, Entry] = field(default_factory=dict)
    aliases: Dict[str, str] = field(default_factory=dict)
    broken: List[str] = field(default_factory=list)  # symlinks that lead nowhere
    roots: List[str] = field(default_factory=list)
    unreadable: List[str] = field(default_factory=list)
    special: List[str] = field(default_factory=list)  # pipes, sockets, devices: to open one may wait forever

    def find(self, path: str) -> Optional[Entry]:
        """The entry at a logical path, also through a folder alias."""
        entry = self.files.get(path)
        if entry is None:
            for alias, target in self.aliases.items():
                if path.startswith(alias + "/"):
                    return self.files.get(target + path[len(alias) :])
        return entry

    def covers(self, path: str) -> bool:
        """Whether ``path`` lies in a scanned folder, so that a path not found there does not exist."""
        folders = [*self.roots, *self.aliases]
        return any(path.startswith(root + "/") for root in folders)

    def without(self, paths: Iterable[str]) -> Tree:
        """The tree after these files are removed."""
        gone = set(paths)
        return replace(
            self,
            files={path: entry for path, entry in self.files.items() if path not in gone},
            broken=[path for path in self.broken if path not in gone],
            special=[path for path in self.special if path not in gone],
        )

    def overlay(self, files: Dict[str, Entry]) -> Tree:
        """The tree after these files are written over it."""
        return replace(
            self,
            files={**self.files, **files},
            broken=[path for path in self.broken if path not in files],
            special=[path for path in self.special if path not in files],
        )


def scan(roots: Iterable[str]) -> Tree:
    """All files below ``roots``, following symlinks once; folders named ``__pycache__`` are left out."""
    tree = Tree()
    for root in roots:
        same = next((other for other in tree.roots if os.path.realpath(other) == os.path.realpath(root)), None)
        if same is not None:  # lib64 is a link to lib
            tree.aliases[root] = same
            continue
        tree.roots.append(root)
        _scan_root(tree, root)
    return tree


def entry_of(path: str) -> Entry:
    """The entry of a file on disk, symlinks followed; raises OSError."""
    stat = Path(path).stat()
    return Entry(path, stat.st_size, stat.st_mtime_ns, stat.st_dev, stat.st_ino)


def _scan_root(tree: Tree, root: str) -> None:
    seen: Set[Tuple[int, int]] = set()
    folders = [root]
    while folders:
        folder = folders.pop()
        try:
            entries = list(os.scandir(folder))
        except OSError:
            tree.unreadable.append(folder)
            continue
        for entry in entries:
            try:
                if entry.is_dir():
                    if entry.name == "__pycache__":
                        continue
                    if entry.is_symlink():
                        stat = entry.stat()
                        if (stat.st_dev, stat.st_ino) in seen:
                            continue
                        seen.add((stat.st_dev, stat.st_ino))
                    folders.append(entry.path)
                    continue
                stat = entry.stat()
            except OSError:
                tree.broken.append(entry.path)
                continue
            if not S_ISREG(stat.st_mode):
                tree.special.append(entry.path)
                continue
            tree.files[entry.path] = Entry(entry.path, stat.st_size, stat.st_mtime_ns, stat.st_dev, stat.st_ino)
