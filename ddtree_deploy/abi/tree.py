"""The files of an environment as the audit sees them: logical paths, and where the bytes really are.

A tree is scanned from disk (``scan``), or put together from several (``overlay``, ``without``) to audit a mix that does
not exist yet. Paths are POSIX, absolute and logical: what the file will be called in the environment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG
from typing import Dict, Iterable, List, NamedTuple, Optional, Tuple

_PSEUDO = ("/proc", "/sys", "/dev")


class Entry(NamedTuple):
    """A file: where its bytes are, size in bytes, and the identity that caches use."""

    real: str
    size: int
    mtime_ns: int
    device: int
    inode: int


@dataclass
class Tree:
    """``files`` by logical path; ``aliases`` are further names of its folders (``lib64`` -> ``lib``)."""

    files: Dict[str, Entry] = field(default_factory=dict)
    aliases: Dict[str, str] = field(default_factory=dict)
    broken: List[str] = field(default_factory=list)  # symlinks that lead nowhere
    roots: List[str] = field(default_factory=list)
    unreadable: List[str] = field(default_factory=list)
    special: List[str] = field(default_factory=list)  # pipes, sockets, devices: to open one may wait forever
    outside: Dict[str, str] = field(default_factory=dict)  # folder links that were not followed -> their targets

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
        if any(path.startswith(link + "/") for link in self.outside):
            return False
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


def scan(roots: Iterable[str], home: Optional[str] = None) -> Tree:
    """All files below ``roots``, each real folder once; folders named ``__pycache__`` are left out.

    A linked folder is followed inside of ``roots`` and ``home`` (the venv's prefix), and outside of them only where it
    is an installed package; other links are kept as ``outside``, so that no link makes the audit read a whole disk.
    """
    tree = Tree()
    walk = _Walk(tree, home)
    for root in roots:
        same = next((other for other in tree.roots if os.path.realpath(other) == os.path.realpath(root)), None)
        if same is not None:  # lib64 is a link to lib
            tree.aliases[root] = same
            continue
        tree.roots.append(root)
        walk.homes.append(os.path.realpath(root))
        walk.below(root)
    walk.follow_links()
    return tree


def entry_of(path: str) -> Entry:
    """The entry of a file on disk, symlinks followed; raises OSError."""
    stat = Path(path).stat()
    return Entry(path, stat.st_size, stat.st_mtime_ns, stat.st_dev, stat.st_ino)


class _Walk:
    """Links come last, so that a folder has its own path and not that of a link to it."""

    def __init__(self, tree: Tree, home: Optional[str]) -> None:
        self._tree = tree
        self.homes = [os.path.realpath(home)] if home and os.path.realpath(home) != "/" else []
        self._seen: Dict[Tuple[int, int], str] = {}
        self._links: List[str] = []
        self._pseudo = {Path(name).stat().st_dev for name in _PSEUDO if os.path.ismount(name)}

    def below(self, root: str) -> None:
        folders = [root]
        while folders:
            folder = folders.pop()
            try:
                stat = Path(folder).stat()
                key = (stat.st_dev, stat.st_ino)
                if key in self._seen:
                    self._tree.aliases[folder] = self._seen[key]
                    continue
                if stat.st_dev in self._pseudo:
                    self._tree.outside[folder] = os.path.realpath(folder)
                    continue
                self._seen[key] = folder
                entries = list(os.scandir(folder))
            except OSError:
                self._tree.unreadable.append(folder)
                continue
            folders += [entry.path for entry in entries if self._is_folder(entry)]

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        """Whether to go on there; files and links are noted."""
        try:
            if entry.is_dir():
                if entry.name == "__pycache__":
                    return False
                if entry.is_symlink():
                    self._links.append(entry.path)
                    return False
                return True
            stat = entry.stat()
        except OSError:
            self._tree.broken.append(entry.path)
            return False
        if S_ISREG(stat.st_mode):
            self._tree.files[entry.path] = Entry(entry.path, stat.st_size, stat.st_mtime_ns, stat.st_dev, stat.st_ino)
        else:
            self._tree.special.append(entry.path)
        return False

    def follow_links(self) -> None:
        while self._links:
            link = self._links.pop(0)
            target = os.path.realpath(link)
            if not any(target == home or target.startswith(home + "/") for home in self.homes):
                if not _is_package(target):
                    self._tree.outside[link] = target
                    continue
                self.homes.append(target)
            self.below(link)


def _is_package(folder: str) -> bool:
    """What installers link to: a package (flit install --symlink), metadata, or a part of another site folder (Nix)."""
    parts = Path(folder).parts
    if parts[1:2] in [(name[1:],) for name in _PSEUDO[:2]]:
        return False
    below_site = any(name in parts[:-1] for name in ("site-packages", "dist-packages"))
    return below_site or folder.endswith((".dist-info", ".egg-info")) or Path(folder, "__init__.py").is_file()
