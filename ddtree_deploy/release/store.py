"""The releases of a root: list, switch, roll back. Standard library only (agent-safe)."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from typing import Any, Dict, List, Optional

from ddtree_deploy.agent.protocol import ProgressSink
from ddtree_deploy.codec import from_dict
from ddtree_deploy.errors import DeployError, InputError, StepError
from ddtree_deploy.facts.model import ReleaseInfo
from ddtree_deploy.release.files import sync_folder
from ddtree_deploy.release.journal import Journal, activation_stack, read_journal
from ddtree_deploy.release.layout import PARTIAL, RECORD, REMOVING, Layout, is_release_id, open_layout
from ddtree_deploy.release.lock import Lock
from ddtree_deploy.release.model import ReleaseRecord


def read_record(path: str) -> Optional[ReleaseRecord]:
    """The record of the release folder ``path``; None when there is none or it cannot be read: not a release."""
    try:
        with open(os.path.join(path, RECORD), encoding="utf-8") as stream:
            return from_dict(ReleaseRecord, json.load(stream))
    except (OSError, ValueError, DeployError):
        return None


def current_release(layout: Layout) -> Optional[str]:
    """The id that ``current`` points to, whether or not that release exists; None without ``current``, and where it
    leads to another folder than ours."""
    try:
        target = os.path.normpath(os.path.join(layout.root, os.readlink(layout.current)))
    except OSError:
        return None
    folder, name = os.path.split(target)
    return name if os.path.realpath(folder) == os.path.realpath(layout.releases) else None


def list_releases(root: str) -> List[ReleaseInfo]:
    """All releases under ``root``, oldest first; ``complete`` is false where the record cannot be read. Folders being
    built or removed, and those of others (:func:`list_foreign`), are not releases."""
    layout = Layout(root)
    current = current_release(layout)
    found = []
    for name in _release_names(layout):
        path = os.path.join(layout.releases, name)
        record = read_record(path)
        if record is None:
            try:
                seconds = os.stat(path).st_mtime
            except FileNotFoundError:  # removed meanwhile: nobody holds the lock for a list
                continue
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
            found.append(ReleaseInfo(name, path, "", created, name == current, False, ""))
        else:
            found.append(
                ReleaseInfo(
                    id=name,
                    path=path,
                    profile=record.profile,
                    created=record.created,
                    current=name == current,
                    complete=True,
                    inputs_digest=record.inputs_digest,
                    bytes=record.bytes,
                    tool_version=record.tool_version or None,
                    clone_method=record.clone_method,
                    base_fingerprint=record.base_fingerprint,
                )
            )
    return sorted(found, key=lambda release: (release.created, release.id))


def list_partial(root: str) -> List[str]:
    """Names of folders under ``releases`` that an interrupted run left (or that a run is building right now)."""
    try:
        names = os.listdir(Layout(root).releases)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith((PARTIAL, REMOVING)))


def list_foreign(root: str) -> List[str]:
    """Names of what is under ``releases`` and no run of ours made: it is left alone."""
    layout = Layout(root)
    ours = set(_release_names(layout))
    try:
        with os.scandir(layout.releases) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.name not in ours
                and not entry.name.endswith((PARTIAL, REMOVING))
                and not leads_to_partial(entry)
            )
    except (FileNotFoundError, NotADirectoryError):
        return []


def leads_to_partial(entry: os.DirEntry[str]) -> bool:
    """True for the symlink that has a release's name while it is being built."""
    try:
        return entry.is_symlink() and os.readlink(entry.path).endswith(PARTIAL)
    except FileNotFoundError:  # built meanwhile
        return True


def history(layout: Layout) -> List[str]:
    """Ids in the order in which rollbacks go back through them, the active one last."""
    stack = activation_stack(read_journal(layout.journal))
    current = current_release(layout)
    # A run killed between the switch and its journal line: the symlink is right.
    if current is not None and (not stack or stack[-1] != current):
        stack = [release for release in stack if release != current] + [current]
    return stack


def previous_release(layout: Layout) -> Optional[str]:
    """The complete release that was active before the current one, or None. What is gone since is skipped, and what
    has no readable record: there is no way back to it, so that prune need not keep it."""
    current, there = current_release(layout), _release_names(layout)
    for release in reversed(history(layout)):
        if release != current and release in there and read_record(str(layout.release(release))) is not None:
            return release
    return None


