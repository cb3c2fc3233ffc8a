"""The journal: an append-only file of JSON lines on the host, one for every action begun, ended or failed.

Each line has ``ts`` (ISO 8601, UTC), ``run`` (one id per run) and ``event``: ``run-begin``, ``begin``, ``end``,
``fail``, ``activated``, ``note``, ``pruned``, ``run-end``. A line is on disk (fsync) before what it announces
begins, but for what makes room on a full disk. Standard library only (agent-safe).
"""

from __future__ import annotations

import datetime
import json
import os
from pathlib import Path
from typing import Any, Dict, List

from ddtree_deploy.release.space import is_full


def utc_now() -> str:
    """Now as ISO 8601 in UTC with milliseconds."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Journal:
    """Appends to ``path``; only the holder of the lock may do so. ``run`` names this run in every line."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = f"{utc_now()}-{os.getpid()}"
        self._late = b""

    def append(self, event: str, **fields: Any) -> None:
        """Write one line and fsync it. Values must be plain JSON; ``fields`` never hold secrets."""
        self._write(self._late + self._line(event, fields))
        self._late = b""

    def append_or_keep(self, event: str, **fields: Any) -> None:
        """As ``append``; what a full disk does not take is written by ``write_kept``, at the latest."""
        self._late += self._line(event, fields)
        self.write_kept()

    def write_kept(self) -> None:
        """Write what was kept, if the disk takes it by now."""
        try:
            if self._late:
                self._write(self._late)
                self._late = b""
        except OSError as error:
            if not is_full(error):
                raise

    def _line(self, event: str, fields: Dict[str, Any]) -> bytes:
        line = json.dumps({"ts": utc_now(), "run": self.run, "event": event, **fields}, ensure_ascii=True)
        return line.encode("ascii") + b"\n"

    def _write(self, lines: bytes) -> None:
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(descriptor).st_size
            torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
            data = (b"\n" if torn else b"") + lines
            while data:
                data = data[os.write(descriptor, data) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_journal(path: Path) -> List[Dict[str, Any]]:
    """All lines, oldest first. A torn line (the writer was killed, the disk was full) is left out."""
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return []
    entries = []
    for line in data.split(b"\n"):
        try:
            entry = json.loads(line.decode("utf-8"))
        except ValueError:
            continue
        if isinstance(entry, dict) and "event" in entry:
            entries.append(entry)
    return entries


def activation_stack(entries: List[Dict[str, Any]]) -> List[str]:
    """Release ids in the order in which a rollback goes back through them; the active one is last.

    Activating a release puts it on top; going back to one that was active before drops what was above it. One that was
    pruned is gone, also where the same was built again since.
    """
    stack: List[str] = []
    for entry in entries:
        release = entry.get("release")
        if entry["event"] == "pruned" and release in stack:
            stack.remove(release)
        if entry["event"] != "activated" or not isinstance(release, str):
            continue
        if release in stack and entry.get("by") == "rollback":
            del stack[stack.index(release) + 1 :]
        else:
            if release in stack:
                stack.remove(release)
            stack.append(release)
    return stack
