"""What the supervisor says about its service, in ``state.json``; the supervisor alone writes it while it lives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional

from ddtree_deploy import codec
from ddtree_deploy.errors import DeployError
from ddtree_deploy.facts.model import ServiceInfo
from ddtree_deploy.serve.process import ProcessIdentity, is_alive
from ddtree_deploy.serve.spec import ServiceFolder, ServiceSpec, write_atomic

LIVING = ("starting", "ready", "stopping")
_WRITTEN = (*LIVING, "stopped", "failed")


@dataclass(frozen=True)
class ProbeResult:
    """One real completion asked of the engine. ``seconds`` is its duration; ``error`` says why it did not count."""

    ok: bool
    at: str  # ISO 8601, UTC
    seconds: float
    text: Optional[str] = None
    error: Optional[str] = None


@dataclass(frozen=True)
class ServiceState:
    """``state`` is starting | ready | stopping | stopped | failed; ``dead`` is what a reader makes of a living state
    whose supervisor is gone. Times are ISO 8601 in UTC."""

    state: str
    phase: str = ""  # what the supervisor does now, for people
    supervisor: Optional[ProcessIdentity] = None
    engine: Optional[ProcessIdentity] = None  # leader of the engine's session
    marker: str = ""
    launch: str = ""  # names the launch that this state belongs to
    started: Optional[str] = None  # this run of the engine
    ready: Optional[str] = None
    restarts: int = 0
    log_start: Optional[str] = None  # cursor where this run's log begins
    error: Optional[Dict[str, Any]] = None  # DeployError.to_dict() of a failed service
    last_exit: Optional[str] = None
    probe: Optional[ProbeResult] = None
    left_over: List[int] = field(default_factory=list)  # processes that SIGKILL did not end
    schema: int = 1

    def failure(self) -> Optional[DeployError]:
        return DeployError.from_dict(self.error) if self.error else None


def timestamp() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def read_state(folder: ServiceFolder) -> Optional[ServiceState]:
    """The state as it is now: ``dead`` if it claims to live and its supervisor does not. None if never started.

    Raises InputError ``bad-document``.
    """
    state = folder.read(folder.state_file, ServiceState)
    if state is not None and state.state not in _WRITTEN:
        raise folder.damaged(folder.state_file, f"there is no state {state.state!r}")
    if state is not None and state.state in LIVING and not is_alive(state.supervisor):
        return replace(state, state="dead", phase="its supervisor is gone (killed, or the host was restarted)")
    return state


def write_state(folder: ServiceFolder, state: ServiceState) -> None:
    write_atomic(folder.state_file, codec.dumps(state), 0o644)


def unreadable(folder: ServiceFolder) -> Optional[Exception]:
    """Why the files of a service say nothing of what it is; None if they do. Its secrets are another matter."""
    try:
        folder.spec()
        read_state(folder)
    except (DeployError, OSError) as error:
        return error
    return None


def secrets_problem(folder: ServiceFolder) -> Optional[Exception]:
    """Why the secrets of a service cannot be read; None if they can."""
    try:
        folder.secrets()
    except (DeployError, OSError) as error:
        return error
    return None


def in_words(error: Exception) -> str:
    """Where, why and what to do."""
    if isinstance(error, DeployError):
        return "; ".join(filter(None, [error.where, error.message, error.hint]))
    return str(error)


def unknown_info(folder: ServiceFolder, error: Exception) -> ServiceInfo:
    """A service whose files cannot be read."""
    return ServiceInfo(folder.name, "unknown", detail=in_words(error))


def service_info(spec: ServiceSpec, state: Optional[ServiceState]) -> ServiceInfo:
    """A service as ``facts`` and ``status`` show it; a service without a state was never started."""
    if state is None:
        state = ServiceState("stopped", phase="never started")
    living = state.state in LIVING
    failure = state.failure()
    detail = f"{failure.id}: {failure.message}" if failure and state.state == "failed" else state.phase or None
    if state.left_over:
        left = ", ".join(map(str, state.left_over))
        detail = "; ".join(filter(None, [detail, f"processes that SIGKILL did not end: {left}"]))
    return ServiceInfo(
        name=spec.name,
        state=state.state,
        pid=state.engine.pid if living and state.engine else None,
        port=spec.port,
        gpu_index=spec.gpu_index,
        gpu_uuid=spec.gpu_uuid,
        algorithm=spec.algorithm,
        budget=None if spec.budget is None else str(spec.budget),
        model=spec.model,
        release=spec.release_id,
        manager="supervisor",
        started=state.started if living else None,
        detail=detail,
    )
