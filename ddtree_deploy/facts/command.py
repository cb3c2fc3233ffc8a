"""Runs a short command for its output, never longer than allowed. Standard library only (agent-safe)."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import dataclass
from typing import Callable, List, Optional, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Output:
    """``status`` is None when the command was given up; ``problem`` says why there is no usable output."""

    status: Optional[int]
    stdout: str = ""
    stderr: str = ""
    problem: Optional[str] = None

    @property
    def ok(self) -> bool:
        return self.status == 0


def background(function: Callable[[], T]) -> Callable[[], T]:
    """Begin ``function`` now; calling what is returned waits for its result, or raises what it raised.

    In a daemon thread: unlike an executor's, it keeps nobody from stopping.
    """
    results: List[T] = []
    errors: List[BaseException] = []

    def work() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()

    def wait() -> T:
        thread.join()
        if errors:
            raise errors[0]
        return results[0]

    return wait


def run(command: List[str], timeout: float) -> Output:
    """The command's output. A process that cannot even be killed (a driver call that hangs) is left behind."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        return Output(None, problem=f"{command[0]} cannot be run: {error.strerror}")
    parts: List[bytes] = [b"", b""]

    def read() -> None:
        parts[:] = process.communicate()

    # communicate(timeout=...) would wait without limit for the process after having killed it
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout)
    if reader.is_alive():
        process.kill()
        return Output(None, problem=f"{command[0]} did not answer within {timeout:g} s")
    out, err = (part.decode("utf-8", "replace") for part in parts)
    problem = None
    if process.returncode != 0:
        lines = [line.strip() for line in err.splitlines() if line.strip()]
        problem = lines[-1] if lines else f"{command[0]} ended with status {process.returncode}"
    return Output(process.returncode, out, err, problem)
