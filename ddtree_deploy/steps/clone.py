"""Step ``clone``: the base venv becomes ``releases/<id>.partial``, made to live at ``releases/<id>``. Agent-safe."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

from ddtree_deploy.errors import DriftError, InputError, StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action, Precondition
from ddtree_deploy.release.clone import choose_method, clone_error, clone_tree, finish_folders
from ddtree_deploy.release.distributions import find_site
from ddtree_deploy.release.files import leads_out, remove_tree, shown
from ddtree_deploy.release.finish import planned_record, write_record
from ddtree_deploy.release.paths import PathMentions
from ddtree_deploy.release.relocate import old_paths, relocate
from ddtree_deploy.release.space import require_space
from ddtree_deploy.steps import preconditions
from ddtree_deploy.steps.context import StepContext

_LINKED_FILE_BYTES = 512  # folder entries; the data is shared


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action. Its method is what the facts promise; ``apply`` tries it out."""
    facts = inputs.facts
    base, root_disk, base_disk = facts.base, facts.root_disk, facts.base_disk
    files, size = (base.files, base.bytes) if base is not None else (0, 0)
    same_device = root_disk is not None and base_disk is not None and root_disk.device == base_disk.device
    method = "copy"
    if same_device and root_disk is not None:
        method = "reflink" if root_disk.reflink else "hardlink"
    how = {"reflink": "sharing data (reflink)", "hardlink": "by hard links", "copy": "as a copy"}[method]
    checks = [
        Precondition("path-missing", {"path": f"{draft.root}/releases/{draft.release_id}"}),
        Precondition(
            "free-space", {"path": draft.root, "bytes": size if method == "copy" else files * _LINKED_FILE_BYTES}
        ),
    ]
    if base is not None and base.fingerprint:
        packages = {package.name: package.version for package in base.packages}
        checks.insert(
            0,
            Precondition(
                "venv-fingerprint", {"path": draft.base, "fingerprint": base.fingerprint, "packages": packages}
            ),
        )
    return [
        Action(
            id="clone",
            step="clone",
            summary=f"clone {draft.base} {how}",
            params={
                "base": draft.base,
                "method": method,
                "site_packages": draft.site_packages,
                "record": planned_record(inputs, draft),
            },
            preconditions=checks,
            files=files,
            bytes=size,
        )
    ]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """Returns {method, planned_method, files, bytes, symlinks, counts, rewritten, binary_mentions, skipped}.

    Raises InputError ``base-not-a-venv``, ``base-inside-root``, ``root-inside-base``; DriftError when the base changes
    meanwhile; StepError ``no-space``, ``unreadable``.
    """
    base = str(action.params["base"])
    real = os.path.realpath(base)
    _check_places(base, real, context)
    site = str(action.params.get("site_packages") or find_site(real, "base-not-a-venv"))
    planned = str(action.params.get("method", "copy"))
    method = choose_method(os.path.join(real, "pyvenv.cfg"), str(context.layout.releases))
    total = action.bytes or 0
    if method == "copy" and planned != "copy":
        total = _tree_bytes(real)
        require_space(context.layout.releases, total, "the clone needs")
        context.note(
            "note",
            "clone-copies",
            f"the base venv's files cannot be linked into {context.layout.releases}, so {total:,} bytes are copied",
        )
    partial = str(context.partial)
    done = clone_tree(
        real,
        partial,
        method,
        context.progress,
        total_files=action.files,
        total_bytes=total,
        leave_out=(".ddtree",),
    )
    mentions = PathMentions(old_paths(base), str(context.final))
    try:
        moved = relocate(partial, site, done, mentions, context.progress)
        finish_folders(partial, done.folders)
    except OSError as error:
        raise clone_error(error, base, partial, 0) from error
    _recheck_base(action, context)
    context.notes += moved.notes
    _notes(real, done.skipped, context)
    _note_links([path for path, _ in done.outward if path.startswith(site + "/")], context)
    write_record(action.params["record"], context)
    return {
        "method": method,
        "planned_method": planned,
        "files": len(done.files),
        "bytes": done.bytes,
        "symlinks": done.symlinks,
        "counts": {name: count for name, count in done.counts.items() if count},
        "rewritten": [shown(path) for path in moved.rewritten],
        "symlinks_moved": [shown(path) for path in moved.symlinks],
        "binary_mentions": [shown(path) for path in moved.binary],
        "skipped": [shown(path) for path in done.skipped],
        "site_packages": site,
    }


