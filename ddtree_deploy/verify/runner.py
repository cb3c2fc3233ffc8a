"""Runs ``probe.py`` in the release's Python and makes results of what it says, or of how it ended.

One process runs check after check, since importing torch costs seconds; when a check takes the interpreter down or
hangs, that check has failed and a new process runs the rest.
"""

from __future__ import annotations

import contextlib
import json
import os
import pkgutil
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Dict, List, Mapping, Optional, Sequence

from ddtree_deploy.agent.protocol import Progress, ProgressSink

_OUTPUT_LIMIT = 400  # lines kept of one check


@dataclass
class Outcome:
    """One check as the probe reported it, or as its process ended. ``cause`` as in ``CheckResult``."""

    check: str
    status: str = "failed"
    summary: str = ""
    cause: Optional[str] = None
    detail: Optional[str] = None
    seconds: float = 0.0
    data: Dict[str, Any] = field(default_factory=dict)
    output: List[str] = field(default_factory=list)


def run_probe(
    python: Path,
    release: Path,
    environment: Mapping[str, str],
    checks: Sequence[str],
    limit_s: float,
    progress: ProgressSink,
) -> List[Outcome]:
    """One Outcome a check, in order; never raises for what the release does."""
    left = list(checks)
    outcomes: List[Outcome] = []
    while left:
        done = _run_process(python, release, environment, left, limit_s, progress)
        outcomes += done
        left = left[len(done) :]
    return outcomes


def _run_process(
    python: Path,
    release: Path,
    environment: Mapping[str, str],
    checks: Sequence[str],
    limit_s: float,
    progress: ProgressSink,
) -> List[Outcome]:
    """The outcomes that one process gave, at least one."""
    source = pkgutil.get_data("ddtree_deploy.verify", "probe.py")
    assert source is not None
    events, events_end = os.pipe()
    arguments = [str(events_end), str(release), str(limit_s), *checks]
    try:
        process = subprocess.Popen(
            [str(python), "-c", source.decode("utf-8"), *arguments],
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[events_end],
            start_new_session=True,
        )
    except OSError as error:
        os.close(events)
        return [Outcome(check, cause="python-missing", summary=f"{python} cannot be run: {error}") for check in checks]
    finally:
        os.close(events_end)
    assert process.stdout is not None
    conversation = _Conversation(events, process.stdout, list(checks), limit_s, progress)
    try:
        hung = conversation.follow()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the process where it hangs, else what it has left behind
        process.wait()
        conversation.close()
    if conversation.open_check is not None:
        conversation.done.append(conversation.ended(hung, process.returncode))
    if not conversation.done:
        output = conversation.take_output()
        summary = f"Python does not start: {_how(process.returncode)}"
        return [Outcome(check, cause="python-missing", summary=summary, output=output) for check in checks]
    return conversation.done


class _Conversation:
    """Reads events and output side by side, and gives each check the output that came while it ran."""

    def __init__(
        self, events: int, output: IO[bytes], checks: List[str], limit_s: float, progress: ProgressSink
    ) -> None:
        self.done: List[Outcome] = []
        self.open_check: Optional[str] = None
        self._events = events
        self._output = output
        self._checks = checks
        self._limit_s = limit_s
        self._progress = progress
        self._began = time.monotonic()
        self._event_text = b""
        self._output_text = b""
        os.set_blocking(output.fileno(), False)
        os.set_blocking(events, False)

    def follow(self) -> bool:
        """Until the probe closes its pipe (it ended) or a check takes too long; True for the latter."""
        deadline = time.monotonic() + self._limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                for key, _ in selector.select(1.0):
                    if key.fd != self._events:
                        if self._drain_output():
                            selector.unregister(self._output)
                        continue
                    data = os.read(self._events, 65536)
                    self._drain_output()
                    if not data:
                        return False
                    deadline = time.monotonic() + self._limit_s
                    self._read_events(data)
                if self.open_check is not None:
                    text = f"{self.open_check}, {time.monotonic() - self._began:.0f} s"
                    self._progress(Progress("verify", text, done_files=len(self.done), total_files=len(self._checks)))
        return True

    def ended(self, hung: bool, returncode: int) -> Outcome:
        """The check that began and did not end."""
        assert self.open_check is not None
        outcome = Outcome(self.open_check, seconds=round(time.monotonic() - self._began, 3), output=self.take_output())
        outcome.cause = "hang" if hung else "crash"
        outcome.summary = f"no answer within {self._limit_s:.0f} s" if hung else f"Python {_how(returncode)}"
        return outcome

    def take_output(self) -> List[str]:
        lines = self._output_text.decode("utf-8", "replace").splitlines()
        self._output_text = b""
        return [line for line in lines if line.strip()][-_OUTPUT_LIMIT:]

    def close(self) -> None:
        self._drain_output()
        self._output.close()
        os.close(self._events)

    def _drain_output(self) -> bool:
        """Read what is there; True at the end of the stream."""
        while True:
            data = self._output.read(65536)
            if not data:
                return data == b""
            self._output_text += data

    def _read_events(self, data: bytes) -> None:
        *lines, self._event_text = (self._event_text + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "begin" in event:
                self.open_check = event["begin"]
                self._began = time.monotonic()
                continue
            fields = {name: event[name] for name in ("status", "summary", "cause", "detail", "seconds", "data")}
            self.done.append(Outcome(event["end"], output=self.take_output(), **fields))
            self.open_check = None


def _how(returncode: int) -> str:
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return f"crashed with {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"
