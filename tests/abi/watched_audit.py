"""Audits in a process of their own, with an eye on whether anything of the audited environment is run there."""

from __future__ import annotations

import json
import subprocess
import sys
from types import TracebackType
from typing import Any

from abi.fixtures import Venv

from ddtree_deploy.abi.model import Finding
from ddtree_deploy.codec import from_dict, to_dict

CHILD = """
import json, os, sys
from ddtree_deploy.abi.audit import audit_environment
from ddtree_deploy.abi.host import HostLimits
from ddtree_deploy.codec import from_dict, to_dict

PROCESSES = ("subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "pty.spawn")
watched, seen = None, []

def inside(name):
    return isinstance(name, str) and name.startswith(watched)

def hook(event, arguments):
    if watched is None:
        return
    if event in PROCESSES or event.startswith("ctypes.dlopen"):
        seen.append(f"{event} {arguments[:1]}")
    if event == "import" and inside(arguments[1]):
        seen.append(f"import of {arguments[1]}")
    if event == "exec" and inside(getattr(arguments[0], "co_filename", None)):
        seen.append(f"exec of {arguments[0].co_filename}")

def loaded():
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    files += [line.split()[-1] for line in open("/proc/self/maps") if "x" in line.split()[1]]
    return [f"loaded {file}" for file in files if inside(file)]

sys.addaudithook(hook)
for line in sys.stdin:
    asked = json.loads(line)
    watched = asked["path"] + "/"
    report = audit_environment(asked["path"], from_dict(HostLimits, asked["host"]))
    for statement in asked["then"]:
        exec(statement, {})
    seen += loaded()
    watched = None
    print(json.dumps({"findings": [to_dict(finding) for finding in report.findings], "ran": seen}), flush=True)
    seen.clear()
"""


class WatchedAudits:
    """A context manager; audits are done one after the other in the same process."""

    def __enter__(self) -> WatchedAudits:
        self._process = subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def audit(self, venv: Venv, *then: str) -> tuple[list[Finding], list[str]]:
        """The findings, and what of the environment (or of other programs) ran. ``then``: Python statements to run
        after the audit, to show that they would be noticed."""
        assert self._process.stdin is not None and self._process.stdout is not None
        asked: dict[str, Any] = {"path": str(venv.root), "host": to_dict(venv.host), "then": then}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return [from_dict(Finding, finding) for finding in answer["findings"]], answer["ran"]
