"""Who keeps a service alive: a supervisor of ours (``supervisor.py``), on every host. A manager that uses systemd where
it runs belongs here too; callers only start services and read their state.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import ddtree_deploy
from ddtree_deploy.agent.archive import archive_path, command
from ddtree_deploy.errors import StepError
from ddtree_deploy.release.space import require_space
from ddtree_deploy.serve.logs import tail
from ddtree_deploy.serve.spec import ServiceFolder
from ddtree_deploy.serve.state import read_state

_START_S = 20.0
_GONE_S = 5.0  # since it has detached itself: by then it holds its folder's lock, if it lives
_SPACE = 1 << 16


def start_service(folder: ServiceFolder, launch: str) -> None:
    """Start the supervisor as a process of its own and wait until it says so; raises StepError ``supervisor-failed``,
    ``no-space``.

    It runs the code that runs now, a zipapp or a source tree, and imports all of it at its start: the zipapp may be
    replaced while the service lives.
    """
    environment = dict(os.environ)
    if archive_path() is None:  # a source tree or an installed package: the child shall import the same one
        environment["PYTHONPATH"] = str(Path(ddtree_deploy.__file__).resolve().parent.parent)
    handle = os.open(folder.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as output:
        process = subprocess.Popen(
            command(["supervise", str(folder.path), launch]),
            env=environment,
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    process.wait()
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        state = read_state(folder)
        if state is not None and state.launch == launch:
            return
        if time.monotonic() > deadline - _START_S + _GONE_S and not folder.is_kept():
            break
        time.sleep(0.05)
    require_space(folder.path, _SPACE, "a service's state needs")  # its own words would be lost as well
    said = "\n".join(tail(folder.supervisor_log, 20)[0])
    raise StepError(
        "supervisor-failed",
        f"the supervisor of {folder.name} did not start",
        where=str(folder.supervisor_log),
        hint=f"its last words: {said.splitlines()[-1]}" if said.strip() else "a host under heavy load? Launch again",
        details={"log": said.splitlines()},
    )