def undo(action: Action, context: StepContext) -> None:
    """Remove the clone."""
    remove_tree(context.partial)


def _check_places(base: str, real: str, context: StepContext) -> None:
    if not os.path.isfile(os.path.join(real, "pyvenv.cfg")):
        what = "is not a venv: it has no pyvenv.cfg" if os.path.isdir(real) else "does not exist"
        raise InputError("base-not-a-venv", f"{base} {what}", where=base, hint="set `base` in the inventory")
    root = os.path.realpath(context.root)
    if real == root or real.startswith(root + "/"):
        raise InputError(
            "base-inside-root",
            f"the base venv {base} is inside the root {context.root}",
            where=base,
            hint="a base venv is one that existed before; set `base` to it",
        )
    if root.startswith(real + "/"):
        raise InputError(
            "root-inside-base",
            f"the root {context.root} is inside the base venv {base}, which is never modified",
            where=str(context.root),
            hint="set `root` to a folder outside of it",
        )


def _recheck_base(action: Action, context: StepContext) -> None:
    """An installer that ran in the base venv meanwhile would give a clone of two states."""
    for precondition in action.preconditions:
        if precondition.kind == "venv-fingerprint":
            preconditions.check(precondition, context)


def _tree_bytes(folder: str) -> int:
    total, stack = 0, [folder]
    while stack:
        try:
            with os.scandir(stack.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        total += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError as error:
            message = f"{error.filename} vanished while it was looked at"
            hint = "something works in the base venv now: provision when it is done"
            raise DriftError("base-changed", message, where=folder, hint=hint) from error
        except PermissionError as error:
            hint = "connect as a user who may read the whole base venv"
            message = f"cannot read {error.filename}"
            raise StepError("unreadable", message, where=str(error.filename), hint=hint) from error
    return total


def _notes(real: str, skipped: List[str], context: StepContext) -> None:
    if _setting(os.path.join(real, "pyvenv.cfg"), "include-system-site-packages") == "true":
        context.note(
            "warning",
            "system-site-packages",
            "the base venv was made with --system-site-packages: the release sees the system's packages too, and "
            "changes when they do",
        )
    if skipped:
        names = ", ".join(shown(path) for path in skipped[:5])
        context.note("note", "special-files", f"sockets, pipes and devices are not cloned: {names}")


def _note_links(paths: List[str], context: StepContext) -> None:
    """Of ``paths``, symlinks in the clone's site-packages, those that stand for files elsewhere."""
    tree = os.path.realpath(context.partial)
    outside = [path for path in sorted(paths) if os.path.isfile(f"{tree}/{path}") and leads_out(f"{tree}/{path}", tree)]
    if not outside:
        return
    example = f"{shown(outside[0])} -> {shown(os.path.realpath(f'{tree}/{outside[0]}'))}"
    context.note(
        "warning",
        "files-elsewhere",
        f"symlinks that stand for files of packages lead out of the base venv: {len(outside)}, such as {example}. So "
        "they do in the release, but for what the overlay replaces: it changes with the files there, and breaks when "
        "they go (`uv cache clean`). For a release with files of its own, install these packages in the base venv anew "
        "with `--link-mode copy`",
    )


def _setting(config: str, key: str) -> Optional[str]:
    with open(config, encoding="utf-8", errors="replace") as stream:
        for line in stream:
            name, _, value = line.partition("=")
            if name.strip().lower() == key:
                return value.strip().lower()
    return None
