"""Finding and replacing the mentions of a folder's path in the bytes of files. Standard library only (agent-safe).

A mention is the path as a whole, not as a part of another one: with /opt/venv as base, neither ``/opt/venv2/bin`` nor
``/mnt/opt/venv`` nor ``$HOME/opt/venv`` is a mention, but ``-I/opt/venv/include`` and ``file:///opt/venv`` are.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from typing import Dict, Iterable, List, Tuple
from urllib.parse import quote

_SMALL = 1 << 20
# What may not follow: more of the same path component.
_CONTINUES = rb"(?![A-Za-z0-9_+~-]|\.[A-Za-z0-9_]|%[0-9A-Fa-f]{2}|[\x80-\xff])"
_TOKEN_BEFORE = re.compile(rb"[\w.+~/\x80-\xff-]*\Z")
_FLAG_OR_ESCAPE = re.compile(rb"-[-A-Za-z]*\Z")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")


class PathMentions:
    """Mentions of the folders ``old`` (absolute paths), to be replaced by ``new``.

    Besides the plain path its URL-quoted and its JSON-escaped form count where they differ.
    """

    def __init__(self, old: Iterable[str], new: str) -> None:
        self.new = new
        self.old = list(dict.fromkeys(old))
        forms: Dict[bytes, bytes] = {}
        for path in self.old:
            forms.setdefault(os.fsencode(path), os.fsencode(new))
            forms.setdefault(quote(os.fsencode(path)).encode("ascii"), quote(os.fsencode(new)).encode("ascii"))
            forms.setdefault(_json(path), _json(new))
        # The longest first, so that no form hides inside another one.
        self._forms: List[Tuple[bytes, bytes]] = sorted(forms.items(), key=lambda form: -len(form[0]))
        self._patterns = [(re.compile(re.escape(before) + _CONTINUES), after) for before, after in self._forms]

    def may_be_in_file(self, path: str, size: int) -> bool:
        """Whether the raw bytes of a form occur in the file: fast, the caller then looks closer."""
        if size == 0:
            return False
        with open(path, "rb", buffering=0) as stream:
            if size <= _SMALL:
                data = stream.read()
                return any(before in data for before, _ in self._forms)
            with mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                return any(mapped.find(before) >= 0 for before, _ in self._forms)

    def replace(self, data: bytes) -> bytes:
        """``data`` with every mention replaced."""
        for pattern, after in self._patterns:

            def substitute(match: re.Match[bytes], after: bytes = after) -> bytes:
                return after if _starts_here(match.string, match.start()) else match.group()

            data = pattern.sub(substitute, data)
        return data

    def count(self, data: bytes) -> int:
        """How many mentions ``data`` has."""
        return sum(
            _starts_here(data, match.start()) for pattern, _ in self._patterns for match in pattern.finditer(data)
        )

    def moved(self, path: str) -> str:
        """``path`` itself if it is outside the old folders, else its place below the new one."""
        for before in self.old:
            if path == before or path.startswith(before + "/"):
                return self.new + path[len(before) :]
        return path


def is_text(data: bytes) -> bool:
    """Text in any encoding that extends ASCII: no control characters but white space and escape."""
    return _CONTROL.search(data) is None


def _json(path: str) -> bytes:
    return json.dumps(path)[1:-1].encode("ascii", "replace")


def _starts_here(data: bytes, start: int) -> bool:
    """Whether a path begins at ``start``, rather than going on there from something before it."""
    before = data[max(0, start - 1024) : start]
    token = _TOKEN_BEFORE.search(before)
    prefix = token.group() if token else b""
    ahead = before[: len(before) - len(prefix)]
    if not prefix:
        return not ahead.endswith((b"}", b")"))  # ${X}/venv, $(X)/venv, {x}/venv
    if prefix.startswith(b"//") and prefix.count(b"/") == 2:  # file:///venv, file://localhost/venv
        return ahead.endswith(b"file:") or prefix == b"//"
    if set(prefix) == {ord("/")}:
        return True
    if len(prefix) == 1 and ahead.endswith(b"\\"):  # "\n/venv" in a quoted string
        return True
    return _FLAG_OR_ESCAPE.match(prefix) is not None
