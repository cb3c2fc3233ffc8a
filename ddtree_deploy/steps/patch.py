"""Step ``patch``: the patch set is applied to the engine of the release under construction, exactly. Agent-safe."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Dict, List

from ddtree_deploy.codec import from_dict
from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.patching import engine
from ddtree_deploy.patching.model import PatchSet
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action, Precondition
from ddtree_deploy.release.files import InsideCheck, break_link
from ddtree_deploy.steps.context import StepContext


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action that carries the patch set; each file must be as released, or as patched already."""
    patch_set = inputs.patch_set
    if patch_set is None:
        return []
    site = draft.site_packages
    files: Dict[str, List[Any]] = {
        f"{site}/{patch.path}": [patch.sha256_before, patch.sha256_after] for patch in patch_set.patches
    }
    files.update({f"{site}/{new.path}": [None, new.sha256] for new in patch_set.new_files})
    count = len(patch_set.patches)
    return [
        Action(
            id="patch",
            step="patch",
            summary=f"apply {patch_set.name}: {count} files changed, {len(patch_set.new_files)} new",
            params={"patch_set": asdict(patch_set), "site_packages": site},
            preconditions=[Precondition("sha256", {"files": files})],
            files=count + len(patch_set.new_files),
        )
    ]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """Returns {changed, unchanged} (paths relative to site-packages). Raises StepError with the engine's id when a
    file is neither as released nor as patched, ``outside-release`` when it is not really in the release."""
    patch_set = from_dict(PatchSet, action.params["patch_set"], "patch_set")
    site = context.partial / str(action.params["site_packages"])
    inside = InsideCheck(context.partial)
    for path in [*(patch.path for patch in patch_set.patches), *(new.path for new in patch_set.new_files)]:
        inside.require(f"{site}/{path}")
    for patch in patch_set.patches:
        if (site / patch.path).is_file():
            break_link(site / patch.path)
    try:
        outcome = engine.apply(patch_set, site)
    except InputError as error:
        # The plan was fine, the release is not: a failed step, not bad input.
        raise StepError(error.id, error.message, where=error.where, hint=error.hint, details=error.details) from error
    return {"changed": list(outcome.changed), "unchanged": list(outcome.unchanged), "patch_set": patch_set.name}


def undo(action: Action, context: StepContext) -> None:
    """Nothing: the release under construction is removed as a whole."""
