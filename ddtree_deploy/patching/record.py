"""Edit a distribution's RECORD line by line; undoing the edit gives back the same bytes. Standard library only.

Lines that are not ours keep their bytes, whatever their order, quoting and line ends. The format is PyPA's
"Recording installed projects".
"""

from __future__ import annotations

import csv
from typing import Dict, List, Optional

from ddtree_deploy.patching.apply_diff import split_lines
from ddtree_deploy.release.files import record_hash


class Record:
    """The lines of a RECORD by path; ``to_bytes`` gives the file back."""

    def __init__(self, content: bytes, own_path: str) -> None:
        self._lines = split_lines(content)
        self._own_path = own_path
        self._end = b"\r\n" if self._lines and self._lines[0].endswith(b"\r\n") else b"\n"
        self._index: Dict[str, int] = {}
        self._reindex()

    def line(self, path: str) -> Optional[str]:
        """The line of ``path`` without its line end, or None."""
        index = self._index.get(path)
        return None if index is None else self._lines[index].rstrip(b"\r\n").decode("utf-8", "surrogateescape")

    def hash(self, path: str) -> Optional[str]:
        """The hash field of ``path`` (``sha256=…``), or None where there is no line or no hash."""
        line = self.line(path)
        fields = _fields(line) if line else []
        return fields[1] or None if len(fields) > 1 else None

    def paths(self) -> List[str]:
        return list(self._index)

    def set_content(self, path: str, content: bytes) -> None:
        """Make ``path``'s line say hash and size of ``content``; a new line goes before RECORD's own."""
        self.set_line(path, _format(path, content))

    def set_line(self, path: str, line: str) -> None:
        encoded = line.encode("utf-8", "surrogateescape")
        index = self._index.get(path)
        if index is not None:
            old = self._lines[index]
            self._lines[index] = encoded + old[len(old.rstrip(b"\r\n")) :]
            return
        # In front of another line, not at the end: the file's last line may have no line end, and must keep it so.
        self._lines.insert(self._index.get(self._own_path, 0), encoded + self._end)
        self._reindex()

    def remove(self, path: str) -> None:
        index = self._index.get(path)
        if index is not None:
            del self._lines[index]
            self._reindex()

    def to_bytes(self) -> bytes:
        return b"".join(self._lines)

    def _reindex(self) -> None:
        self._index = {}
        for index, raw in enumerate(self._lines):
            fields = _fields(raw.decode("utf-8", "surrogateescape").rstrip("\r\n"))
            if fields:
                self._index[fields[0]] = index


def _fields(line: str) -> List[str]:
    try:
        return next(csv.reader([line]), [])
    except csv.Error:  # a lone CR, or zeros that a power cut left: no line of ours
        return line.split(",")


def _format(path: str, content: bytes) -> str:
    name = '"' + path.replace('"', '""') + '"' if any(c in path for c in ',"') else path
    return f"{name},{record_hash(content)},{len(content)}"
