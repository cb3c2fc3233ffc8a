"""Running the command line as users do: a process of its own, with an inventory."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from processes import children, descendants

PROJECT = Path(__file__).resolve().parents[2]
COMMAND = [str(Path(sys.executable).with_name("ddtree-deploy"))]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str
    seconds: float

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)

    @property
    def host(self) -> Any:
        """The only host's part of the document."""
        (host,) = self.json["hosts"]
        return host

    @property
    def said(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}\n--- stderr\n{self.err}"


@dataclass(frozen=True)
class Program:
    """``ddtree-deploy`` with an inventory and an environment of the test's."""

    inventory: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()  # put before the command: setpriv ...
    command: tuple[str, ...] = tuple(COMMAND)
    cwd: Path | None = None

    def run(self, *words: str, timeout: float = 300, code: int | None = None) -> Ran:
        """Run it to its end; with ``code``, that must be the exit code."""
        began = time.monotonic()
        process = self.start(*words)
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            end(process)
        ran = Ran(process.returncode, out, err, time.monotonic() - began)
        assert code is None or ran.code == code, f"{' '.join(words)}: expected {code}, {ran.said}"
        return ran

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start it in a process group of its own, as a shell does."""
        named = ["--inventory", str(self.inventory)] if self.inventory is not None else []
        return subprocess.Popen(
            [*self.prefix, *self.command, *named, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(**self.environment),
            cwd=self.cwd,
            start_new_session=True,
        )


def environment(**changes: str) -> dict[str, str]:
    """Ours, without what would change the program's output or the engine's speed."""
    dropped = ("COLUMNS", "DDTREE_KNOWN_HOSTS", "SSH_AUTH_SOCK", "PYTHONPATH", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return {**kept, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", **changes}


def end(process: subprocess.Popen[str]) -> None:
    """See to it that nothing of ``process`` is left, whatever happened."""
    if process.poll() is None:
        kill_tree(process.pid)
        process.wait(30)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def kill_with_agent(pid: int) -> None:
    """SIGKILL the controller ``pid`` and its agent at once, and nobody else: what the agent has started (uv, checks)
    must end without being told."""
    doomed = [pid, *children().get(pid, [])]
    assert len(doomed) == 2
    _kill(doomed)


def kill_tree(pid: int) -> None:
    """SIGKILL ``pid`` and everything below it."""
    _kill([pid, *descendants(pid)])


def _kill(pids: list[int]) -> None:
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none sees another end
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
