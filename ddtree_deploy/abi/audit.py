"""The audit: reads an environment's files, asks every rule, returns a :class:`Report`. Never imports what it audits."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Dict, List, Optional

from ddtree_deploy.abi.cache import Cache, cache_folder
from ddtree_deploy.abi.context import Context, build_context
from ddtree_deploy.abi.environment import Environment, load_environment
from ddtree_deploy.abi.host import HostLimits, limits_from_facts, probe_host
from ddtree_deploy.abi.model import SEVERITIES, Finding, Report
from ddtree_deploy.abi.place import default_place, place
from ddtree_deploy.abi.registry import RULES
from ddtree_deploy.agent.protocol import Progress, ProgressSink, silent
from ddtree_deploy.codec import to_dict
from ddtree_deploy.errors import InputError


def audit_environment(
    path: str,
    host: Optional[HostLimits] = None,
    progress: ProgressSink = silent,
    cache_dir: Optional[str] = None,
) -> Report:
    """Audit a venv, a Python prefix or a site-packages folder; ``host`` None probes the machine we run on.

    ``cache_dir`` None remembers nothing for the next audit.
    Raises InputError ``no-environment`` where nothing of the kind is at ``path``.
    """
    clock = _Clock(progress)
    with clock.phase("scan"):
        environment = load_environment(path)
    return audit_loaded(environment, host, progress, cache_dir, clock)


def audit_loaded(
    environment: Environment,
    host: Optional[HostLimits] = None,
    progress: ProgressSink = silent,
    cache_dir: Optional[str] = None,
    clock: Optional[_Clock] = None,
) -> Report:
    """Audit an environment that was put together already, also one that exists only as a plan (see ``preview``)."""
    clock = clock or _Clock(progress)
    with clock.phase("host"):
        limits = host or probe_host()
    with clock.phase("read"):
        cache = Cache(cache_dir)
        context = build_context(environment, limits, cache)
    findings: List[Finding] = []
    for name, rule in RULES:
        with clock.phase(name):
            findings += rule(context)
    findings = [_for_the_engine(context, finding) for finding in findings]
    with clock.phase("remember"):
        cache.save()
    return _report(context, findings, clock.seconds)


def op_audit(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Agent operation ``abi.audit``: optional ``facts``, ``environment`` (the service's).

    ``path`` is that of a venv; with ``root`` it may be a release's id or ``current``, or empty for the current release,
    else the venv ``base``.
    """
    path, root = params.get("path"), params.get("root")
    if root and path == "":
        path = default_place(root, params.get("base"))
    if not isinstance(path, str) or not path:
        raise InputError("bad-params", "abi.audit needs the path of an environment", hint='{"path": "/opt/venv"}')
    variables = params.get("environment")
    search = str(variables.get("LD_LIBRARY_PATH", "")) if isinstance(variables, dict) else None
    host = probe_host(search)
    if params.get("facts"):
        host = limits_from_facts(params["facts"], host)
    cache = cache_folder(root)
    return to_dict(audit_environment(place(path, root) if root else path, host, progress, cache))


def _for_the_engine(context: Context, finding: Finding) -> Finding:
    """Beside an engine, what is wrong with a package that it never imports for certain is only a warning."""
    if finding.severity != "error" or not finding.packages or context.usage.engine is None:
        return finding
    dist = next((d for d in context.environment.distributions if d.label == finding.packages[0]), None)
    return finding if dist is None or context.usage.needed(dist) else replace(finding, severity="warning")


def _report(context: Context, findings: List[Finding], timing: Dict[str, float]) -> Report:
    environment = context.environment
    order = {severity: index for index, severity in enumerate(SEVERITIES)}
    unique = {(f.id, f.cause, f.message): f for f in findings}
    ordered = sorted(unique.values(), key=lambda f: (order[f.severity], f.cause, f.id, f.message))
    return Report(
        path=environment.prefix,
        python=environment.python_text,
        torch=environment.torch_version,
        abi_tag=environment.abi_tag,
        findings=ordered,
        counts={severity: sum(f.severity == severity for f in ordered) for severity in SEVERITIES},
        files=len(environment.tree.files),
        shared_objects=len(context.objects),
        distributions=len(environment.distributions),
        timing={name: round(seconds, 3) for name, seconds in timing.items()},
    )


class _Clock:
    """Seconds by phase, told to the progress sink."""

    def __init__(self, progress: ProgressSink) -> None:
        self.seconds: Dict[str, float] = {}
        self._progress = progress

    def phase(self, name: str) -> _Phase:
        self._progress(Progress(phase="abi", message=name))
        return _Phase(self, name)


class _Phase:
    def __init__(self, clock: _Clock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        self._start = time.monotonic()

    def __exit__(self, *exc: object) -> None:
        self._clock.seconds[self._name] = time.monotonic() - self._start
