"""The planner: facts + settings + profile + patch set -> Plan. Pure: no I/O, no clock, no environment."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from packaging.version import Version

from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import HostFacts, ReleaseInfo, Venv
from ddtree_deploy.plan.donor_set import DONOR_PROFILE
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.files import diff_files, engine_problems
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action, FileChange, PackageChange, Plan, Problem
from ddtree_deploy.plan.packages import PackageDiff, diff_packages
from ddtree_deploy.plan.problems import error, host_problems, services_that_stay, usable_base
from ddtree_deploy.plan.release_id import inputs_digest, release_id
from ddtree_deploy.plan.sizes import installed_bytes
from ddtree_deploy.plan.source_choice import donor_place
from ddtree_deploy.plan.sources import source_problems, split
from ddtree_deploy.plan.space import needed, space_problems
from ddtree_deploy.profiles.lock import packages_for
from ddtree_deploy.profiles.model import LockedPackage
from ddtree_deploy.versions import same_version

StepPlanner = Callable[[PlanInputs, PlanDraft], "list[Action]"]

_SEVERITIES = ("error", "warning", "note")


def build_plan(inputs: PlanInputs, step_planner: Callable[[str], StepPlanner] | None = None) -> Plan:
    """Everything that ``provision`` would do on one host, and everything that stands in its way.

    A plan with errors has no actions. Nor has one whose release exists, complete and current: there is nothing to do.
    ``step_planner`` finds a step's ``plan`` function by the step's name (default: the modules of ``steps/``).
    Raises InputError ``unknown-step`` when the playbook names a step that does not exist.
    """
    step_planner = step_planner or _step_planner
    planners = {step.step: step_planner(step.step) for step in inputs.playbook.steps}
    facts, settings = inputs.facts, inputs.settings
    digest = inputs_digest(inputs)
    plan = Plan(
        host=settings.host,
        root=facts.root or settings.root,
        base=facts.base.path if facts.base is not None and facts.base.exists else settings.base,
        profile=inputs.profile.name,
        release_id=release_id(inputs.profile.name, digest),
        inputs_digest=digest,
        patch_set=inputs.patch_set.name if inputs.patch_set is not None and _has(inputs, "patch") else None,
        previous=next((found.id for found in facts.releases if found.id == facts.current and found.complete), None),
    )
    existing = next((release for release in facts.releases if release.id == plan.release_id), None)
    if existing is not None and existing.complete and existing.inputs_digest == digest:
        return _plan_existing(inputs, plan, existing, planners)
    return _plan_new(inputs, plan, existing, planners)


def _plan_existing(inputs: PlanInputs, plan: Plan, release: ReleaseInfo, planners: dict[str, StepPlanner]) -> Plan:
    """The release is there: make it current, or do nothing."""
    problems = host_problems(inputs) + services_that_stay(inputs, release.id)
    current = release.current or inputs.facts.current == release.id
    keep = len(inputs.facts.base.packages) if inputs.facts.base is not None else 0
    plan = replace(plan, unchanged_packages=keep)
    if current or any(problem.severity == "error" for problem in problems):
        return replace(plan, problems=_sorted(problems))
    activate = {"activate": planners["activate"]} if "activate" in planners else {}
    actions = _actions(inputs, _draft(inputs, plan, _Changes(), problems), activate)
    return replace(plan, actions=actions, problems=_sorted(problems))


def _plan_new(inputs: PlanInputs, plan: Plan, existing: ReleaseInfo | None, planners: dict[str, StepPlanner]) -> Plan:
    problems = host_problems(inputs) + services_that_stay(inputs, plan.release_id)
    if existing is not None:
        message = f"{existing.path} exists and is not a complete release of these inputs"
        hint = f"Look at it, then remove it: ddtree-deploy prune {plan.host} --keep 1."
        if existing.current:  # prune keeps what is current
            hint = f"It is current, and damaged: go back (ddtree-deploy rollback {plan.host}), or remove it by hand."
        problems.append(error("release-incomplete", message, hint))
    elif plan.release_id in inputs.facts.foreign:
        message = f"{plan.root}/releases/{plan.release_id} exists and is no release: it has no record"
        problems.append(error("release-incomplete", message, "Look at it, then remove it or move it away."))
    base = usable_base(inputs.facts)
    changes = _Changes()
    if base is not None:
        changes = _changes(inputs, base)
        problems += changes.problems
        problems += source_problems(inputs, changes.locked, changes.packages.changes)
        problems += space_problems(inputs, needed(inputs, changes.packages.changes))
    plan = replace(
        plan,
        packages=changes.packages.changes,
        files=changes.files,
        unchanged_packages=len(changes.packages.keep),
        problems=_sorted(problems),
    )
    if plan.errors:
        return plan
    return replace(plan, actions=_actions(inputs, _draft(inputs, plan, changes, plan.problems), planners))


@dataclass(frozen=True)
class _Changes:
    locked: list[LockedPackage] = field(default_factory=list)
    packages: PackageDiff = field(default_factory=PackageDiff)
    files: list[FileChange] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def _changes(inputs: PlanInputs, base: Venv) -> _Changes:
    facts, profile = inputs.facts, inputs.profile
    locked = packages_for(profile.packages, base.python or "", facts.machine)
    overlays, patches = _has(inputs, "overlay"), _has(inputs, "patch")
    diff = PackageDiff(keep=sorted(package.name for package in base.packages))
    if overlays:
        diff = diff_packages(profile, locked, base)
    diff = replace(diff, changes=_with_sources(inputs, locked, diff.changes))
    problems = list(diff.problems)
    kept = facts.engine if profile.engine in diff.keep else None
    patch_set = inputs.patch_set if patches else None
    engine = _engine_version(inputs, base, diff) or _engine_to_patch(inputs, base, diff)
    problems += engine
    if kept is not None and not engine:
        problems += engine_problems(kept, patch_set)
    shims = profile if overlays else replace(profile, extra_files=[])
    return _Changes(locked, diff, diff_files(shims, patch_set, kept, _site_packages(facts)), problems)


def _with_sources(inputs: PlanInputs, locked: list[LockedPackage], changes: list[PackageChange]) -> list[PackageChange]:
    """Each change with where it comes from, where there is more than one place to look."""
    source = inputs.source
    if source.kind != "donor":
        return changes
    wanted = {change.name for change in changes if change.change != "remove"}
    shared = split(inputs, [package for package in locked if package.name in wanted])
    places = {package.name: donor_place(source) for package in shared.donor}
    if source.rest is not None:
        places.update({package.name: source.rest.kind for package in shared.rest})
    return [replace(change, source=places.get(change.name)) for change in changes]


def _engine_version(inputs: PlanInputs, base: Venv, diff: PackageDiff) -> list[Problem]:
    """The release must end up with the profile's engine, whether it is brought or kept."""
    profile = inputs.profile
    if any(change.name == profile.engine for change in diff.from_source):
        return []
    found = {package.name: package for package in base.packages}.get(profile.engine)  # of two the last: as the diff
    if found is not None and same_version(found.version, profile.engine_version) and not found.editable:
        return []
    if found is None and profile.name == DONOR_PROFILE and not (_has(inputs, "patch") or _has(inputs, "smoke")):
        return []  # only the packages are wanted
    if found is None:
        what = f"has no {profile.engine}"
    elif found.editable:
        what = f"has an editable install of {profile.engine} ({found.editable})"
    else:
        what = f"has {profile.engine} {found.version}"
    message = f"the base venv {what}; profile {profile.name} is for {profile.engine} {profile.engine_version}"
    hint = "Use a profile that locks the engine together with a playbook that has the overlay step."
    return [error("engine-version", message, hint)]


