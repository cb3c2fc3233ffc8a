"""Launching: settings in, services that answer out. ``op_launch`` and ``op_restart`` of the agent."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ddtree_deploy import codec
from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.errors import DeployError, InputError, StepError
from ddtree_deploy.facts.gpu import GpuFacts, probe_gpus
from ddtree_deploy.facts.model import Gpu
from ddtree_deploy.release.layout import Layout, open_layout
from ddtree_deploy.release.lock import Lock
from ddtree_deploy.release.space import require_space
from ddtree_deploy.serve.command import merge_arguments
from ddtree_deploy.serve.environment import release_python, resolve_release
from ddtree_deploy.serve.gpus import runs_on_cpu, select_gpus
from ddtree_deploy.serve.logs import tail
from ddtree_deploy.serve.manager import start_service
from ddtree_deploy.serve.ports import DEFAULT_RANGE, allocate, is_free
from ddtree_deploy.serve.settings import (
    LaunchSettings,
    base_spec,
    check_auto_budget,
    model_path,
    parse_ports,
    read_settings,
)
from ddtree_deploy.serve.spec import ServiceFolder, ServiceSpec, service_folders
from ddtree_deploy.serve.state import (
    LIVING,
    ServiceState,
    read_state,
    secrets_problem,
    service_info,
    unknown_info,
    unreadable,
)
from ddtree_deploy.serve.stop import stop_service

_POLL_S = 0.1
_SPACE = 1 << 20  # bytes free before anything is stopped: a few small files a service, and the first lines of its log
_LOOK = "ddtree-deploy status HOST and ddtree-deploy logs HOST say more"


@dataclass(frozen=True)
class _Target:
    """One service to launch; ``launch`` is None where it runs already as asked."""

    folder: ServiceFolder
    spec: ServiceSpec
    launch: Optional[str]


def op_launch(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Start one service a GPU (one on the CPU where there is none) and wait until each answers a completion.

    params: see ``settings.LaunchSettings``. Result: ``{"services": [...], "changed": bool}``, each service a
    ServiceInfo with ``listen``, ``probe`` (the completion that made it ready) and ``changed`` (false: it ran already).
    Services besides whose files cannot be read follow, ``unknown``: what they hold is not known, so look at them.
    Raises InputError for settings that cannot work, before anything is started; then StepError, or InputError
    ``engine-refused`` where the engine itself names a bad setting: each service that failed has been stopped, those
    that came up keep running, ``details`` has all of them and the log lines.
    """
    settings = read_settings(params)
    layout = layout_of(params)
    release = resolve_release(layout.root, settings.release)
    release_python(release)
    base = base_spec(settings, release)
    arguments = merge_arguments(base.profile_arguments, base.engine_arguments)
    on_cpu = runs_on_cpu(release, arguments)
    gpus = select_gpus(GpuFacts() if on_cpu else probe_gpus(), settings.gpus, on_cpu)
    check_auto_budget(base, gpus == [None], arguments)
    with Lock(layout.services / ".lock", "launch"):
        damaged = _damaged(layout, [for_gpu(base, gpu) for gpu in gpus])
        targets = _prepare(layout, base, settings, gpus, progress)
        failures = _start(targets)
    result = _wait_for(targets, settings.wait, progress, failures)
    return {**result, "services": result["services"] + damaged}


