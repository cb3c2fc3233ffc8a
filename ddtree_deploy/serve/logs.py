"""A service's log: written with secrets masked and a size limit, read by cursor, searched for the cause of a failure.

A cursor is ``<inode>:<offset>``; it stays good when the file is rotated once between two reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from pathlib import Path
from typing import IO, Dict, Iterable, List, Optional, Set, Tuple

LIMIT_BYTES = 32 * 1024 * 1024
KEEP = 3  # rotated files beside the current one
_READ_LIMIT = 1024 * 1024
_EXCEPTION = re.compile(r"(?:(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Interrupt|Exit)|Exception)\b(?::|\s*$)")
# A kernel that was not compiled: the exception tells the command, and the compiler's own line before it why.
_COMPILING = re.compile(r"ninja exited with|[Nn]inja build failed|Error building extension|CalledProcessError")
_COMPILER = re.compile(
    r"(?!collect2: )(?:\S*sh: (?:line )?(?:\d+: )?.*(?:not found|No such file)|nvcc fatal|.*: (?:fatal )?error: "
    r"|\S*ld: cannot find )"
)
PARSER_ERROR = re.compile(r"[\w.\- ]+: error: ")  # of argparse, after its usage: a linker's looks alike
_FOLLOWS = re.compile(
    r"EOFError|BrokenPipeError|ConnectionResetError|KeyboardInterrupt|SystemExit|asyncio\..*CancelledError"
    r"|RuntimeError: (?:Initialization failed|Rank \d+ scheduler|.*scheduler.* (?:died|is dead))"
)
_MEMORY = re.compile(r"out of memory|Cannot allocate memory|No space left on device", re.IGNORECASE)


class LogWriter:
    """Appends lines to ``path``; rotates to ``path.1`` … at ``limit`` bytes. Values of ``secrets`` become ``***``."""

    def __init__(self, path: Path, secrets: Iterable[str] = (), limit: int = LIMIT_BYTES) -> None:
        self._path = path
        self._limit = limit
        self._secrets = sorted({form for value in secrets for form in _forms(value)}, key=len, reverse=True)
        self._stream = self._open()
        self._lock = threading.Lock()

    def _open(self) -> IO[bytes]:
        handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(handle, "wb", buffering=0)

    def write_line(self, line: str) -> None:
        """Append a line. One that the disk does not take is lost: a full disk must not stop the engine."""
        for secret in self._secrets:
            line = line.replace(secret, "***")
        with self._lock:
            with contextlib.suppress(OSError):
                self._reopen_moved()
            with contextlib.suppress(OSError):
                self._stream.write(line.encode("utf-8", "replace") + b"\n")
                if self._stream.tell() >= self._limit:
                    self._rotate()

    def _reopen_moved(self) -> None:
        """Somebody may have removed the file, or rotated it."""
        ours = os.fstat(self._stream.fileno())
        try:
            there = self._path.stat()
        except FileNotFoundError:
            self._reopen()
        else:
            if (ours.st_ino, ours.st_dev) != (there.st_ino, there.st_dev):
                self._reopen()

    def _reopen(self) -> None:
        stream = self._open()  # first: a writer without a file would leave the engine with a full pipe
        self._stream.close()
        self._stream = stream

    def cursor(self) -> str:
        """Where the next line will be."""
        stat = os.fstat(self._stream.fileno())
        return f"{stat.st_ino}:{stat.st_size}"

    def close(self) -> None:
        self._stream.close()

    def _rotate(self) -> None:
        for number in range(KEEP, 0, -1):
            source = self._path if number == 1 else _rotated(self._path, number - 1)
            with contextlib.suppress(OSError):  # not there, or something of others' is in the way
                source.replace(_rotated(self._path, number))
        self._reopen()


def _forms(secret: str) -> Set[str]:
    """How a secret, which is one line, may stand in another: as it is, and as Python or JSON quote it."""
    quoted = (repr(secret), json.dumps(secret), json.dumps(secret, ensure_ascii=False))
    return {form for form in (secret, *(text[1:-1] for text in quoted)) if form}


def tail(path: Path, lines: int) -> Tuple[List[str], Optional[str]]:
    """The last ``lines`` lines, also of rotated files, and the cursor behind them (None if there is no log yet)."""
    data, cursor = b"", None
    with contextlib.ExitStack() as stack:
        for stream, inode in reversed(_open_all(path, stack)):
            start = os.fstat(stream.fileno()).st_size
            while start > 0 and data.count(b"\n") <= lines and len(data) < _READ_LIMIT:
                step = min(start, 65536)
                start -= step
                stream.seek(start)
                data = stream.read(step) + data
            if cursor is None:
                data = data[: data.rfind(b"\n") + 1]
                cursor = f"{inode}:{start + len(data)}"
    text = data.decode("utf-8", "replace").splitlines()
    return (text[-lines:] if lines > 0 else []), cursor


def end_since(path: Path, cursor: Optional[str]) -> List[str]:
    """The complete lines after ``cursor``, as ``read_from``; of what is long the last, which say how it ended."""
    data, cut = b"", False
    with contextlib.ExitStack() as stack:
        for stream, begin in reversed(_files_from(path, cursor, stack)):
            size = os.fstat(stream.fileno()).st_size
            start = max(begin, size - (_READ_LIMIT - len(data)))
            stream.seek(start)
            data = stream.read(max(0, size - start)) + data
            cut = start > begin
            if cut:
                break
    begin = data.find(b"\n") + 1 if cut else 0
    return data[begin : data.rfind(b"\n") + 1].decode("utf-8", "replace").splitlines()


def read_from(path: Path, cursor: Optional[str]) -> Tuple[List[str], Optional[str]]:
    """The complete lines after ``cursor`` and the next cursor; from the beginning if ``cursor`` is None or unknown."""
    lines: List[str] = []
    with contextlib.ExitStack() as stack:
        for stream, start in _files_from(path, cursor, stack):
            stream.seek(start)
            data = stream.read(_READ_LIMIT)
            full = len(data) == _READ_LIMIT
            # what is that long and has no end is no line of the engine's: it must not keep those that follow
            complete = data if full and b"\n" not in data else data[: data.rfind(b"\n") + 1]
            lines += complete.decode("utf-8", "replace").splitlines()
            cursor = f"{os.fstat(stream.fileno()).st_ino}:{start + len(complete)}"
            if full:
                break  # the caller comes again with this cursor
    return lines, cursor


def _files_from(path: Path, cursor: Optional[str], stack: contextlib.ExitStack) -> List[Tuple[IO[bytes], int]]:
    """The log's files from that of ``cursor`` on, the oldest first, each with the offset to read it from; the newest
    if ``cursor`` is None or unknown. A file that has become shorter was emptied: it is read from its beginning."""
    inode, offset = _parse(cursor)
    files = _open_all(path, stack)
    found = [index for index, (_, its_inode) in enumerate(files) if its_inode == inode]
    if not found:
        return [(stream, 0) for stream, _ in files[-1:]]
    first = files[found[0]][0]
    begin = offset if offset <= os.fstat(first.fileno()).st_size else 0
    return [(first, begin), *((stream, 0) for stream, _ in files[found[0] + 1 :])]


def _open_all(path: Path, stack: contextlib.ExitStack) -> List[Tuple[IO[bytes], int]]:
    """The log's files and their inodes, the oldest first. Opened from the newest on: one that is rotated meanwhile is
    met again under its next name, and none is missed."""
    found: Dict[int, IO[bytes]] = {}
    for file in (path, *(_rotated(path, number) for number in range(1, KEEP + 1))):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):  # what others put there is no log
            stream = stack.enter_context(file.open("rb"))
            found.setdefault(os.fstat(stream.fileno()).st_ino, stream)
    return [(stream, inode) for inode, stream in reversed(list(found.items()))]


def find_cause(lines: List[str]) -> Optional[str]:
    """The line that says best why the engine ended: its own ``ValueError: …`` rather than what followed from it.

    That is an argument parser's error, else the last exception that is not known to follow from another one (the main
    process saying that its child is gone), else the last one of those, else a line about memory or disk. An exception
    about a compiler gets what the compiler said.
    """
    exceptions = [line.strip() for line in lines if _EXCEPTION.match(line) and "Warning" not in line.split(":", 1)[0]]
    causes = [line for line in exceptions if not _FOLLOWS.match(line)]
    usage = next((number for number, line in enumerate(lines) if line.startswith("usage: ")), len(lines))
    parser = [line.strip() for line in lines[usage:] if PARSER_ERROR.match(line)]
    memory = [line.strip() for line in lines if _MEMORY.search(line)]
    for candidates in (parser, causes, memory, exceptions):
        if candidates:
            cause = candidates[-1]
            said = [line.strip() for line in lines if _COMPILER.match(line) and line.strip() != cause]
            return f"{cause}: {said[-1]}" if said and _COMPILING.search(cause) else cause
    return None


def _rotated(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _parse(cursor: Optional[str]) -> Tuple[Optional[int], int]:
    match = re.fullmatch(r"(\d+):(\d+)", cursor or "")
    return (int(match.group(1)), int(match.group(2))) if match else (None, 0)
