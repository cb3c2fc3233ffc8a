"""Step ``audit``: would the binaries of the release load together? From its files alone. Agent-safe."""

from __future__ import annotations

from typing import Any, Dict, List

from ddtree_deploy.codec import to_dict
from ddtree_deploy.errors import StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action
from ddtree_deploy.serve.environment import profile_environment
from ddtree_deploy.steps.context import StepContext

_SHOWN = 5


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action."""
    return [
        Action(id="audit", step="audit", summary="check that the binaries fit together, before anything is imported")
    ]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """Returns {counts, findings}. Raises StepError ``audit-failed`` with the findings that are errors."""
    from ddtree_deploy.abi.audit import audit_environment  # brings the ELF reader: only when needed
    from ddtree_deploy.abi.host import probe_host

    limits = probe_host(profile_environment(context.final).get("LD_LIBRARY_PATH", ""))
    cache = str(context.root / "cache" / "abi")
    report = audit_environment(str(context.partial), limits, context.progress, cache)
    findings = [to_dict(finding) for finding in report.findings]
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors:
        lines = [f"{finding.id}: {finding.message}" for finding in errors]
        more = f" (and {len(lines) - _SHOWN} more)" if len(lines) > _SHOWN else ""
        fix = next((finding.fix for finding in errors if finding.fix), None)
        raise StepError(
            "audit-failed",
            "the binaries of the release do not fit together: " + "; ".join(lines[:_SHOWN]) + more,
            where=str(context.partial),
            hint=fix or "`ddtree-deploy abi` on the base venv shows what it brings with it",
            details={"findings": [to_dict(finding) for finding in errors]},
        )
    for finding in report.findings:
        if finding.severity == "warning":
            context.note("warning", finding.id, finding.message)
    return {"counts": dict(report.counts), "findings": findings}


def undo(action: Action, context: StepContext) -> None:
    """Nothing: an audit only reads."""
