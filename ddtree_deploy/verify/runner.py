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
from typing import Any, Dict, List, Mapping, Optional, Sequence

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.children import die_with_parent

_OUTPUT_LIMIT = 400  # lines kept of one check
_MARK = "\x02check "  # begins the line that the probe prints before a check's own output


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
    program: Optional[Sequence[str]] = None,
) -> List[Outcome]:
    """One Outcome a check, in order; never raises for what the release does.

    ``program``: source and first arguments of another program than ``probe.py``, which calls ``probe.main``.
    """
    source = pkgutil.get_data("ddtree_deploy.verify", "probe.py")
    assert source is not None
    command = [str(python), "-c", *(program or [source.decode("utf-8")])]
    left = list(checks)
    outcomes: List[Outcome] = []
    while left:
        done = _run_process(command, release, environment, left, limit_s, progress)
        outcomes += done
        left = left[len(done) :]
    return outcomes


def _run_process(
    command: Sequence[str],
    release: Path,
    environment: Mapping[str, str],
    checks: Sequence[str],
    limit_s: float,
    progress: ProgressSink,
) -> List[Outcome]:
    """The outcomes that one process gave, at least one."""
    events, events_end = os.pipe()
    arguments = [str(events_end), str(release), str(limit_s), *checks]
    try:
        process = subprocess.Popen(
            [*command, *arguments],
            env=dict(environment),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[events_end],
            start_new_session=True,
            preexec_fn=die_with_parent(),
        )
    except OSError as error:
        os.close(events)
        return [
            Outcome(check, cause="python-missing", summary=f"{command[0]} cannot be run: {error}") for check in checks
        ]
    finally:
        os.close(events_end)
    assert process.stdout is not None
    conversation = _Conversation(events, process.stdout.fileno(), list(checks), limit_s, progress)
    try:
        hung = conversation.follow()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # the process where it hangs, else what it has left behind
        process.wait()
        conversation.drain_output()
        process.stdout.close()
        os.close(events)
    return conversation.outcomes(hung, process.returncode)


class _Conversation:
    """Reads the probe's events and its output side by side, so that neither pipe fills up."""

    def __init__(self, events: int, output: int, checks: List[str], limit_s: float, progress: ProgressSink) -> None:
        self._done: List[Outcome] = []
        self._open_check: Optional[str] = None
        self._events = events
        self._output = output
        self._checks = checks
        self._limit_s = limit_s
        self._progress = progress
        self._began = time.monotonic()
        self._event_text = b""
        self._output_text = b""
        os.set_blocking(output, False)
        os.set_blocking(events, False)

    def follow(self) -> bool:
        """Until the probe closes its pipe (it ended) or a check takes too long; True for the latter."""
        deadline = time.monotonic() + self._limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                for key, _ in selector.select(1.0):
                    if key.fd == self._output:
                        if self.drain_output():
                            selector.unregister(self._output)
                        continue
                    data = os.read(self._events, 65536)
                    if not data:
                        return False
                    deadline = time.monotonic() + self._limit_s
                    self._read_events(data)
                    if len(self._done) == len(self._checks):
                        return False  # a process that it left behind may keep the pipes open
                if self._open_check is not None:
                    text = f"{self._open_check}, {time.monotonic() - self._began:.0f} s"
                    self._progress(Progress("verify", text, done_files=len(self._done), total_files=len(self._checks)))
        return True

    def drain_output(self) -> bool:
        """Read what is there; True at the end of the stream."""
        while True:
            try:
                data = os.read(self._output, 65536)
            except BlockingIOError:
                return False
            if not data:
                return True
            self._output_text += data

    def outcomes(self, hung: bool, returncode: int) -> List[Outcome]:
        """What came of the checks, the one that began and did not end among them; at least one."""
        done, check = list(self._done), self._open_check
        if check is not None:
            summary = f"no answer within {self._limit_s:.0f} s" if hung else f"Python {_how(returncode)}"
            seconds = round(time.monotonic() - self._began, 3)
            done.append(Outcome(check, cause="hang" if hung else "crash", summary=summary, seconds=seconds))
        elif not done:
            summary = "Python does not start: " + ("it hangs" if hung else f"it {_how(returncode)}")
            done = [Outcome(check, cause="python-missing", summary=summary) for check in self._checks]
        output = self._split_output()
        for outcome in done:
            outcome.output = output.get(outcome.check, output.get("", []))
        return done

    def _split_output(self) -> Dict[str, List[str]]:
        """Check -> what was printed while it ran, by the marks that the probe prints before each; "" before the first.

        The order of events and output says nothing: they come through two pipes.
        """
        found: Dict[str, List[str]] = {}
        current = ""
        for line in self._output_text.decode("utf-8", "replace").splitlines():
            if line.startswith(_MARK):
                current = line[len(_MARK) :]
                found[current] = []
            elif line.strip():
                found.setdefault(current, []).append(line)
        return {check: lines[-_OUTPUT_LIMIT:] for check, lines in found.items()}

    def _read_events(self, data: bytes) -> None:
        *lines, self._event_text = (self._event_text + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "begin" in event:
                self._open_check = event["begin"]
                self._began = time.monotonic()
                continue
            fields = {name: event[name] for name in ("status", "summary", "cause", "detail", "seconds", "data")}
            self._done.append(Outcome(event["end"], **fields))
            self._open_check = None


def _how(returncode: int) -> str:
    if returncode < 0:
        with contextlib.suppress(ValueError):
            return f"crashed with {signal.Signals(-returncode).name}"
    return f"ended with exit code {returncode}"
