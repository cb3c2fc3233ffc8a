"""Hashes of files that were read once, kept by the files' identity. Standard library only (agent-safe).

A file is known again by device, inode, size and time of change of its content. Hard links of it are the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from typing import Callable, Dict, List, Optional

CHUNK = 1 << 20
_LIMIT = 400_000  # entries kept; a full environment has 70,000 files


class HashCache:
    """``path``: the file that keeps the hashes between runs, or None; one that cannot be read is made anew."""

    def __init__(self, path: Optional[str] = None) -> None:
        self._path = path
        self._known: Dict[str, List[object]] = _load(path) if path else {}  # "device:inode" -> [size, mtime_ns, sha256]
        self._changed = False
        self.read_bytes = 0  # what had to be read, in bytes

    def known(self, path: str, info: Optional[os.stat_result] = None) -> Optional[str]:
        """The file's hex sha256 if it was read before and is the same since."""
        info = info or os.stat(path)
        entry = self._known.get(f"{info.st_dev}:{info.st_ino}")
        if entry is None or entry[:2] != [info.st_size, info.st_mtime_ns]:
            return None
        return str(entry[2])

    def sha256(self, path: str, on_bytes: Callable[[int], None] = lambda count: None) -> str:
        """The file's hex sha256; ``on_bytes`` is told of what is read. Raises OSError."""
        with open(path, "rb") as stream:
            info = os.fstat(stream.fileno())
            known = self.known(path, info)
            if known is not None:
                return known
            digest = hashlib.sha256()
            for chunk in iter(lambda: stream.read(CHUNK), b""):
                digest.update(chunk)
                self.read_bytes += len(chunk)
                on_bytes(len(chunk))
            after = os.fstat(stream.fileno())
        if (info.st_size, info.st_mtime_ns) == (after.st_size, after.st_mtime_ns):
            self.remember(info, digest.hexdigest())
        return digest.hexdigest()

    def remember(self, info: os.stat_result, sha256: str) -> None:
        """``sha256`` is that of the file that ``info`` is about."""
        self._known[f"{info.st_dev}:{info.st_ino}"] = [info.st_size, info.st_mtime_ns, sha256]
        self._changed = True

    def save(self) -> None:
        """Keep what is known; a cache that cannot be written is no error."""
        if self._path is None or not self._changed:
            return
        newest = list(self._known.items())[-_LIMIT:]
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(self._path), mode=0o755, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(prefix=".hashes-", dir=os.path.dirname(self._path))
            try:
                with os.fdopen(descriptor, "w", encoding="ascii") as stream:
                    json.dump(dict(newest), stream, separators=(",", ":"))
                os.replace(temporary, self._path)
            except BaseException:
                os.unlink(temporary)
                raise
        self._changed = False


def user_cache() -> Optional[str]:
    """Where a user without a root of ours keeps hashes; None where there is no such place."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(home, "ddtree-deploy", "hashes.json") if os.path.isabs(home) else None


def _load(path: str) -> Dict[str, List[object]]:
    try:
        with open(path, encoding="ascii") as stream:
            data = json.load(stream)
        return {str(key): list(value) for key, value in data.items() if len(value) == 3}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