def switch_current(layout: Layout, release_id: str) -> None:
    """Point ``current`` to a release with one rename(2), so that it leads to a release at every moment."""
    current = layout.current
    if os.path.lexists(current) and not os.path.islink(current):
        raise StepError(
            "current-not-a-link",
            f"{current} is not a symlink; something else made it",
            where=str(current),
            hint="move it away and run again",
        )
    temporary = layout.root / f"current.{os.getpid()}.tmp"
    if os.path.lexists(temporary):
        os.unlink(temporary)
    os.symlink(os.path.join("releases", release_id), temporary)
    os.replace(temporary, current)
    sync_folder(layout.root)


def rollback(root: str, to: Optional[str]) -> Dict[str, Any]:
    """Make the release ``to`` (default: the one active before) current. The target is checked before anything changes.

    Returns {release, previous, changed, note}. Raises InputError ``no-such-release``, ``release-incomplete``,
    ``nothing-to-roll-back``; LockedError.
    """
    layout = open_layout(root)
    require_root(layout)
    with Lock(layout.lock, f"rollback --to {to}" if to is not None else "rollback") as lock:
        current = current_release(layout)
        target = previous_release(layout) if to is None else to
        if target is None:
            raise InputError(
                "nothing-to-roll-back",
                f"of the releases on {root} none was active before {current or 'now'}",
                hint=f"{_available(root)}; --to RELEASE makes one of them current",
            )
        _check_target(layout, target)
        if target == current:
            return {"release": target, "previous": current, "changed": False, "note": lock.note}
        journal = Journal(layout.journal)
        journal.append("activating", release=target, previous=current, by="rollback")
        switch_current(layout, target)
        journal.append("activated", release=target, previous=current, by="rollback")
        return {"release": target, "previous": current, "changed": True, "note": lock.note}


def op_list(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``releases.list``: {root} -> {releases: [ReleaseInfo], current, previous, partial, foreign}."""
    root = str(params["root"])
    layout = open_layout(root)
    return {
        "releases": [asdict(release) for release in list_releases(root)],
        "current": current_release(layout),
        "previous": previous_release(layout),
        "partial": list_partial(root),
        "foreign": list_foreign(root),
    }


def op_rollback(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``releases.rollback``: {root, to: id or null} -> see :func:`rollback`; and ``staying``, the names of services
    that run from another release and go on with it."""
    from ddtree_deploy.serve.operations import list_services

    root, to = str(params["root"]), params.get("to")
    result = rollback(root, str(to) if to is not None else None)
    services = list_services(open_layout(root).root)
    return {**result, "staying": [each.name for each in services if each.stays_elsewhere(result["release"])]}


def op_prune(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``releases.prune``: {root, keep} -> see :func:`ddtree_deploy.release.prune.prune`."""
    from ddtree_deploy.release.prune import prune

    return prune(str(params["root"]), params["keep"], progress)


def _check_target(layout: Layout, target: str) -> None:
    path = layout.release(target)
    if not path.is_dir() or path.is_symlink():
        raise InputError(
            "no-such-release", f"there is no release {target}", where=str(path), hint=_available(str(layout.root))
        )
    if read_record(str(path)) is None:
        raise InputError(
            "release-incomplete",
            f"{target} has no readable record, so it is not a complete release",
            where=str(path / RECORD),
            hint=_available(str(layout.root)),
        )
    python = path / "bin" / "python"
    if not python.exists():
        raise InputError(
            "release-incomplete",
            f"{target} has no working interpreter: {python} leads to {os.path.realpath(python)}, which is not there",
            where=str(python),
            hint=_available(str(layout.root)),
        )


def _available(root: str) -> str:
    names = [
        release.id + (" (current)" if release.current else "") for release in list_releases(root) if release.complete
    ]
    return "releases there: " + (", ".join(names) if names else "none")


def require_root(layout: Layout) -> None:
    if not layout.root.is_dir():
        raise InputError(
            "no-root",
            f"nothing was provisioned under {layout.root}",
            where=str(layout.root),
            hint="check `root` in the inventory; `ddtree-deploy provision HOST` makes the first release",
        )


def _release_names(layout: Layout) -> List[str]:
    """Folders with a release's name and a record, readable or not; and what is current, even if its record is gone."""
    current = current_release(layout)
    try:
        with os.scandir(layout.releases) as entries:
            return sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False)
                and is_release_id(entry.name)
                and (entry.name == current or os.path.lexists(os.path.join(entry.path, RECORD)))
            )
    except (FileNotFoundError, NotADirectoryError):
        return []
