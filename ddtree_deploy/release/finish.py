"""A release's record, and the moment at which a release under construction gets its name. Agent-safe."""

from __future__ import annotations

import ctypes
import os
from dataclasses import asdict, replace
from typing import Any, Dict, List, Tuple

from ddtree_deploy import __version__
from ddtree_deploy.codec import dumps, from_dict
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.release.files import make_folders, replace_file, sync_folder
from ddtree_deploy.release.journal import utc_now
from ddtree_deploy.release.layout import RECORD
from ddtree_deploy.release.model import ReleaseRecord
from ddtree_deploy.steps.context import StepContext


def planned_record(inputs: PlanInputs, draft: PlanDraft) -> Dict[str, Any]:
    """The record as far as the plan knows it, for the parameters of the action that makes the release. Pure."""
    profile, patch_set, base = inputs.profile, inputs.patch_set, inputs.facts.base
    patched = any(step.step == "patch" for step in inputs.playbook.steps)
    files = [
        replace(change, diff=None, path=change.path.replace("{site}", draft.site_packages)) for change in draft.files
    ]
    record = ReleaseRecord(
        id=draft.release_id,
        inputs_digest=draft.inputs_digest,
        profile=profile.name,
        created="",
        site_packages=draft.site_packages,
        base_fingerprint=base.fingerprint if base is not None else None,
        python=base.python if base is not None else None,
        patch_set=patch_set.name if patched and patch_set is not None else None,
        patch_set_digest=patch_set.digest if patched and patch_set is not None else None,
        engine=profile.engine,
        engine_version=profile.engine_version,
        abi_tag=profile.abi_tag,
        gpu=profile.gpu,
        source={"kind": inputs.source.kind, "host": inputs.source.host},
        packages=list(draft.packages),
        files=files,
        environment=dict(profile.environment),
        engine_arguments=list(profile.engine_arguments),
    )
    return asdict(record)


def write_record(record: Dict[str, Any], context: StepContext) -> None:
    """Write the record into the release under construction, with what the steps have found out so far."""
    planned = from_dict(ReleaseRecord, record, "record")
    final = str(context.final)
    clone, overlay = context.results.get("clone", {}), context.results.get("overlay", {})
    files, size = _measure(str(context.partial))
    complete = replace(
        planned,
        created=utc_now(),
        environment={name: value.replace("{release}", final) for name, value in planned.environment.items()},
        engine_arguments=[value.replace("{release}", final) for value in planned.engine_arguments],
        shims=list(overlay.get("shims", [])),
        rewritten=sorted({*clone.get("rewritten", []), *overlay.get("rewritten", [])}),
        notes=list(context.notes),
        staging=overlay.get("staging"),
        rest_staging=overlay.get("rest_staging"),
        blobs=sorted(context.blobs),
        clone_method=clone.get("method"),
        file_count=files,
        bytes=size,
        tool_version=__version__,
    )
    make_folders(context.partial / ".ddtree")
    replace_file(context.partial / RECORD, dumps(complete).encode("utf-8"))


def finish_release(record: Dict[str, Any], context: StepContext) -> None:
    """Bring everything to disk, then rename ``<id>.partial`` to ``<id>``: from then on it is a release."""
    write_record(record, context)
    if context.final.is_symlink():
        os.unlink(context.final)
    sync_file_system(str(context.partial))
    os.rename(context.partial, context.final)
    sync_folder(context.layout.releases)
    context.journal.append("finished", release=context.release_id)


def _measure(folder: str) -> Tuple[int, int]:
    """Number of files and bytes below ``folder``, as they would be without shared inodes."""
    files, total = 0, 0
    stack: List[str] = [folder]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    stack.append(entry.path)
                else:
                    files += 1
                    total += entry.stat(follow_symlinks=False).st_size
    return files, total


def sync_file_system(path: str) -> None:
    """syncfs(2): what was written to this file system, and not what others wrote to theirs."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            os.sync()
    except (AttributeError, OSError):  # no such function in this C library
        os.sync()
    finally:
        os.close(descriptor)
