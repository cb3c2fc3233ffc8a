"""Collects what a process writes to stderr, for error messages and ``-v``."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Optional

LIMIT = 1 << 16


class StderrCollector(threading.Thread):
    """Reads until end of file, so that the process never waits for us; keeps the last ``LIMIT`` bytes."""

    def __init__(self, read: Callable[[], bytes], on_line: Optional[Callable[[str], None]]) -> None:
        super().__init__(name="stderr", daemon=True)
        self._read = read
        self._on_line = on_line
        self._tail = b""
        self._rest = b""
        self.start()

    def run(self) -> None:
        while True:
            try:
                data = self._read()
            except OSError:
                data = b""
            if not data:
                break
            self._tail = (self._tail + data)[-LIMIT:]
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._pass_on(lines)
        self._pass_on([self._rest] if self._rest else [])

    def text(self) -> str:
        """What came so far; waits a moment for the end of a process that has just ended."""
        self.join(0.2)
        return self._tail.decode("utf-8", "replace")

    def _pass_on(self, lines: list[bytes]) -> None:
        if self._on_line:
            for line in lines:
                self._on_line(line.decode("utf-8", "replace"))
