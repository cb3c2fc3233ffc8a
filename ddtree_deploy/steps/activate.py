"""Step ``activate``: the finished release gets its name, then ``current`` is switched to it. Agent-safe."""

from __future__ import annotations

import ctypes
import os
from dataclasses import asdict, replace
from typing import Any, Dict, List

from ddtree_deploy import __version__
from ddtree_deploy.codec import dumps, from_dict
from ddtree_deploy.errors import StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action, Precondition
from ddtree_deploy.release.files import make_folders, replace_file, sync_folder
from ddtree_deploy.release.journal import utc_now
from ddtree_deploy.release.layout import RECORD
from ddtree_deploy.release.model import ReleaseRecord
from ddtree_deploy.release.store import current_release, read_record, switch_current
from ddtree_deploy.steps.context import StepContext


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action, with the release's record as far as the plan knows it."""
    profile, patch_set, base = inputs.profile, inputs.patch_set, inputs.facts.base
    patched = any(change.change == "patch" for change in draft.files)
    record = ReleaseRecord(
        id=draft.release_id,
        inputs_digest=draft.inputs_digest,
        profile=profile.name,
        created="",
        base=draft.base,
        site_packages=draft.site_packages,
        base_fingerprint=base.fingerprint if base is not None else None,
        python=base.python if base is not None else None,
        patch_set=patch_set.name if patched and patch_set is not None else None,
        patch_set_digest=patch_set.digest if patched and patch_set is not None else None,
        engine=profile.engine,
        engine_version=profile.engine_version,
        abi_tag=profile.abi_tag,
        source={"kind": inputs.source.kind, "host": inputs.source.host},
        packages=list(draft.packages),
        files=[replace(change, diff=None) for change in draft.files],
        environment=dict(profile.environment),
        engine_arguments=list(profile.engine_arguments),
    )
    return [
        Action(
            id="activate",
            step="activate",
            summary=f"switch current to {draft.release_id}",
            params={"record": asdict(record)},
            preconditions=[Precondition("current-is", {"release": draft.previous})],
        )
    ]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """Returns {release_id, previous}. Raises StepError ``nothing-to-activate``."""
    partial, final, layout = context.partial, context.final, context.layout
    if partial.is_dir():
        record = _complete(from_dict(ReleaseRecord, action.params["record"]), context)
        make_folders(partial / ".ddtree")
        replace_file(partial / RECORD, dumps(record).encode("utf-8"))
        if final.is_symlink():
            os.unlink(final)
        _sync_file_system(str(partial))
        os.rename(partial, final)
        sync_folder(layout.releases)
    elif read_record(str(final)) is None:
        raise StepError(
            "nothing-to-activate",
            f"no release was built at {partial}, and {final} is none",
            where=str(final),
            hint="a playbook that activates a release needs the step `clone` before it",
        )
    previous = current_release(layout)
    context.journal.append("activating", release=context.release_id, previous=previous, by="provision")
    switch_current(layout, context.release_id)
    context.journal.append("activated", release=context.release_id, previous=previous, by="provision")
    return {"release_id": context.release_id, "previous": previous}


def undo(action: Action, context: StepContext) -> None:
    """Nothing: until the one rename that it ends with, nothing is active; after it, there is nothing to undo."""


def _complete(record: ReleaseRecord, context: StepContext) -> ReleaseRecord:
    """The record with what the steps found out."""
    clone, overlay = context.results.get("clone", {}), context.results.get("overlay", {})
    final = str(context.final)
    files, size = _measure(str(context.partial))
    return replace(
        record,
        created=utc_now(),
        environment={name: value.replace("{release}", final) for name, value in record.environment.items()},
        engine_arguments=[value.replace("{release}", final) for value in record.engine_arguments],
        shims=list(overlay.get("shims", [])),
        rewritten=list(clone.get("rewritten", [])),
        notes=list(context.notes),
        staging=overlay.get("staging"),
        blobs=sorted(context.blobs),
        clone_method=clone.get("method"),
        file_count=files,
        bytes=size,
        tool_version=__version__,
    )


def _measure(folder: str) -> tuple[int, int]:
    files, total, stack = 0, 0, [folder]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    files += 1
                    total += entry.stat(follow_symlinks=False).st_size
    return files, total


def _sync_file_system(path: str) -> None:
    """Everything of the release is on disk before it gets its name: syncfs(2), one file system only."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            os.sync()
    except (AttributeError, OSError):  # no such function in this C library
        os.sync()
    finally:
        os.close(descriptor)