def _engine_to_patch(inputs: PlanInputs, base: Venv, diff: PackageDiff) -> list[Problem]:
    """What the step ``patch`` would refuse of a kept engine, beside its files (see ``files.engine_problems``)."""
    engine, patch_set = inputs.profile.engine, inputs.patch_set
    if patch_set is None or engine not in diff.keep or not _has(inputs, "patch"):
        return []
    found = [package for package in base.packages if package.name == engine]
    hint = f"Install it in the base venv anew: uv pip install --reinstall --no-deps {engine}=={patch_set.version}."
    if len(found) > 1:
        versions = " and ".join(package.version for package in found)
        message = f"{engine} is recorded more than once in the base venv, as {versions}: an upgrade was interrupted"
        return [error("engine-twice", message, f"Uninstall it there until none is left. {hint}")]
    if not same_version(found[0].version, patch_set.version):  # 1.0+cu128 and 1.0+cu130 are both 1.0
        message = f"patch set {patch_set.name} is for {engine} {patch_set.version}, "
        message += f"the base venv has {found[0].version}"
        return [error("patch-set-version", message, hint)]
    if not found[0].record:
        message = f"{engine} in the base venv has no whole RECORD, so the patched files cannot be recorded"
        return [error("engine-without-record", message, hint)]
    return []


def _draft(inputs: PlanInputs, plan: Plan, changes: _Changes, problems: list[Problem]) -> PlanDraft:
    return PlanDraft(
        release_id=plan.release_id,
        inputs_digest=plan.inputs_digest,
        root=plan.root,
        base=plan.base,
        site_packages=_site_packages(inputs.facts),
        locked=changes.locked,
        packages=changes.packages.changes,
        keep=changes.packages.keep,
        files=changes.files,
        previous=inputs.facts.current,
        problems=problems,
    )


def _actions(inputs: PlanInputs, draft: PlanDraft, planners: dict[str, StepPlanner]) -> list[Action]:
    actions: list[Action] = []
    for step in inputs.playbook.steps:
        if step.step in planners:
            actions += planners[step.step](inputs, replace(draft, options=step.options))
    return [
        replace(_sized(action, draft), id=f"{number:02}-{action.step}")
        for number, action in enumerate(actions, start=1)
    ]


def _sized(action: Action, draft: PlanDraft) -> Action:
    """The overlay with the estimated size of its packages: it cannot tell, a lock has no sizes."""
    if action.step != "overlay" or action.bytes:
        return action
    return replace(action, bytes=installed_bytes(change.name for change in draft.packages if change.change != "remove"))


def _site_packages(facts: HostFacts) -> str:
    base = usable_base(facts)
    if base is None or base.python is None:
        return ""
    if base.site_packages and base.site_packages.startswith(base.path.rstrip("/") + "/"):
        return base.site_packages[len(base.path.rstrip("/")) + 1 :]
    major, minor = Version(base.python).release[:2]
    return f"lib/python{major}.{minor}/site-packages"


def _has(inputs: PlanInputs, step: str) -> bool:
    return any(entry.step == step for entry in inputs.playbook.steps)


def _sorted(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: _SEVERITIES.index(problem.severity))


def _step_planner(name: str) -> StepPlanner:
    if not name.isidentifier() or name.startswith("_"):
        raise InputError("unknown-step", f"{name!r} is not the name of a step")
    try:
        module = importlib.import_module(f"ddtree_deploy.steps.{name}")
        planner: StepPlanner = module.plan
    except (ModuleNotFoundError, AttributeError) as cause:
        raise InputError("unknown-step", f"there is no step {name!r}", hint="See docs/playbooks.md.") from cause
    return planner