def op_restart(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Stop services and start them again with the settings and secrets they have, and the ports while they are free.

    params: ``{"root", "services": names or None for all, "ports": as for a launch, "wait": bool}``. Result and errors
    as ``op_launch``: what cannot start again, for example because its release or model is gone, is told before
    anything is stopped, and one that cannot be stopped does not keep the others. One whose files cannot be read is
    left as it is: its state is ``unknown``.
    """
    layout = layout_of(params)
    allowed = parse_ports(params.get("ports"), DEFAULT_RANGE)
    folders = pick_services(layout, params.get("services"))
    targets = []
    unknown = []
    with Lock(layout.services / ".lock", "restart"):
        for folder in folders:
            error = unreadable(folder) or secrets_problem(folder)
            if error is not None:
                unknown.append({**codec.to_dict(unknown_info(folder, error)), "changed": False})
                continue
            spec = folder.spec()
            assert spec is not None  # pick_services returns launched ones
            _check_again(spec)
            targets.append(_Target(folder, spec, uuid.uuid4().hex))
        _check_gpus([target.spec for target in targets])
        targets = _with_ports(layout, targets, allowed)
        require_space(layout.services, _SPACE, "the services' files need")
        failures: Dict[str, DeployError] = {}
        for target in targets:  # each is away for its own end only, and no longer where another's does not come
            try:
                stop_service(target.folder, progress)
            except DeployError as error:
                failures[target.spec.name] = error
                continue
            if target.spec != target.folder.spec():
                target.folder.write(target.spec, target.folder.secrets())
            failures.update(_start([target]))
    result = _wait_for(targets, bool(params.get("wait", True)), progress, failures)
    return {**result, "services": result["services"] + unknown}


def _check_again(spec: ServiceSpec) -> None:
    """What a launch has checked and may be gone since; raises InputError, which names the service."""
    try:
        release_python(Path(spec.release))
        model_path(spec.model, "model")
        if spec.draft is not None:
            model_path(spec.draft, "draft")
    except InputError as error:
        raise InputError(error.id, f"{spec.name}: {error.message}", where=error.where, hint=error.hint) from error


def _check_gpus(specs: List[ServiceSpec]) -> None:
    """Raises InputError ``gpu-gone``: a driver that was updated and not loaded anew serves what runs, no new engine."""
    bound = [spec for spec in specs if spec.gpu_uuid is not None]
    facts = probe_gpus() if bound else GpuFacts()
    there = {gpu.uuid for gpu in facts.gpus}
    for spec in bound:
        if spec.gpu_uuid not in there:
            raise InputError(
                "gpu-gone",
                f"{spec.name}: GPU {spec.gpu_uuid} cannot be found, so nothing was stopped",
                where="gpus",
                hint=facts.problem or "nvidia-smi -L lists all",
            )


def _with_ports(layout: Layout, targets: List[_Target], allowed: range) -> List[_Target]:
    """``targets`` with their own ports, or with others where somebody has taken those since; none gets what another
    holds now, so that each can start before the next is stopped. Raises InputError ``service-running`` for one whose
    device another service has by now, ``ports-exhausted``."""
    names = [target.spec.name for target in targets]
    states = [(spec, read_state(folder)) for folder, spec in _launched(layout)]
    running = {spec.name: spec for spec, state in states if _holds_ports(state)}
    living = [spec.name for spec, state in states if state and state.state in LIVING]
    others = [spec for name, spec in running.items() if name not in names]
    taken = {port for spec in others for port in _ports(spec)}
    held = {port for name, spec in running.items() if name in names for port in _ports(spec)}
    chosen: Dict[str, _Target] = {}
    # Who has its ports now comes first, then what may have left something on them.
    for target in sorted(targets, key=lambda one: (one.spec.name not in living, one.spec.name not in running)):
        spec = target.spec
        freed = _ports(spec) if spec.name in running else ()
        for other in [*others, *(done.spec for done in chosen.values())]:
            if other.shares_device(spec):
                raise InputError(
                    "service-running",
                    f"service {other.name} is on the device of service {spec.name}",
                    where=str(layout.services / other.name),
                    hint="name the one to restart with --service, and stop the other",
                )
        ports = [port for port in _ports(spec) if port not in taken and (port in freed or is_free(port))]
        if len(ports) < 2:
            ports = allocate(allowed, taken | held.difference(_ports(spec)), 2, ports, freed)
        taken |= set(ports)
        chosen[spec.name] = replace(target, spec=replace(spec, port=ports[0], nccl_port=ports[1]))
    return [chosen[name] for name in names]


def _holds_ports(state: Optional[ServiceState]) -> bool:
    """Whether the service has processes, or a dead supervisor may have left some."""
    return state is not None and state.state in (*LIVING, "dead")


def _start(targets: List[_Target]) -> Dict[str, DeployError]:
    """Start those that do not run already; why each that could not be started was not, by name."""
    failures: Dict[str, DeployError] = {}
    for target in targets:
        try:
            if target.launch is not None:
                start_service(target.folder, target.launch)
        except DeployError as error:
            failures[target.spec.name] = error
    return failures


def layout_of(params: Dict[str, Any]) -> Layout:
    """The paths under ``params["root"]``, default /opt/ddtree; raises InputError as ``open_layout``."""
    return open_layout(params.get("root") or "/opt/ddtree")


def pick_services(layout: Layout, names: Optional[List[str]]) -> List[ServiceFolder]:
    """The named services, or all; raises InputError ``no-such-service`` or ``no-services``."""
    folders = service_folders(layout.root)
    if not folders:
        raise InputError(
            "no-services", "there are no services", where=str(layout.services), hint="run: ddtree-deploy launch HOST"
        )
    if names is None:
        return folders
    known = {folder.name: folder for folder in folders}
    missing = [name for name in names if name not in known]
    if missing:
        raise InputError(
            "no-such-service",
            f"there is no service {missing[0]!r}",
            where=str(layout.services),
            hint=f"there are: {', '.join(known)}",
        )
    return [known[name] for name in dict.fromkeys(names)]


def _damaged(layout: Layout, wanted: List[ServiceSpec]) -> List[Dict[str, Any]]:
    """The services whose files cannot be read; raises InputError ``service-damaged`` where one of them is wanted."""
    found = []
    for folder in service_folders(layout.root):
        error = unreadable(folder)
        if error is None:
            continue
        if folder.name in [spec.name for spec in wanted]:
            told = error if isinstance(error, DeployError) else folder.damaged(folder.path, str(error))
            message = f"what service {folder.name} holds is not known: {told.message}"
            raise InputError("service-damaged", message, where=told.where, hint=told.hint)
        found.append({**codec.to_dict(unknown_info(folder, error)), "changed": False})
    return found


def _prepare(
    layout: Layout, base: ServiceSpec, settings: LaunchSettings, gpus: List[Optional[Gpu]], progress: ProgressSink
) -> List[_Target]:
    """Decide and check everything, then stop what is replaced and write the folders: a bad setting changes nothing."""
    allowed = parse_ports(settings.ports, DEFAULT_RANGE)
    existing = [(folder, spec, read_state(folder)) for folder, spec in _launched(layout)]
    living = {folder.name: (folder, spec) for folder, spec, state in existing if state and state.state in LIVING}
    stopping = [folder.name for folder, _, state in existing if state and state.state == "stopping"]
    keep: List[_Target] = []
    start: List[ServiceSpec] = []
    stop: Dict[str, ServiceFolder] = {}
    for gpu in gpus:
        wanted = for_gpu(base, gpu)
        for folder, spec in living.values():
            if not spec.shares_device(wanted):
                continue
            if folder.name in stopping:  # its end is waited for, whatever its settings were
                stop[folder.name] = folder
                continue
            problem = None if settings.replace else secrets_problem(folder)
            if problem is not None:
                raise problem
            if folder.name == wanted.name and spec.same_service(wanted) and _has_secrets(folder, settings.secrets):
                keep.append(_Target(folder, spec, None))
            elif settings.replace:
                stop[folder.name] = folder
            else:
                raise _running(folder, spec, wanted)
        if wanted.name not in [target.spec.name for target in keep]:
            start.append(wanted)
    taken = {port for name, (_, spec) in living.items() if name not in stop for port in _ports(spec)}
    freed = {port for name in stop for port in _ports(living[name][1])}
    before = {folder.name: _ports(spec) for folder, spec, _ in existing}
    targets = []
    for wanted in start:
        port, nccl_port = allocate(allowed, taken, 2, before.get(wanted.name, ()), freed)
        taken |= {port, nccl_port}
        spec = replace(wanted, port=port, nccl_port=nccl_port)
        targets.append(_Target(ServiceFolder(layout.services / spec.name), spec, uuid.uuid4().hex))
    if targets:
        require_space(layout.services, _SPACE, "the services' files need")
    for folder in stop.values():
        stop_service(folder, progress)
    for folder, spec, state in existing:  # a dead supervisor may have left an engine that holds the GPU
        if state and state.state == "dead" and any(spec.shares_device(wanted) for wanted in start):
            stop_service(folder, progress)
    for target in targets:
        target.folder.write(target.spec, settings.secrets)
    return keep + targets


def for_gpu(base: ServiceSpec, gpu: Optional[Gpu]) -> ServiceSpec:
    """``base`` with the name of its GPU, ``gpu0``, or ``cpu``."""
    if gpu is None:
        return replace(base, name="cpu")
    return replace(base, name=f"gpu{gpu.index}", gpu_index=gpu.index, gpu_uuid=gpu.uuid)


def _launched(layout: Layout) -> List[Tuple[ServiceFolder, ServiceSpec]]:
    readable = (folder for folder in service_folders(layout.root) if unreadable(folder) is None)
    pairs = ((folder, folder.spec()) for folder in readable)
    return [(folder, spec) for folder, spec in pairs if spec is not None]


def _has_secrets(folder: ServiceFolder, secrets: Dict[str, str]) -> bool:
    return secrets_problem(folder) is None and folder.secrets() == secrets


def _ports(spec: ServiceSpec) -> Tuple[int, int]:
    return spec.port, spec.nccl_port


def _running(folder: ServiceFolder, spec: ServiceSpec, wanted: ServiceSpec) -> InputError:
    changed = spec.differences(wanted)
    told = [key for key in changed if key != "release" or "release_id" not in changed]  # the id says it shorter
    names = {key: "release" if key == "release_id" else key for key in told}
    text = "; ".join(f"{names[key]}: {getattr(spec, key)!r} now, {getattr(wanted, key)!r} asked" for key in told)
    return InputError(
        "service-running",
        f"service {folder.name} runs with other {'settings: ' + text if changed else 'secrets'}",
        where=str(folder.path),
        hint="stop it first, or launch with --replace",
        details={"changed": changed},
    )


def _wait_for(
    targets: List[_Target], wait: bool, progress: ProgressSink, failures: Dict[str, DeployError]
) -> Dict[str, Any]:
    """Until every service is ready or has failed, as those of ``failures`` have. The supervisors do the work and
    keep to their deadline themselves: a caller that is interrupted here leaves services that go on starting, as
    ``status`` shows."""
    began = time.monotonic()
    open_targets = {target.spec.name: target for target in targets if wait and target.spec.name not in failures}
    failures = dict(failures)
    while open_targets:
        for name, target in list(open_targets.items()):
            state = read_state(target.folder)
            if state is None or (target.launch is not None and state.launch != target.launch):
                failures[name] = StepError(
                    "launch-superseded", "launched or stopped by somebody else meanwhile", hint=_LOOK
                )
            elif state.state == "failed":
                failures[name] = state.failure() or StepError("launch-failed", "it failed", hint=_LOOK)
            elif state.state in ("stopped", "dead"):  # "stopping" ends as one of these or as failed
                why = f": {state.phase}" if state.phase else ""
                failures[name] = StepError("launch-stopped", f"stopped while it started{why}", hint=_LOOK)
            if name in failures or (state is not None and state.state == "ready"):
                del open_targets[name]
                progress(Progress(f"launch {name}", "failed" if name in failures else "ready", finished=True))
            elif state is not None:
                last = tail(target.folder.log, 1)[0]
                text = f"{state.phase}, {time.monotonic() - began:.0f} s: {last[0][-160:] if last else ''}"
                progress(Progress(f"launch {name}", text))
        if open_targets:
            time.sleep(_POLL_S)
    services = [{**describe(target), "changed": target.launch is not None} for target in targets]
    if failures:
        raise _launch_failed(failures, services)
    return {"services": services, "changed": any(target.launch is not None for target in targets)}


def describe(target: _Target) -> Dict[str, Any]:
    state = read_state(target.folder)
    return {
        **codec.to_dict(service_info(target.spec, state)),
        "listen": target.spec.listen,
        "probe": codec.to_dict(state.probe) if state and state.probe else None,
    }


def _launch_failed(failures: Dict[str, DeployError], services: List[Dict[str, Any]]) -> DeployError:
    """One error for all that failed: the only one's own, or a summary with the exit code of the worst."""
    name, first = next(iter(failures.items()))
    details = {**first.details, "services": services}
    if len(failures) > 1:
        details["failures"] = {name: error.to_dict() for name, error in failures.items()}
    ready = [str(service["name"]) for service in services if service["state"] == "ready"]
    rest = f"; ready: {', '.join(ready)}" if ready else ""
    others = f" ({len(failures)} services failed: {', '.join(failures)})" if len(failures) > 1 else ""
    kind = type(first) if all(type(error) is type(first) for error in failures.values()) else StepError
    told = first.message if first.message.startswith(f"{name}: ") else f"{name}: {first.message}"
    return kind(first.id, f"{told}{others}{rest}", where=first.where, hint=first.hint, details=details)
