"""``service.status``, ``service.logs`` and ``service.stop`` of the agent, and the services that ``facts`` lists."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any, Dict, List, Optional

from ddtree_deploy import codec
from ddtree_deploy.agent.protocol import ProgressSink
from ddtree_deploy.errors import DeployError, InputError
from ddtree_deploy.facts.model import ServiceInfo
from ddtree_deploy.serve import readiness
from ddtree_deploy.serve.launch import layout_of, op_launch, op_restart, pick_services
from ddtree_deploy.serve.logs import end_since, find_cause, read_from, tail
from ddtree_deploy.serve.spec import API_KEY, ServiceFolder, ServiceSpec, service_folders
from ddtree_deploy.serve.state import (
    ProbeResult,
    in_words,
    read_state,
    secrets_problem,
    service_info,
    unknown_info,
    unreadable,
)
from ddtree_deploy.serve.stop import stop_service

__all__ = ["list_services", "op_launch", "op_logs", "op_restart", "op_status", "op_stop"]

_MAX_LINES = 100_000


def list_services(root: Path) -> List[ServiceInfo]:
    """Every service that was ever launched under ``root``, from its files alone: no request is sent, nothing raised.

    One whose files cannot be read has the state ``unknown``, and ``detail`` says why.
    """
    found = []
    for folder in service_folders(root):
        try:
            spec = folder.spec()
            if spec is not None:
                found.append(service_info(spec, read_state(folder)))
        except (DeployError, OSError) as error:
            found.append(unknown_info(folder, error))
    return found


def op_status(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """What the services do.

    params: ``{"root", "services": names or None, "probe": bool = True, "probe_timeout": seconds = 10}``. Result:
    ``{"services": [...]}``, each a ServiceInfo with ``listen``, ``ready`` and ``restarts``, ``draft``, ``log`` (path),
    ``last_lines`` and ``cause`` of a failed one, ``probe`` (the last completion: ok, at, seconds, text, error) and
    ``tokens_per_step`` of a speculative one that has answered something. A ready service is asked for a token or a few,
    unless somebody asks already; a probe that fails is shown and changes nothing: a long prefill is no failure.
    One whose files cannot be read has the state ``unknown``, and ``detail`` says why; one whose secrets cannot be read
    is not asked.
    """
    layout = layout_of(params)
    names = params.get("services")
    folders = service_folders(layout.root) if names is None else pick_services(layout, names)
    probe = bool(params.get("probe", True))
    timeout = float(params.get("probe_timeout", 10.0))
    return {"services": [_status(folder, probe, timeout) for folder in folders]}


def op_logs(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Lines of one service's log.

    params: ``{"root", "service": name (may be None if there is one only), "lines": 100, "cursor": text or None}``.
    Result: ``{"service", "lines": [...], "cursor", "state"}``. With a cursor: the complete lines since; following a log
    is asking again with the cursor that came back. Raises InputError.
    """
    layout = layout_of(params)
    name = params.get("service")
    folders = pick_services(layout, [name] if name is not None else None)
    if len(folders) > 1:
        raise InputError(
            "which-service",
            f"there are {len(folders)} services here",
            where=str(layout.services),
            hint=f"name one of {', '.join(folder.name for folder in folders)}",
        )
    (folder,) = folders
    lines = params.get("lines", 100)
    if not isinstance(lines, int) or isinstance(lines, bool) or not 0 <= lines <= _MAX_LINES:
        raise InputError(
            "bad-lines", f"the number of lines must be from 0 to {_MAX_LINES}, not {lines!r}", where="lines"
        )
    cursor = params.get("cursor")
    text, cursor = read_from(folder.log, cursor) if cursor else tail(folder.log, lines)
    try:
        state = read_state(folder)
        name_of_state = state.state if state else "stopped"
    except (DeployError, OSError):  # its log may say why
        name_of_state = "unknown"
    return {"service": folder.name, "lines": text, "cursor": cursor, "state": name_of_state}


def op_stop(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Stop services, all by default, and see to it that no process of theirs is left.

    params: ``{"root", "services": names or None}``. Result: ``{"services": [{"name", "changed", "state"}],
    "changed"}``. Stopping what does not run is fine. One whose files cannot be read is ``unknown``, with
    ``detail``; the others are stopped. Where a full or read-only disk does not take the new state, that is ``dead``,
    with ``detail``. Raises InputError ``no-such-service``; StepError ``processes-left`` or ``gpu-held`` of the first
    that cannot be stopped, once all others are.
    """
    layout = layout_of(params)
    names = params.get("services")
    folders = service_folders(layout.root) if names is None else pick_services(layout, names)
    services: List[Dict[str, Any]] = []
    problems: List[Exception] = []
    for folder in folders:
        error = unreadable(folder)
        if error is not None:
            info = unknown_info(folder, error)
            services.append({"name": info.name, "changed": False, "state": info.state, "detail": info.detail})
            continue
        changed = False
        detail = {}
        try:
            changed = stop_service(folder, progress)
        except (DeployError, OSError) as problem:  # the others are stopped all the same
            problems.append(problem)
            detail = {"detail": in_words(problem)}
        state = read_state(folder)
        if changed and state is not None and state.state == "dead":
            detail = {"detail": f"nothing of it is left, but that cannot be written to {folder.state_file}"}
        state_name = state.state if state else "stopped"
        services.append({"name": folder.name, "changed": changed, "state": state_name, **detail})
    if problems:
        if isinstance(problems[0], DeployError):
            problems[0].details["services"] = services
        raise problems[0]
    return {"services": services, "changed": any(service["changed"] for service in services)}


def _status(folder: ServiceFolder, probe: bool, timeout: float) -> Dict[str, Any]:
    error = unreadable(folder)
    if error is not None:
        return {**codec.to_dict(unknown_info(folder, error)), "log": str(folder.log)}
    spec, state = folder.spec(), read_state(folder)
    assert spec is not None  # service_folders returns launched ones
    known: Dict[str, Any] = {
        **codec.to_dict(service_info(spec, state)),
        "listen": spec.listen,
        "draft": spec.draft,
        "log": str(folder.log),
        "ready": state.ready if state else None,
        "restarts": state.restarts if state else 0,
        "last_exit": state.last_exit if state else None,
        "probe": codec.to_dict(state.probe) if state and state.probe else None,
        "tokens_per_step": None,
    }
    problem = secrets_problem(folder)
    if problem is not None:
        known["detail"] = "; ".join(filter(None, [known["detail"], in_words(problem)]))
    elif state is not None and state.state == "ready" and probe:
        fresh = _probe_once(folder, spec, timeout)
        known["probe"] = codec.to_dict(fresh) if fresh else known["probe"]
        if fresh is not None and fresh.ok and spec.algorithm != "none":
            key = folder.secrets().get(API_KEY)
            known["tokens_per_step"] = readiness.tokens_per_step(spec, key, timeout)
    if state is not None and state.state in ("failed", "dead"):
        lines = end_since(folder.log, state.log_start)
        known["last_lines"] = lines[-20:]
        known["cause"] = find_cause(lines)
    return known


def _probe_once(folder: ServiceFolder, spec: ServiceSpec, timeout: float) -> Optional[ProbeResult]:
    """One completion; None if another caller is asking right now (probes must not pile up: sglang#35884)."""
    try:
        handle = os.open(folder.path / "probe.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError:  # a read-only or full disk, which is a reason to look at what still runs
        return readiness.complete(spec, folder.secrets().get(API_KEY), timeout)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return readiness.complete(spec, folder.secrets().get(API_KEY), timeout)
    except BlockingIOError:
        return None
    finally:
        os.close(handle)
