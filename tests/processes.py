"""Other processes as the tests see them, and waiting for what they do.

A process or file that is looked at may end or be renamed at any moment; that is an answer here, not an error.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def wait_until(true: Callable[[], object], what: str, seconds: float = 120) -> Any:
    """Poll until ``true()``; what it returned."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = true()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds:.0f} s")


def largest(files: Iterable[Path]) -> int:
    """Bytes of the largest file that is still there; 0 without any."""
    sizes = [0]
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # renamed or removed since it was listed
            sizes.append(file.stat().st_size)
    return max(sizes)


def state(pid: int) -> str:
    """The letter of proc(5): ``R``, ``S``, ``Z`` for ended and not yet waited for; ``X`` where there is none."""
    fields = _stat(pid)
    return fields[0] if fields else "X"


def wait_until_asleep(pid: int) -> None:
    """Wait until it waits for something that does not come: asleep for a fifth of a second, and not for a moment."""
    looks = 0
    while looks < 20:
        looks = looks + 1 if state(pid) == "S" else 0
        assert alive(pid), f"process {pid} has ended"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    return state(pid) not in "ZX"


def name(pid: int) -> str:
    """Its program's name, or what it calls itself; empty where it has ended."""
    return _read(pid, "comm").decode("utf-8", "replace").strip()


def command_line(pid: int) -> bytes:
    """Its arguments, a NUL after each; empty where it has ended."""
    return _read(pid, "cmdline")


def mentioning(text: str) -> dict[int, str]:
    """Live processes with ``text`` in their arguments or environment: pid -> command line."""
    found = {}
    for pid in _all():
        words = command_line(pid) if pid != os.getpid() else b""
        if words and text.encode() in words + _read(pid, "environ"):
            found[pid] = words.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return found


def having(variable: str, value: object) -> list[int]:
    """Processes that were started with ``variable`` set to ``value``."""
    setting = f"{variable}={value}".encode()
    return [pid for pid in _all() if setting in _read(pid, "environ").split(b"\0")]


def children() -> dict[int, list[int]]:
    """Process -> those that it started."""
    found: dict[int, list[int]] = {}
    for pid in _all():
        if fields := _stat(pid):
            found.setdefault(int(fields[1]), []).append(pid)
    return found


def descendants(pid: int) -> list[int]:
    """Processes that ``pid`` started, and those they started, whatever their group or session."""
    known = children()
    found, todo = [], [pid]
    while todo:
        for child in known.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def _all() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Its fields from the state on: the name before them may hold spaces and parentheses."""
    return _read(pid, "stat").decode("utf-8", "replace").rpartition(")")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
