"""Step ``smoke``: the release is imported, with the environment that its services will have. Agent-safe."""

from __future__ import annotations

import json
from typing import Any, Dict, List

from ddtree_deploy.codec import to_dict
from ddtree_deploy.errors import StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action
from ddtree_deploy.release.files import replace_file
from ddtree_deploy.steps.context import StepContext


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action. The host's own variables of the inventory go over the profile's, as they do for its services."""
    return [
        Action(
            id="smoke",
            step="smoke",
            summary="import torch, torchvision, the kernels and the patched engine",
            params={"environment": dict(inputs.settings.environment)},
        )
    ]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """Returns {checks}. Raises StepError ``smoke-failed`` naming each check that failed and why."""
    from ddtree_deploy.verify.checks import run_checks

    results = run_checks(context.final, action.params.get("environment") or {}, context.progress)
    checks = [to_dict(result) for result in results]
    log = context.log("smoke.json")
    replace_file(log, json.dumps(checks, indent=1, ensure_ascii=True).encode("ascii") + b"\n")
    failed = [result for result in results if result.status == "failed"]
    if failed:
        raise StepError(
            "smoke-failed",
            "; ".join(f"{result.title}: {result.summary}" for result in failed),
            where=str(log),
            hint=next((result.hint for result in failed if result.hint), None),
            details={"checks": checks},
        )
    for result in results:
        if result.status == "warning":
            context.note("warning", f"smoke-{result.id}", f"{result.title}: {result.summary}")
    return {"checks": checks}


def undo(action: Action, context: StepContext) -> None:
    """Nothing: imports only leave byte code, in the release itself."""
