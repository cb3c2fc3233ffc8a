"""Starts the agent on the host in one exchange: one command, the code if it is missing, then requests."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddtree_deploy.agent.bundle import Bundle, build_bundle
from ddtree_deploy.errors import DeployError, InputError, StepError, UnreachableError
from ddtree_deploy.transport import bootstrap
from ddtree_deploy.transport.base import Stream
from ddtree_deploy.transport.session import AgentSession, LineReader

MARKER = b"DDTREE-BOOTSTRAP "
NOISE = 1 << 16  # bytes of a login shell's own output that are shown in an error
START_TIMEOUT = 60.0  # seconds; a host under load takes its time to start a Python
PYTHONS = ["python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9"]

# No single quote, backslash or "!", and one line: a csh or fish login shell reads the quoted text as sh does.
# Arguments: the bootstrap in base64, sha256, size, then the Pythons to try.
_SHELL = (
    "b=$1;s=$2;n=$3;shift 3;"
    'for p in "$@";do case $p in [~]/*)p=$HOME/${p#??};;esac;'
    'if "$p" -I -S -c "import sys;sys.exit(sys.version_info<(3,9))" 2>/dev/null </dev/null;then '
    'exec "$p" -I -S -c "import base64,sys;exec(base64.b64decode(sys.argv[1]))" "$b" "$s" "$n";fi;done;'
    "echo DDTREE-BOOTSTRAP no-python"
)


def start_command(pythons: list[str], bundle: Bundle) -> list[str]:
    """The argument vector to run on the host."""
    source = base64.b64encode(Path(bootstrap.__file__).read_bytes()).decode("ascii")
    return ["sh", "-c", _SHELL, "sh", source, bundle.sha256, str(len(bundle.data)), *pythons]


def start_agent(execute: Callable[[list[str]], Stream], pythons: list[str], label: str) -> AgentSession:
    """Run the agent through ``execute``, which starts an argument vector on the host.

    Raises InputError ``no-python``; StepError ``agent-not-stored``, ``agent-damaged``, ``agent-not-started``;
    UnreachableError ``connection-lost``, ``agent-start-timeout``.
    """
    bundle = build_bundle()
    stream = execute(start_command(pythons, bundle))
    try:
        reader = LineReader(stream)
        starter = _Starter(stream, reader, label)
        if not starter.answer(pythons)["have"]:
            starter.send(bundle.data)
            starter.answer(pythons)
        return AgentSession(stream, reader, label)
    except BaseException:
        stream.close()
        raise


class _Starter:
    def __init__(self, stream: Stream, reader: LineReader, label: str) -> None:
        self._stream = stream
        self._reader = reader
        self._label = label
        self._deadline = time.monotonic() + START_TIMEOUT
        self._noise = b""

    def send(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except (BrokenPipeError, TimeoutError):
            raise self._not_started() from None

    def answer(self, pythons: list[str]) -> dict[str, Any]:
        """The bootstrap's next line. What a login shell prints before it is skipped."""
        while True:
            try:
                line = self._reader.line(max(0.1, self._deadline - time.monotonic()))
            except TimeoutError:
                raise UnreachableError(
                    "agent-start-timeout",
                    f"{self._label} let us in, but no Python answered within {START_TIMEOUT:.0f} seconds",
                    where=self._label,
                    hint="does the user's login shell wait for something?",
                    details=self._details(),
                ) from None
            if line is None:
                raise self._not_started()
            before, marker, text = line.partition(MARKER)
            if marker:
                break
            self._noise = (self._noise + before + b"\n")[-NOISE:]
        if text.strip() == b"no-python":
            raise InputError(
                "no-python",
                f"no Python 3.9 or later on {self._label}: tried {', '.join(pythons)}",
                where=self._label,
                hint="install one, or set connection.python to its path on the host",
            )
        message = json.loads(text)
        if "error" in message:
            raise StepError(
                message["error"], f"{self._label}: {message['message']}", where=self._label, details=self._details()
            )
        return dict(message)

    def _details(self) -> dict[str, Any]:
        return {"stdout": self._noise.decode("utf-8", "replace"), "stderr": self._stream.stderr()}

    def _not_started(self) -> DeployError:
        status = self._stream.exit_status(2.0)
        details = self._details()
        if status is None and self._stream.lost():
            message = f"the connection to {self._label} was lost"
            hint = "run again: it finishes or cleans up what was begun"
            return UnreachableError("connection-lost", message, where=self._label, hint=hint, details=details)
        said = (details["stderr"].strip() or details["stdout"].strip()).splitlines()[-1:]
        return StepError(
            "agent-not-started",
            f"{self._label} let us in, but would not run a command" + (f": {said[0]}" if said else ""),
            where=self._label,
            hint="does the user have a login shell and may it run `sh`?",
            details={**details, "exit_status": status},
        )
