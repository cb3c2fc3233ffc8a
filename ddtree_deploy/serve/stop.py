"""Stopping one service: through its supervisor where it lives, by hunting its processes where it does not."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from dataclasses import replace
from typing import List

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.errors import StepError
from ddtree_deploy.serve.gpus import holders
from ddtree_deploy.serve.process import (
    ProcessIdentity,
    is_alive,
    kill_service_processes,
    send_signal,
    service_processes,
)
from ddtree_deploy.serve.spec import ServiceFolder
from ddtree_deploy.serve.state import LIVING, ServiceState, read_state, write_state

_SUPERVISOR_GRACE_S = 30.0  # beyond the engine's own grace: killing, collecting, writing the state
_DRIVER_GRACE_S = 10.0


def stop_service(folder: ServiceFolder, progress: ProgressSink) -> bool:
    """Stop the service and everything of it; False if there was nothing to stop. Where the disk is full or read-only
    nothing tells of it but that the service is ``dead``.

    Raises StepError ``processes-left`` when a process cannot be killed, ``gpu-held`` when the driver still lists one.
    """
    state, spec = read_state(folder), folder.spec()
    if state is None or spec is None:
        return False
    was_living = state.state in LIVING
    supervisor = state.supervisor if was_living else None
    had = service_processes(state.marker, state.engine, supervisor.pid if supervisor else None)
    if supervisor is not None:
        send_signal(supervisor, signal.SIGTERM)
        _wait_for_end(supervisor, spec.stop_grace_s + _SUPERVISOR_GRACE_S, folder.name, progress)
        if is_alive(supervisor):
            send_signal(supervisor, signal.SIGKILL)
    left = kill_service_processes(state.marker, state.engine, None)
    if left:
        raise StepError(
            "processes-left",
            f"{folder.name}: processes {', '.join(str(identity.pid) for identity in left)} do not end",
            where=str(folder.path),
            hint="a process in the driver (state D) ends only when the driver lets go; look at dmesg",
        )
    _write_end(folder, state)
    if spec.gpu_uuid is not None:
        _check_gpu(spec.gpu_uuid, had, folder)
    progress(Progress(f"stop {folder.name}", "stopped", finished=True))
    return was_living or state.state == "dead"


def _write_end(folder: ServiceFolder, state: ServiceState) -> None:
    """Say that the service is stopped, unless its supervisor has said how it ended, or it was started anew."""
    with contextlib.suppress(OSError):  # what had to go is gone, which counts
        handle = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused: a supervisor lives, and writes the state
            now = read_state(folder) or state
            if now.state not in ("stopped", "failed"):
                write_state(folder, replace(now, state="stopped", phase="", engine=None, supervisor=None))
        finally:
            os.close(handle)


def _wait_for_end(supervisor: ProcessIdentity, seconds: float, name: str, progress: ProgressSink) -> None:
    began = time.monotonic()
    while is_alive(supervisor) and time.monotonic() - began < seconds:
        progress(Progress(f"stop {name}", f"waiting for requests to finish, {time.monotonic() - began:.0f} s"))
        time.sleep(0.05)


def _check_gpu(gpu_uuid: str, had: List[ProcessIdentity], folder: ServiceFolder) -> None:
    """Wait until the driver lists none of the processes that the service had on its GPU."""
    pids = {identity.pid for identity in had}
    deadline = time.monotonic() + _DRIVER_GRACE_S
    while True:
        held = sorted(holders(gpu_uuid) & pids)
        if not held:
            return
        if time.monotonic() > deadline:
            raise StepError(
                "gpu-held",
                f"{folder.name}: the driver still lists process {held[0]} on {gpu_uuid}",
                where=str(folder.path),
                hint="nvidia-smi shows it; a hung driver call needs a reset of the GPU",
            )
        time.sleep(0.2)
