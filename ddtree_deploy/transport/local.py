"""The agent on this machine: a subprocess with pipes, started by the same bootstrap as over SSH."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
from typing import Optional

from ddtree_deploy.errors import StepError
from ddtree_deploy.transport.base import ConnectionSettings, ConnectOptions, Stream, Transport
from ddtree_deploy.transport.session import AgentSession
from ddtree_deploy.transport.start import start_agent
from ddtree_deploy.transport.stderr import StderrCollector


class LocalTransport(Transport):
    """Nothing to connect to."""

    def __init__(self, settings: ConnectionSettings, options: ConnectOptions) -> None:
        self.label = "local"
        self._pythons = [settings.python or sys.executable]
        self._options = options

    def agent(self) -> AgentSession:
        return start_agent(lambda command: LocalStream(command, self._options), self._pythons, self.label)

    def close(self) -> None:
        pass


class LocalStream(Stream):
    """In a session of its own: ^C in the terminal is for the controller, which then ends the agent."""

    def __init__(self, command: list[str], options: ConnectOptions) -> None:
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
            )
        except OSError as problem:
            message = f"cannot run {command[0]} on this machine: {problem.strerror}"
            raise StepError("agent-not-started", message, where="local", hint="check PATH") from problem
        assert self._process.stdin and self._process.stdout and self._process.stderr
        self._stdin = self._process.stdin
        self._stdout = self._process.stdout.fileno()
        error = self._process.stderr.fileno()
        self._stderr = StderrCollector(lambda: os.read(error, 65536), options.on_stderr)

    def read(self, timeout: float) -> bytes:
        poller = select.poll()
        poller.register(self._stdout, select.POLLIN)
        if not poller.poll(timeout * 1000):
            raise TimeoutError
        return os.read(self._stdout, 1 << 16)

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[self._stdin.write(view) or 0 :]
        except ValueError as error:  # closed by another thread
            raise BrokenPipeError(str(error)) from error

    def close_input(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()

    def exit_status(self, timeout: float) -> Optional[int]:
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def lost(self) -> bool:
        return False

    def stderr(self) -> str:
        return self._stderr.text()

    def close(self) -> None:
        self.close_input()
        if self.exit_status(0.5) is None:
            self._process.kill()
            self._process.wait()
        self._stderr.join(0.5)  # a child that outlives the agent may keep stderr open; do not wait for it
        if self._process.stdout:
            self._process.stdout.close()
        if self._process.stderr and not self._stderr.is_alive():
            self._process.stderr.close()
