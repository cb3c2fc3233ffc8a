"""A running agent for tests, spoken to in its own protocol."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class AgentProcess:
    """A context manager over ``command``; ``send`` and ``receive`` are lines of the protocol."""

    def __init__(self, command: list[str], **environment: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env={**os.environ, **environment}, start_new_session=True
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr

    def send(self, op: str, params: dict[str, Any] | None = None, id: int = 1, data: bytes = b"") -> None:
        self.stdin.write(json.dumps({"id": id, "op": op, "params": params or {}}).encode() + b"\n" + data)
        self.stdin.flush()

    def receive(self) -> dict[str, Any]:
        while True:
            line = self.stdout.readline()
            assert line, self.stderr.read().decode()
            answer = dict(json.loads(line))
            if "heartbeat" not in answer:
                return answer

    def ask(self, op: str, params: dict[str, Any] | None = None, id: int = 1, data: bytes = b"") -> dict[str, Any]:
        self.send(op, params, id, data)
        answer = self.receive()
        assert answer["id"] == id
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stdin.close()
        try:
            self.process.wait(60)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            self.stdout.close()
            self.stderr.close()


def source_agent(folder: Path, operations: str) -> list[str]:
    """A command that runs the agent from the source tree with the functions of ``operations`` (Python text) as ops."""
    (folder / "extra_operations.py").write_text(operations)
    main = folder / "main.py"
    main.write_text(
        "import sys, inspect\n"
        "from ddtree_deploy.agent import main, operations\n"
        "main.HEARTBEAT = 0.1\n"
        "import extra_operations\n"
        "for name, item in inspect.getmembers(extra_operations, inspect.isfunction):\n"
        "    operations.OPERATIONS[name] = 'extra_operations:' + name\n"
        "main.run()\n"
    )
    return [sys.executable, str(main)]
