"""Executing a plan on the host: lock, journal, re-check, step by step, nothing activated before the last. Agent-safe.

A run that is killed leaves a ``.partial`` folder, perhaps a symlink to it, and journal lines. The next run removes
them and builds anew; what was downloaded stays in the cache, and cloning takes seconds. ``current`` is switched by one
rename, after the release has its name, so it leads to a complete release at every moment.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, Dict, List, Optional

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.codec import from_dict
from ddtree_deploy.errors import DeployError, InputError
from ddtree_deploy.plan.model import Action, Plan
from ddtree_deploy.release.clone import clone_error
from ddtree_deploy.release.files import remove_tree
from ddtree_deploy.release.finish import finish_release
from ddtree_deploy.release.journal import Journal, read_journal
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.lock import Lock
from ddtree_deploy.release.prune import clean_leftovers
from ddtree_deploy.release.store import current_release, read_record
from ddtree_deploy.steps import load, preconditions
from ddtree_deploy.steps.context import StepContext


def apply_plan(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``plan.apply``. ``params``: ``plan`` (a Plan), ``blobs`` {sha256: path on this host}, ``indexes`` [URL],
    ``donor`` {staging, site, paths, notes} where a donor's packages were brought from another host.

    Returns {release_id, changed, previous, current, actions: [{id, step, seconds, result}],
    notes: [{severity, id, message}]}.
    Raises InputError for a plan with errors, LockedError, DriftError and StepError; after any of them, and after
    KeyboardInterrupt, ``current`` is what it was, and the release under construction is gone (its logs are kept).
    """
    plan = from_dict(Plan, params["plan"], "plan")
    if plan.errors:
        first = plan.errors[0]
        raise InputError(first.id, f"the plan has errors: {first.message}", hint=first.hint)
    layout = Layout(plan.root)
    layout.release(plan.release_id)  # a bad id is refused before anything is touched
    steps = [load(action.step) for action in plan.actions]
    with Lock(layout.lock, f"provision {plan.profile} ({plan.release_id})") as lock:
        journal = Journal(layout.journal)
        context = StepContext(layout, plan, progress, journal, dict(params.get("blobs") or {}))
        context.indexes = [str(index) for index in params.get("indexes") or []]
        context.donor = dict(params.get("donor") or {})
        if lock.note:
            context.note("note", "lock-taken-over", lock.note)
        _note_interruption(context)
        journal.append(
            "run-begin",
            release=plan.release_id,
            inputs_digest=plan.inputs_digest,
            base=plan.base,
            actions=[action.id for action in plan.actions],
        )
        before = current_release(layout)
        layout.releases.mkdir(parents=True, exist_ok=True)
        clean_leftovers(layout, journal, progress)
        try:
            report = _run_all(steps, context)
        except BaseException:
            _abandon(context)
            raise
        journal.append("run-end", release=plan.release_id, ok=True)
        return {
            "release_id": plan.release_id,
            "changed": bool(report),
            "previous": before,
            "current": current_release(layout),
            "actions": report,
            "notes": context.notes,
        }


def _run_all(steps: List[Any], context: StepContext) -> List[Dict[str, Any]]:
    remaining = _remaining(context)
    report: List[Dict[str, Any]] = []
    for action, step in zip(context.plan.actions, steps):
        if action in remaining:
            report.append(_run(action, step, context))
    if context.partial.is_dir():  # a playbook that does not activate: the release waits for a `rollback --to`
        _finish_partial(context)
    return report


def _remaining(context: StepContext) -> List[Action]:
    """All actions, or only the activation when an earlier run of the same plan got as far as naming the release."""
    record = read_record(str(context.final))
    if record is None or record.inputs_digest != context.plan.inputs_digest:
        return list(context.plan.actions)
    return [action for action in context.plan.actions if action.step == "activate"]


def _run(action: Action, step: Any, context: StepContext) -> Dict[str, Any]:
    started = time.monotonic()
    journal = context.journal
    names = {"action": action.id, "step": action.step, "release": context.release_id}
    try:
        context.progress(Progress(action.step, action.summary))
        for precondition in action.preconditions:
            preconditions.check(precondition, context)
        journal.append("begin", summary=action.summary, **names)
        if action.step == "activate":
            _finish_partial(context)
        else:
            _link_final(context)
        result: Dict[str, Any] = step.apply(action, context) or {}
        seconds = round(time.monotonic() - started, 3)
        journal.append("end", seconds=seconds, **names)
        if action.step != "activate":  # a release that is active is a success, even if nobody is there to hear it
            context.progress(Progress(action.step, action.summary, finished=True))
    except BaseException as error:
        failure = _as_deploy_error(error, action, context)
        _journal_failure(failure or error, names, journal)
        with contextlib.suppress(OSError, DeployError):
            step.undo(action, context)
        if failure is None or failure is error:
            raise
        raise failure from error
    context.results[action.step] = result
    return {"id": action.id, "step": action.step, "seconds": seconds, "result": result}


def _as_deploy_error(error: BaseException, action: Action, context: StepContext) -> Optional[DeployError]:
    """The DeployError to raise for ``error``; None when it is to be raised as it is (an interrupt, a bug)."""
    if isinstance(error, OSError):
        error = clone_error(error, str(context.root), str(context.partial), 0)
    if not isinstance(error, DeployError):
        return None
    error.details.setdefault("action", action.id)
    return error


def _journal_failure(error: BaseException, names: Dict[str, Any], journal: Journal) -> None:
    described = {"id": type(error).__name__, "message": str(error), "where": None}
    if isinstance(error, DeployError):
        described = {"id": error.id, "message": error.message, "where": error.where}
    # A full disk may refuse this line; the error itself is what the user must see.
    with contextlib.suppress(OSError):
        journal.append("fail", interrupted=isinstance(error, KeyboardInterrupt), error=described, **names)


def _abandon(context: StepContext) -> None:
    """Remove the release under construction. Whatever fails here, the next run makes good."""
    with contextlib.suppress(OSError):
        if context.final.is_symlink():
            os.unlink(context.final)
        remove_tree(context.partial)
        context.journal.append("run-end", release=context.release_id, ok=False)


def _link_final(context: StepContext) -> None:
    """While it is built, the release's final path leads to where it is built."""
    if context.partial.is_dir() and not os.path.lexists(context.final):
        os.symlink(context.partial.name, context.final)


def _finish_partial(context: StepContext) -> None:
    if context.partial.is_dir():
        cloned = next(action for action in context.plan.actions if action.step == "clone")
        finish_release(cloned.params["record"], context)


def _note_interruption(context: StepContext) -> None:
    entries = read_journal(context.layout.journal)
    begun = [index for index, entry in enumerate(entries) if entry["event"] == "run-begin"]
    if not begun or any(entry["event"] == "run-end" for entry in entries[begun[-1] :]):
        return
    last = [entry for entry in entries[begun[-1] :] if entry["event"] == "begin"]
    at = f" at {last[-1].get('action')}" if last else ""
    context.note(
        "note",
        "previous-run-interrupted",
        f"the run of {entries[begun[-1]].get('ts')} was interrupted{at}; what it left is removed",
    )
