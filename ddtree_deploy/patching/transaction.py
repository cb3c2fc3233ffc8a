"""Replace several files so that either all are replaced or none is. Standard library only (agent-safe).

A file is never opened for writing: its new content is written beside it, synced and renamed over it, so that other
hard links of the old file (the base venv, a package cache) keep the old content.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import stat
from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Optional

from ddtree_deploy.errors import LockedError
from ddtree_deploy.release.files import attributes_of, set_attributes, sync_folder, take_owner

NEW_SUFFIX = ".ddtree-new"
OLD_SUFFIX = ".ddtree-old"
_DEFAULT_MODE = 0o644
_ACL = "system.posix_acl_access"


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep others out of ``folder`` who ask in this way, too: a flock on the folder itself, so that nothing is left
    there, and which ends with its process. Raises LockedError ``locked``."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:  # others: network file systems that cannot lock a folder; there it goes without
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise LockedError(
                    "locked",
                    f"{folder} is locked by another run",
                    where=str(folder),
                    hint="wait until it is done; the lock ends with its process",
                ) from None
        yield
    finally:
        os.close(descriptor)


class NotRestored(OSError):
    """A change failed half-way, and ``paths`` could not be put back to what they were."""

    def __init__(self, cause: OSError, paths: List[Path]) -> None:
        super().__init__(cause.errno, cause.strerror, cause.filename)
        self.paths = paths


def replace_files(changes: Dict[Path, Optional[bytes]], known: Iterable[Path] = ()) -> None:
    """Give every path its new content; None deletes it. Raises OSError with everything as it was before, or
    NotRestored.

    A new file gets mode 0644; a replaced one keeps its mode and, where we may, its owner and extended attributes
    (ACLs). Missing parent folders are made; folders that are empty
    after a deletion are removed. Leftovers of an earlier, killed run are cleared first, also those of ``known``, files
    that such a run may have been about to change.
    """
    for path in {**changes, **dict.fromkeys(known)}:
        _clear_leftovers(path)
    made: List[Path] = []
    kept: Dict[Path, bool] = {}
    try:
        for path, content in changes.items():
            if content is not None:
                made.extend(_make_parents(path.parent))
                _write_new(path, content)
        for path, content in changes.items():
            kept[path] = _keep_old(path)
            if content is None:
                path.unlink()
            else:
                _beside(path, NEW_SUFFIX).replace(path)
        for folder in sorted({path.parent for path in changes}):
            with contextlib.suppress(FileNotFoundError):  # its last file was deleted
                sync_folder(folder)
    except BaseException as error:
        stuck = _restore(changes, kept, made)
        if stuck and isinstance(error, OSError):
            raise NotRestored(error, stuck) from error
        raise
    for path in changes:
        with contextlib.suppress(OSError):  # it is done; the next run clears it
            _clear_leftovers(path)
    for path, content in changes.items():
        if content is None:
            remove_empty(path.parent)


def drop_bytecode(source: Path) -> None:
    """Remove the compiled files of module ``source`` from its ``__pycache__``. Raises OSError."""
    if source.suffix != ".py":
        return
    for compiled in source.parent.joinpath("__pycache__").glob(f"{glob.escape(source.stem)}.*.pyc"):
        if compiled.is_symlink() or not compiled.is_dir():
            compiled.unlink()


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}{suffix}")


def _clear_leftovers(path: Path) -> None:
    for suffix in (NEW_SUFFIX, OLD_SUFFIX):
        if os.path.lexists(_beside(path, suffix)):  # asked first: a read-only file system refuses before it looks
            _beside(path, suffix).unlink()


def _make_parents(folder: Path) -> List[Path]:
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for part in reversed(missing):
        part.mkdir()
    return list(reversed(missing))


def _write_new(path: Path, content: bytes) -> None:
    new = _beside(path, NEW_SUFFIX)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    try:
        status = path.stat()
    except FileNotFoundError:
        new.chmod(_DEFAULT_MODE)
        return
    lost = take_owner(status, new)
    _take_attributes(path.resolve(), new)
    new.chmod(stat.S_IMODE(status.st_mode) & ~lost)


def _take_attributes(old: Path, new: Path) -> None:
    """Give ``new``, whose mode is set afterwards, the extended attributes of ``old``, which has other content."""
    attributes = attributes_of(old, other_content=True)
    if _ACL not in dict(attributes):  # what a default ACL of the folder gave the new file, the old one did not have
        with contextlib.suppress(OSError):
            os.removexattr(new, _ACL)
    set_attributes(new, attributes)


def _keep_old(path: Path) -> bool:
    """Give the old file a second name to go back to: the same inode where the file system can, else a copy.

    False where there is no old file.
    """
    old = _beside(path, OLD_SUFFIX)
    try:
        os.link(path, old, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        shutil.copy2(path, old, follow_symlinks=False)  # extended attributes too, but no owner
        status = path.lstat()
        lost = take_owner(status, old)
        if not stat.S_ISLNK(status.st_mode):
            old.chmod(stat.S_IMODE(status.st_mode) & ~lost)  # chown may have dropped bits of it
    return True


def _restore(changes: Dict[Path, Optional[bytes]], kept: Dict[Path, bool], made: List[Path]) -> List[Path]:
    """Put back what was changed, each file whatever became of the others; returns those that could not be."""
    stuck = []
    for path in reversed(list(kept)):
        # Asked of the files, for an interruption may come between a change and any note of it.
        waits = path if changes[path] is None else _beside(path, NEW_SUFFIX)
        if os.path.lexists(waits):
            continue
        try:
            if kept[path]:
                _beside(path, OLD_SUFFIX).replace(path)
            else:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
        except OSError:
            stuck.append(path)
    for path in changes:
        with contextlib.suppress(OSError):
            _clear_leftovers(path)
    for folder in reversed(made):
        with contextlib.suppress(OSError):
            folder.rmdir()
    return stuck


def remove_empty(folder: Path) -> None:
    """Remove ``folder``, where it is there and empty but for an empty ``__pycache__``, and so on upwards."""
    while not folder.is_dir():
        folder = folder.parent
    with contextlib.suppress(OSError):
        while True:
            cache = folder / "__pycache__"
            if cache.is_dir() and not any(cache.iterdir()):
                cache.rmdir()
            folder.rmdir()  # fails, and so ends the walk, at the first folder that holds something
            folder = folder.parent
