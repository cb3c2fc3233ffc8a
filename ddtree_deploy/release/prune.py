"""Removing old releases and what the cache holds for them. Standard library only (agent-safe)."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Dict, List, Set, Tuple

from ddtree_deploy.agent.archive import remove_unused
from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.errors import InputError
from ddtree_deploy.release.files import remove_tree, sync_folder
from ddtree_deploy.release.journal import Journal
from ddtree_deploy.release.layout import PARTIAL, REMOVING, Layout, open_layout
from ddtree_deploy.release.lock import Lock
from ddtree_deploy.release.store import (
    current_release,
    leads_to_partial,
    list_foreign,
    list_releases,
    previous_release,
    read_record,
    require_root,
)

# A provision sends its blobs, and a donor's files, before it takes the lock: young ones may be somebody's who waits.
_YOUNG_SECONDS = 3600.0


def prune(root: str, keep: Any, progress: ProgressSink) -> Dict[str, Any]:
    """Keep the ``keep`` newest releases; remove the others and what only they needed in the cache, and copies of the
    agent that are not used any more.

    Never removed: the current release, the complete one before it, and one that a service of ours was started from;
    nor any while there is a service of which that cannot be read. A full disk is no hindrance. Returns
    {removed: [id], kept: [{id, why}], foreign: [name], cache_removed: [name], freed_bytes, note}. ``foreign``: what is
    there besides, and stays. ``freed_bytes`` is what the disk gained (files shared with the base venv free nothing).
    Raises InputError ``bad-keep``, LockedError.
    """
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 0:
        raise InputError("bad-keep", f"--keep must be a whole number from 0, not {keep!r}")
    layout = open_layout(root)
    require_root(layout)
    with Lock(layout.lock, f"prune --keep {keep}") as lock:
        free_before = _free(layout)
        journal = Journal(layout.journal)
        clean_leftovers(layout, journal, progress)
        releases = list_releases(root)
        why: Dict[str, str] = {}
        current, previous = current_release(layout), previous_release(layout)
        newest = [release.id for release in reversed(releases) if release.complete][:keep]
        why.update(dict.fromkeys(newest, "among the newest"))
        used, damaged = services_by_release(layout)
        if damaged:  # it may run from any of them
            text = f"perhaps in use by {', '.join(map(str, damaged))}, which cannot be read"
            why.update({release.id: text for release in releases if release.id not in why})
        for release_id, services in used.items():
            why[release_id] = "in use by service " + ", ".join(services)
        if previous is not None:
            why[previous] = "active before the current one"
        if current is not None:
            why[current] = "current"
        removed: List[str] = []
        for release in releases:
            if release.id in why:
                continue
            journal.append_or_keep("pruned", release=release.id)
            progress(Progress("prune", f"removing {release.id}", done_files=len(removed), total_files=len(releases)))
            remove_release(layout, release.id)
            remove_tree(layout.logs(release.id))
            removed.append(release.id)
        kept = [{"id": release.id, "why": why[release.id]} for release in releases if release.id in why]
        cache = _prune_cache(layout, [entry["id"] for entry in kept]) + remove_unused()
        journal.write_kept()
        progress(Progress("prune", "", done_files=len(removed), total_files=len(removed), finished=True))
        return {
            "removed": removed,
            "kept": kept,
            "foreign": list_foreign(root),
            "cache_removed": cache,
            "freed_bytes": max(_free(layout) - free_before, 0),
            "note": lock.note,
        }


def remove_release(layout: Layout, release_id: str) -> None:
    """Rename first, so that a half-removed folder is never taken for a release."""
    doomed = layout.removing(release_id)
    remove_tree(doomed)
    os.rename(layout.release(release_id), doomed)
    sync_folder(layout.releases)
    remove_tree(doomed)


def clean_leftovers(layout: Layout, journal: Journal, progress: ProgressSink) -> List[str]:
    """Remove what interrupted runs left: folders being built or removed, and temporary symlinks. The lock must be
    held: then nobody is building. Returns what was removed, relative to the root."""
    doomed: List[str] = []
    for folder in (layout.releases, layout.stagings):
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith((PARTIAL, REMOVING)) or leads_to_partial(entry):
                        doomed.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue
    for name in os.listdir(layout.root):
        if name.startswith("current.") and name.endswith(".tmp"):
            doomed.append(os.path.join(layout.root, name))
    removed = [os.path.relpath(path, layout.root) for path in sorted(doomed)]
    if removed:
        journal.append_or_keep("note", message="removing what an interrupted run left", paths=removed)
    for path in doomed:
        progress(Progress("clean", f"removing {os.path.basename(path)}, left by an interrupted run"))
        remove_tree(path)
    return removed


def services_by_release(layout: Layout) -> Tuple[Dict[str, List[str]], List[Path]]:
    """Names of the services of ours (running or not) by the release that they were started from, and the specs that
    do not tell it."""
    found: Dict[str, List[str]] = {}
    damaged: List[Path] = []
    try:
        names = sorted(os.listdir(layout.services))
    except OSError:
        return found, damaged
    for name in names:
        path = layout.services / name / "spec.json"
        try:
            release = json.loads(path.read_text("utf-8"))["release"]
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, ValueError, KeyError, TypeError):
            release = None
        if isinstance(release, str) and release:
            found.setdefault(os.path.basename(os.path.normpath(release)), []).append(name)
        else:
            damaged.append(path)
    return found, damaged


def _prune_cache(layout: Layout, kept: List[str]) -> List[str]:
    needed: Set[str] = set()
    for release_id in kept:
        record = read_record(str(layout.release(release_id)))
        if record is not None:
            needed.update(record.blobs)
            needed.update(staging for staging in (record.staging, record.rest_staging) if staging)
    removed = []
    for folder, young in ((layout.stagings, 0.0), (layout.blobs, _YOUNG_SECONDS), (layout.donor, _YOUNG_SECONDS)):
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        for name in names:
            path = folder / name
            try:
                age = time.time() - os.lstat(path).st_mtime
            except FileNotFoundError:  # half a blob whose other half has arrived: blobs are sent without the lock
                continue
            if name in needed or age < young:
                continue
            if path.is_dir() and not path.is_symlink():
                doomed = folder / (name + REMOVING)
                os.rename(path, doomed)
                remove_tree(doomed)
            else:
                remove_tree(path)
            removed.append(name)
    return removed


def _free(layout: Layout) -> int:
    status = os.statvfs(layout.root)
    return status.f_bavail * status.f_frsize
