"""Step ``activate``: the finished release gets its name, then ``current`` is switched to it. Agent-safe."""

from __future__ import annotations

from typing import Any, Dict, List

from ddtree_deploy.errors import StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action, Precondition
from ddtree_deploy.release.store import current_release, read_record, switch_current
from ddtree_deploy.steps.context import StepContext


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action, which only goes on if the active release is still the one that the plan saw."""
    return [
        Action(
            id="activate",
            step="activate",
            summary=f"switch current to {draft.release_id}",
            preconditions=[Precondition("current-is", {"release": draft.previous})],
        )
    ]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """The executor has finished the release by now. Returns {release_id, previous}.

    Raises StepError ``nothing-to-activate``.
    """
    if read_record(str(context.final)) is None:
        raise StepError(
            "nothing-to-activate",
            f"there is no complete release at {context.final}",
            where=str(context.final),
            hint="a playbook that activates a release needs the step `clone` before it",
        )
    previous = current_release(context.layout)
    context.journal.append("activating", release=context.release_id, previous=previous, by="provision")
    switch_current(context.layout, context.release_id)
    context.journal.append("activated", release=context.release_id, previous=previous, by="provision")
    return {"release_id": context.release_id, "previous": previous}


def undo(action: Action, context: StepContext) -> None:
    """Nothing: until the one rename that it ends with nothing is active, and after it nothing can fail."""
