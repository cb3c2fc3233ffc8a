"""The file diff: what the patch set and the profile's shims change, and whether the engine is fit for them."""

from __future__ import annotations

import difflib

from ddtree_deploy.facts.model import Engine
from ddtree_deploy.patching.model import PatchSet
from ddtree_deploy.plan.model import FileChange, Problem
from ddtree_deploy.profiles.model import Profile


def diff_files(
    profile: Profile, patch_set: PatchSet | None, kept_engine: Engine | None, site_packages: str
) -> list[FileChange]:
    """Every file that differs in the release from what the packages bring.

    ``patch_set`` is None where the playbook does not patch; ``kept_engine`` is the base's engine where the overlay does
    not replace it: files that already are as the patch set leaves them are not listed. ``site_packages`` is relative to
    the release, as the paths of shims are.
    """
    on_disk = kept_engine.sha256 if kept_engine is not None else {}
    changes: list[FileChange] = []
    if patch_set is not None:
        for patch in patch_set.patches:
            added, removed = _count(patch.diff)
            change = FileChange(
                "patch", patch.path, patch.sha256_before, patch.sha256_after, patch.diff, added, removed
            )
            changes.append(change)
        for new in patch_set.new_files:
            diff = _new_file_diff(new.path, new.content)
            changes.append(FileChange("new", new.path, None, new.sha256, diff, _count(diff)[0], 0))
    changes = [change for change in changes if on_disk.get(change.path) != change.sha256_after]
    for extra in profile.extra_files:
        changes.append(FileChange("shim", extra.path.replace("{site}", site_packages), None, extra.sha256))
    return changes


def engine_problems(engine: Engine, patch_set: PatchSet | None) -> list[Problem]:
    """Problems of a base venv's engine that the release keeps: files edited by hand, files missing."""
    problems = []
    before = {patch.path: patch.sha256_before for patch in patch_set.patches} if patch_set else {}
    after = {item.path: item.sha256_after for item in patch_set.patches} if patch_set else {}
    new = {item.path: item.sha256 for item in patch_set.new_files} if patch_set else {}
    after.update(new)
    edited = sorted(path for path, found in engine.sha256.items() if _unexpected(path, found, before, after))
    for path in edited:
        found = engine.sha256[path]
        if found is None:
            message = f"{path} of {engine.distribution} {engine.version} is missing in the base venv"
        elif path in new:
            message = f"{path} exists in the base venv with other content than the patch set's new file"
        else:
            message = f"{path} is not the file that {engine.distribution} {engine.version} was released with"
        problems.append(Problem("error", "engine-file-edited", message, _edited_hint(engine)))
    others = [path for path in engine.changed_files if path not in after]
    if others:
        message = (
            f"{engine.distribution} in the base venv has {_some(others)} edited by hand; the release keeps the edits"
        )
        problems.append(Problem("warning", "engine-edited-elsewhere", message, _edited_hint(engine)))
    missing = [path for path in engine.missing_files if path not in after]
    if missing:
        message = f"{engine.distribution} in the base venv lacks {_some(missing)}, which its RECORD names"
        problems.append(Problem("error", "engine-file-missing", message, _edited_hint(engine)))
    return problems


def _unexpected(path: str, found: str | None, before: dict[str, str], after: dict[str, str]) -> bool:
    if path not in after:
        return False
    return found not in {before.get(path), after[path]}


def _edited_hint(engine: Engine) -> str:
    pin = f"{engine.distribution}=={engine.version}"
    return (
        f"Reinstall the released files in the base venv (uv pip install --reinstall --no-deps {pin}), or make your "
        "edit a patch set of your own: ddtree-deploy patches export --help."
    )


def _some(paths: list[str]) -> str:
    shown = ", ".join(sorted(paths)[:3])
    return shown if len(paths) <= 3 else f"{shown} and {len(paths) - 3} more files"


def _count(diff: str) -> tuple[int, int]:
    """Lines added and removed by a unified diff, its headers left out."""
    added = removed = 0
    in_hunk = False
    for line in diff.splitlines():
        if line.startswith("@@"):
            in_hunk = True
        elif line.startswith(("diff ", "--- ")) and not in_hunk:
            continue
        elif in_hunk:
            added += line.startswith("+")
            removed += line.startswith("-")
    return added, removed


def _new_file_diff(path: str, content: str) -> str:
    lines = content.splitlines(keepends=True)
    return "".join(difflib.unified_diff([], lines, "/dev/null", f"b/{path}"))
