"""Remembers what was read of files, by their identity: device, inode, size and time of change.

Hard links share their entry, so that a clone of an audited environment is known already. The cache is a JSON file; one
that is missing, damaged or of another version is as good as none, and a folder that cannot be written is no error.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any, Callable, Dict, Optional, TypeVar

from ddtree_deploy import __version__
from ddtree_deploy.abi.tree import Entry
from ddtree_deploy.release.layout import Layout

T = TypeVar("T")

FORMAT = f"1:{__version__}"  # raise the number when a reader finds more in a file than before
_LIMIT = 60_000  # entries; those that the last audit did not use go first


def cache_folder(root: Optional[str]) -> str:
    """Where audits keep their cache: under the root where there is one."""
    if root:
        return str(Layout(root).root / "cache" / "abi")
    return str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ddtree-deploy/abi")


class Cache:
    """``folder`` None remembers for this audit only."""

    def __init__(self, folder: Optional[str] = None) -> None:
        self._path = Path(folder, "files.json") if folder else None
        self._entries: Dict[str, Dict[str, Any]] = {}
        self._used: Dict[str, Dict[str, Any]] = {}
        self._changed = False
        if self._path is not None:
            self._entries = _load(self._path)

    def get(self, entry: Optional[Entry], kind: str, read: Callable[[], T], scope: str = "") -> T:
        """What ``read`` gave for this file before, else what it gives now (a JSON value; errors are not kept).

        ``scope`` names what else the value depends on; a value of another scope is read again.
        """
        if entry is None:
            return read()
        key = f"{entry.device}:{entry.inode}:{entry.size}:{entry.mtime_ns}"
        values = self._used.get(key)
        if values is None:
            values = self._used[key] = self._entries.get(key, {})
        known = values.get(kind)
        if known is None or known[0] != scope:
            known = values[kind] = [scope, read()]
            self._changed = True
        value: T = known[1]
        return value

    def save(self) -> None:
        """Write what is new; quietly without effect where that is not possible."""
        if self._path is None or not self._changed:
            return
        kept = dict(self._used)
        for key, values in self._entries.items():
            if len(kept) >= _LIMIT:
                break
            kept.setdefault(key, values)
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=self._path.parent, prefix=".files-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as stream:
                    json.dump({"format": FORMAT, "entries": kept}, stream, separators=(",", ":"))
                Path(temporary).replace(self._path)
            except BaseException:
                Path(temporary).unlink()
                raise
        self._changed = False


def _load(path: Path) -> Dict[str, Dict[str, Any]]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("entries"), dict):
        return {}
    return {key: values for key, values in data["entries"].items() if _sound(values)}


def _sound(values: Any) -> bool:
    return isinstance(values, dict) and all(isinstance(pair, list) and len(pair) == 2 for pair in values.values())
