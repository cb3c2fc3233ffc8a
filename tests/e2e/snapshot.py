"""What a folder is, to the byte: to show that it was not touched."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

Entry = tuple[str, int, int, str]  # kind, mode, link count, sha256 or link target


def snapshot(folder: Path) -> dict[str, Entry]:
    """Relative path -> entry, of everything below ``folder`` and itself."""
    found: dict[str, Entry] = {}
    for path in [folder, *walk(folder)]:
        info = path.lstat()
        content = ""
        if stat.S_ISLNK(info.st_mode):
            content = str(path.readlink())
        elif stat.S_ISREG(info.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        links = info.st_nlink if stat.S_ISREG(info.st_mode) else 0
        found[str(path.relative_to(folder))] = (oct(stat.S_IFMT(info.st_mode)), info.st_mode, links, content)
    return found


def without_links(entries: dict[str, Entry]) -> dict[str, Entry]:
    """The same without link counts."""
    return {path: (kind, mode, 0, content) for path, (kind, mode, _, content) in entries.items()}


def walk(folder: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(folder):
        for entry in [*folders, *files]:
            yield Path(name, entry)


def mentions(folder: Path, words: list[str], shared_with: Path | None = None) -> list[str]:
    """Files and links below ``folder`` in which one of ``words`` is found; files that are the same inode as one below
    ``shared_with`` are not read."""
    known = {(info.st_dev, info.st_ino) for info in map(os.lstat, walk(shared_with))} if shared_with else set()
    needles = [word.encode() for word in words]
    found = []
    for path in walk(folder):
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            content = os.fsencode(path.readlink())
        elif stat.S_ISREG(info.st_mode) and (info.st_dev, info.st_ino) not in known:
            content = path.read_bytes()
        else:
            continue
        found += [f"{path}: {needle.decode()}" for needle in needles if needle in content]
    return found
