"""Apply a unified diff exactly: no fuzz, no offset, every context line compared byte by byte.

GNU patch applies a hunk to changed context and exits 0; here a hunk fits at the line it names, or the diff is refused.
Works on bytes, so that CRLF line ends and a missing newline at the end of the file survive. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

_HEADER = re.compile(r"^@@ -([0-9]{1,9})(?:,([0-9]{1,9}))? \+([0-9]{1,9})(?:,([0-9]{1,9}))? @@")
_NO_NEWLINE = "\\ No newline at end of file"
_DEV_NULL = "/dev/null"


class DiffError(ValueError):
    """A malformed diff; ``line`` is the 1-based line of the diff."""

    def __init__(self, message: str, line: int) -> None:
        super().__init__(message)
        self.message = message
        self.line = line


class HunkMismatch(ValueError):
    """A hunk that does not fit. ``hunk`` counts from 1; ``line`` is the 1-based line of the file, ``expected`` and
    ``found`` are that line (``found`` None: the file ends before it; ``expected`` None: it should have ended)."""

    def __init__(self, hunk: int, line: int, expected: Optional[bytes], found: Optional[bytes]) -> None:
        self.hunk = hunk
        self.line = line
        self.expected = expected
        self.found = found
        super().__init__(f"hunk {hunk} does not fit at line {line}: expected {_show(expected)}, found {_show(found)}")


@dataclass(frozen=True)
class Hunk:
    """``old_start`` and ``new_start`` are 0-based indices of the first line; the lines keep their line ends."""

    old_start: int
    old_lines: Tuple[bytes, ...]
    new_start: int
    new_lines: Tuple[bytes, ...]


@dataclass(frozen=True)
class FileDiff:
    """A diff of one file; the paths are without ``a/`` and ``b/``."""

    old_path: str
    new_path: str
    hunks: Tuple[Hunk, ...]

    def reversed(self) -> FileDiff:
        hunks = tuple(Hunk(h.new_start, h.new_lines, h.old_start, h.old_lines) for h in self.hunks)
        return FileDiff(self.new_path, self.old_path, hunks)


def split_lines(content: bytes) -> List[bytes]:
    """Lines with their line ends; only a line feed ends a line (a lone CR or a form feed does not)."""
    parts = content.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def parse_diff(text: str) -> FileDiff:
    """The diff in ``text``: free text, one ``---``/``+++`` header, hunks, nothing after them. Raises DiffError."""
    lines = text.split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    at = next((i for i in range(len(lines) - 1) if _is_header(lines, i)), None)
    if at is None:
        raise DiffError("no '--- a/…' and '+++ b/…' header", 1)
    old_path = _path(lines[at][4:], "a/", at + 1)
    new_path = _path(lines[at + 1][4:], "b/", at + 2)
    at += 2
    hunks: List[Hunk] = []
    while at < len(lines):
        hunk, at = _parse_hunk(lines, at, hunks[-1] if hunks else None)
        hunks.append(hunk)
    if not hunks:
        raise DiffError("the diff has no hunk", len(lines))
    return FileDiff(old_path, new_path, tuple(hunks))


def apply_diff(diff: FileDiff, content: bytes) -> bytes:
    """``content`` with every hunk applied; raises HunkMismatch at the first line that differs."""
    source = split_lines(content)
    result: List[bytes] = []
    position = 0
    for number, hunk in enumerate(diff.hunks, start=1):
        check_hunk(hunk, source, number)
        result.extend(source[position : hunk.old_start])
        if len(result) != hunk.new_start:
            raise DiffError(f"hunk {number} says line {hunk.new_start + 1} of the result, it is {len(result) + 1}", 1)
        result.extend(hunk.new_lines)
        position = hunk.old_start + len(hunk.old_lines)
    result.extend(source[position:])
    _check_newlines(result, len(diff.hunks))
    return b"".join(result)


def check_hunk(hunk: Hunk, source: List[bytes], number: int = 1) -> None:
    """Raise HunkMismatch unless ``hunk``'s old lines are in ``source`` exactly where it says."""
    if hunk.old_start > len(source):
        raise HunkMismatch(number, len(source) + 1, hunk.old_lines[0] if hunk.old_lines else b"", None)
    for offset, expected in enumerate(hunk.old_lines):
        index = hunk.old_start + offset
        found = source[index] if index < len(source) else None
        if found != expected:
            raise HunkMismatch(number, index + 1, expected, found)


def _is_header(lines: List[str], index: int) -> bool:
    return lines[index].startswith("--- ") and lines[index + 1].startswith("+++ ")


def _path(field: str, prefix: str, line: int) -> str:
    name = field.split("\t", 1)[0]
    if name == _DEV_NULL:
        raise DiffError("a patch changes a file; new files are given whole, and none is deleted", line)
    if not name.startswith(prefix) or len(name) == len(prefix):
        raise DiffError(f"expected a path that begins with {prefix!r}, found {name!r}", line)
    return name[len(prefix) :]


def _parse_hunk(lines: List[str], at: int, previous: Optional[Hunk]) -> Tuple[Hunk, int]:
    header_line = at + 1
    match = _HEADER.match(lines[at])
    if match is None:
        raise DiffError(f"expected a hunk header '@@ -l,n +l,n @@', found {lines[at]!r}", header_line)
    old_count, new_count = (int(match[group] or 1) if match[group] != "0" else 0 for group in (2, 4))
    old_start = _start(int(match[1]), old_count, header_line)
    new_start = _start(int(match[3]), new_count, header_line)
    old: List[bytes] = []
    new: List[bytes] = []
    at += 1
    while len(old) < old_count or len(new) < new_count:
        if at >= len(lines):
            raise DiffError(f"the hunk ends early: {old_count} old and {new_count} new lines announced", at)
        tag, body = lines[at][:1], lines[at][1:].encode("utf-8")
        if tag not in (" ", "-", "+"):
            raise DiffError(f"a hunk's line begins with ' ', '-' or '+', found {lines[at]!r}", at + 1)
        at += 1
        if at < len(lines) and lines[at] == _NO_NEWLINE:
            at += 1
        else:
            body += b"\n"
        if tag != "+":
            old.append(body)
        if tag != "-":
            new.append(body)
    if len(old) != old_count or len(new) != new_count:
        raise DiffError(
            f"the hunk has {len(old)} old and {len(new)} new lines, its header says {old_count} and {new_count}",
            header_line,
        )
    if previous is not None and old_start < previous.old_start + len(previous.old_lines):
        raise DiffError("hunks overlap or are out of order", header_line)
    return Hunk(old_start, tuple(old), new_start, tuple(new)), at


def _start(number: int, count: int, line: int) -> int:
    """0-based start; with no lines the header names the line *before* (0: before the first)."""
    if count == 0:
        return number
    if number == 0:
        raise DiffError("line 0 in a hunk header that has lines", line)
    return number - 1


def _check_newlines(lines: List[bytes], hunks: int) -> None:
    for index, line in enumerate(lines[:-1]):
        if not line.endswith(b"\n"):
            raise HunkMismatch(hunks, index + 1, line + b"\n", line)


def _show(line: Optional[bytes]) -> str:
    return "the end of the file" if line is None else repr(line.decode("utf-8", "backslashreplace"))
