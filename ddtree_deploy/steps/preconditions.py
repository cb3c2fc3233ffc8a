"""Checking, right before an action, that the host still is what the plan was made for. Agent-safe.

kind              params
----------------  ---------------------------------------------------------------------------------------------------
venv-fingerprint  path, fingerprint, packages {name: version} (to say what changed)
path-missing      path
path-exists       path
sha256            files {path relative to the release: [accepted hex sha256, null where it may be missing]}
free-space        path, bytes
current-is        release (id or null)
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, List, Optional

from ddtree_deploy.errors import DriftError, StepError
from ddtree_deploy.plan.model import Precondition
from ddtree_deploy.release.files import sha256_file
from ddtree_deploy.release.space import require_space
from ddtree_deploy.release.store import current_release
from ddtree_deploy.steps.context import StepContext

_OTHER = "its Python, its configuration, or files in it"
_AGAIN = "plan again: `ddtree-deploy plan HOST` shows what is different"


def check(precondition: Precondition, context: StepContext) -> None:
    """Raises DriftError ``host-changed`` naming what changed, or StepError ``no-space`` with the numbers."""
    checker = _CHECKS.get(precondition.kind)
    if checker is None:
        raise StepError("unknown-precondition", f"the plan asks for {precondition.kind!r}, which this version lacks")
    checker(precondition.params, context)


def _drift(message: str, where: str) -> DriftError:
    return DriftError("host-changed", message, where=where, hint=_AGAIN)


def _venv_fingerprint(params: Dict[str, Any], context: StepContext) -> None:
    from ddtree_deploy.facts.venv import probe_venv

    path = str(params["path"])
    venv = probe_venv(path)
    if not venv.exists or venv.problem:
        raise _drift(f"the venv {path} was there when the plan was made: {venv.problem or 'it is gone'}", path)
    if venv.fingerprint == params["fingerprint"]:
        return
    before: Optional[Dict[str, str]] = params.get("packages")
    now = {package.name: package.version for package in venv.packages}
    changes = _package_changes(before, now) if before is not None else []
    what = ", ".join(changes[:5]) + (f" and {len(changes) - 5} more" if len(changes) > 5 else "")
    raise _drift(f"the venv {path} changed since the plan was made: {what or _OTHER}", path)


def _package_changes(before: Dict[str, str], now: Dict[str, str]) -> List[str]:
    changes = []
    for name in sorted(set(before) | set(now)):
        old, new = before.get(name), now.get(name)
        if old != new:
            changes.append(f"{name} {old or '(absent)'} -> {new or '(absent)'}")
    return changes


def _path_missing(params: Dict[str, Any], context: StepContext) -> None:
    path = str(params["path"])
    if os.path.lexists(path):
        raise _drift(f"{path} exists; it did not when the plan was made", path)


def _path_exists(params: Dict[str, Any], context: StepContext) -> None:
    path = str(params["path"])
    if not os.path.exists(path):
        raise _drift(f"{path} is gone; it existed when the plan was made", path)


def _sha256(params: Dict[str, Any], context: StepContext) -> None:
    for relative, accepted in params["files"].items():
        path = context.partial / relative
        found = sha256_file(path) if path.is_file() else None
        if found not in accepted:
            state = f"has sha256 {found[:12]}…" if found else "is missing"
            raise _drift(f"{relative} {state}, which is not what the plan was made for", str(path))


def _free_space(params: Dict[str, Any], context: StepContext) -> None:
    require_space(params["path"], int(params["bytes"]), "the release needs")


def _current_is(params: Dict[str, Any], context: StepContext) -> None:
    planned, now = params.get("release"), current_release(context.layout)
    if planned != now:
        raise _drift(
            f"the active release is {now or 'none'}; it was {planned or 'none'} when the plan was made",
            str(context.layout.current),
        )


_CHECKS: Dict[str, Callable[[Dict[str, Any], StepContext], None]] = {
    "venv-fingerprint": _venv_fingerprint,
    "path-missing": _path_missing,
    "path-exists": _path_exists,
    "sha256": _sha256,
    "free-space": _free_space,
    "current-is": _current_is,
}
