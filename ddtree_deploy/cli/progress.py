"""Progress of the hosts' work on stderr: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.cli.output import Output
from ddtree_deploy.units import human_bytes, plural

if TYPE_CHECKING:
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_WORTH_SHOWING = 1.0  # seconds
_LINE_EVERY = 5.0  # seconds between the lines of one phase


class ProgressView:
    """A context manager; ``sink(host)`` is what a session reports to. Safe to use from several threads."""

    def __init__(self, output: Output) -> None:
        self._bars = output.color and not output.json and sys.stderr.isatty()
        self._view: _Lines | _Bars = _Bars(output) if self._bars else _Lines(output)
        self._lock = threading.Lock()

    def sink(self, host: str) -> ProgressSink:
        def report(progress: Progress) -> None:
            with self._lock:
                self._view.report(host, progress)

        return report

    def __enter__(self) -> Self:
        self._view.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._view.stop()


def amounts(progress: Progress, seconds: float) -> str:
    """``1200/68000 files, 1.2 GiB of 8.1 GiB, 230 MiB/s``: what is known of it."""
    parts = []
    if progress.total_files is not None:
        parts.append(f"{progress.done_files}/{plural(progress.total_files, 'file')}")
    elif progress.done_files:
        parts.append(plural(progress.done_files, "file"))
    if progress.total_bytes is not None:
        parts.append(f"{human_bytes(progress.done_bytes)} of {human_bytes(progress.total_bytes)}")
    elif progress.done_bytes:
        parts.append(human_bytes(progress.done_bytes))
    if seconds >= _WORTH_SHOWING and progress.done_bytes:
        parts.append(f"{human_bytes(progress.done_bytes / seconds)}/s")
    elif seconds >= _WORTH_SHOWING and progress.done_files >= seconds:  # a rate below 1 says nothing
        parts.append(f"{progress.done_files / seconds:.0f} files/s")
    return ", ".join(parts)


class _Lines:
    """One line now and then, and one at the end of a phase that took its time."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._started: dict[tuple[str, str], float] = {}
        self._printed: dict[tuple[str, str], float] = {}

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def report(self, host: str, progress: Progress) -> None:
        key = (host, progress.phase)
        now = time.monotonic()
        started = self._started.setdefault(key, now)
        last = self._printed.setdefault(key, now)
        seconds = now - started
        if progress.finished:
            del self._started[key], self._printed[key]
            if seconds < _WORTH_SHOWING:
                return
        elif now - last < _LINE_EVERY:
            return
        else:
            self._printed[key] = now
        parts = [part for part in (progress.message, amounts(progress, seconds), f"{seconds:.0f} s") if part]
        state = "done: " if progress.finished else ""
        self._output.note(f"{host}: {progress.phase}: {state}{', '.join(parts)}")


class _Bars:
    """A rich bar a phase and host; bars of phases that took no time vanish."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._tasks: dict[tuple[str, str], tuple[TaskID, float]] = {}
        self._progress: Bars | None = None

    def start(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Bars

        self._progress = Bars(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[amounts]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
        )
        self._progress.start()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()

    def report(self, host: str, progress: Progress) -> None:
        bars = self._progress
        if bars is None:
            return
        key = (host, progress.phase)
        now = time.monotonic()
        if key not in self._tasks:
            self._tasks[key] = (bars.add_task("", total=None, amounts=""), now)
        task, started = self._tasks[key]
        in_bytes = progress.total_bytes is not None or progress.total_files is None
        total = progress.total_bytes if in_bytes else progress.total_files
        done = progress.done_bytes if in_bytes else progress.done_files
        if progress.finished:
            total = done = max(done, 1)
        bars.update(
            task,
            total=total,
            completed=done,
            description=f"{host} {progress.phase}" + (f" {progress.message}" if progress.message else ""),
            amounts=amounts(progress, now - started),
        )
        if progress.finished:
            del self._tasks[key]
            if now - started < _WORTH_SHOWING:
                bars.remove_task(task)
