"""Taking distributions out of a release by their RECORD. Standard library and packaging only (agent-safe)."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Set

from packaging.utils import canonicalize_name

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.release.distributions import Distribution, find_distributions, owners, top_level
from ddtree_deploy.release.files import (
    InsideCheck,
    make_writable,
    record_hash_file,
    remove_file,
    remove_tree,
    replace_file,
    shown,
)
from ddtree_deploy.release.notes import Notes
from ddtree_deploy.units import some

_KEPT_FOLDERS = {"", "bin", "lib", "lib64", "share", "etc", "include"}
_EVERY = 1024


@dataclass
class Removed(Notes):
    """What was taken out: number of files, and ``notes`` {severity, id, message} on what was left in place and why."""

    files: int = 0
    notes: List[Dict[str, Any]] = field(default_factory=list)


def remove_distributions(tree: str, site: str, names: Set[str], progress: ProgressSink) -> Removed:
    """Remove the distributions ``names`` (normalized) from the release at ``tree``.

    A file that another distribution owns too stays. Files that no RECORD names stay, too (somebody put them there), and
    are noted. Nothing outside the release is touched, whatever a RECORD says.
    """
    done = Removed()
    distributions = find_distributions(tree, site)
    doomed = [distribution for name in sorted(names) for distribution in distributions.get(name, [])]
    kept = owners(distributions, frozenset(names))
    inside = InsideCheck(tree)
    folders: Set[str] = set()
    tops = _top_folders(tree, site, doomed)  # now: their metadata leaves, too
    total = sum(len(distribution.files) for distribution in doomed)
    for distribution in doomed:
        if not distribution.record:
            done.note(
                "warning",
                "no-record",
                f"{distribution.name} {distribution.version} has no whole RECORD: "
                "its files are told by its top-level names",
            )
        if distribution.outside:
            done.note(
                "note",
                "record-outside",
                f"the RECORD of {distribution.name} names files outside of the venv, which stay: "
                + some(distribution.outside),
            )
        _remove_one(tree, site, distribution, distributions, kept, inside, folders, done)
        progress(Progress("remove", f"removed {distribution.name}", done_files=done.files, total_files=total))
    for name in sorted(names):
        _remove_egg_link(tree, site, name)
    _remove_empty(tree, site, folders)
    _note_leftovers(tree, site, tops, kept, done)
    progress(Progress("remove", "", done_files=done.files, total_files=total, finished=True))
    return done


def _remove_one(
    tree: str,
    site: str,
    distribution: Distribution,
    distributions: Dict[str, List[Distribution]],
    kept: Dict[str, List[str]],
    inside: InsideCheck,
    folders: Set[str],
    done: Removed,
) -> None:
    shared: List[str] = []
    broken: List[str] = []
    for path in distribution.files:
        full = f"{tree}/{path}"
        if path in kept:
            if not os.path.lexists(full):
                continue
            shared.append(f"{shown(path)} (also of {', '.join(kept[path])})")
            if not _as_recorded(full, path, [owner for name in kept[path] for owner in distributions[name]]):
                broken.append(shown(path))
        elif not inside.holds(full):
            _remove_link_on_the_way(tree, path, distribution, done)
        elif os.path.isdir(full) and not os.path.islink(full):
            continue  # a RECORD that names a folder; its files have rows of their own
        elif remove_file(full):
            done.files += 1
            folders.add(os.path.dirname(path))
    if distribution.folder:  # what was copied by hand has no metadata
        remove_tree(f"{tree}/{site}/{distribution.folder}")
    if shared:
        message = f"{distribution.name} {distribution.version} leaves, these files stay: {some(shared)}"
        done.note("warning", "shared-file", message)
    if broken:
        message = (
            f"{distribution.name} had overwritten files of packages that stay, whose own versions are not there: "
            + some(broken)
        )
        done.note("warning", "shared-file-differs", message)


def _as_recorded(full: str, path: str, stayers: List[Distribution]) -> bool:
    hashes = {distribution.hashes[path] for distribution in stayers if path in distribution.hashes}
    return not hashes or not os.path.isfile(full) or record_hash_file(full)[0] in hashes


def _remove_link_on_the_way(tree: str, path: str, distribution: Distribution, done: Removed) -> None:
    """``path`` goes through a symlink that leaves the release, to somebody's checkout say: only the link goes."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        folder = "/".join(parts[:count])
        full = f"{tree}/{folder}"
        if os.path.islink(full) and os.path.isabs(os.readlink(full)):
            done.note(
                "note",
                "link-removed",
                f"{shown(folder)} of {distribution.name} was a link to {shown(os.readlink(full))}; the link went, "
                "the files there stay",
            )
            remove_file(full)
            return


def _remove_egg_link(tree: str, site: str, name: str) -> None:
    """Editable installs of the old kind: NAME.egg-link, and a line of easy-install.pth."""
    folder = f"{tree}/{site}"
    for entry in os.listdir(folder):
        if not entry.endswith(".egg-link") or canonicalize_name(entry[: -len(".egg-link")]) != name:
            continue
        with open(f"{folder}/{entry}", "rb") as stream:
            project = stream.readline().strip()
        remove_file(f"{folder}/{entry}")
        paths = f"{folder}/easy-install.pth"
        if os.path.isfile(paths):
            with open(paths, "rb") as stream:
                lines = stream.readlines()
            left = [line for line in lines if line.strip() != project]
            if left != lines:
                replace_file(paths, b"".join(left))


def _remove_empty(tree: str, site: str, folders: Set[str]) -> None:
    parents = set()
    for folder in folders:
        while folder not in _KEPT_FOLDERS and folder != site and not site.startswith(folder + "/"):
            parents.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(parents, key=len, reverse=True):
        with contextlib.suppress(OSError):
            make_writable(os.path.dirname(f"{tree}/{folder}"))
            os.rmdir(f"{tree}/{folder}")


def _top_folders(tree: str, site: str, doomed: List[Distribution]) -> Set[str]:
    """Entries of site-packages that the files of ``doomed`` are in, or would be by the name: a RECORD may lack rows."""
    tops: Set[str] = set()
    for distribution in doomed:
        tops |= {path[len(site) + 1 :].split("/")[0] for path in distribution.files if path.startswith(site + "/")}
        if distribution.folder:
            names = top_level(f"{tree}/{site}", distribution.folder, distribution.name)
            tops |= {name.partition("/")[0] for name in names}
    return tops - {"", ".", ".."}


def _note_leftovers(tree: str, site: str, tops: Set[str], kept: Dict[str, List[str]], done: Removed) -> None:
    left: List[str] = []
    for top in sorted(tops):
        stack = [f"{site}/{top}"]
        while stack:
            folder = stack.pop()
            if os.path.islink(f"{tree}/{folder}") or not os.path.isdir(f"{tree}/{folder}"):
                continue
            with os.scandir(f"{tree}/{folder}") as entries:
                for entry in entries:
                    path = f"{folder}/{entry.name}"
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(path)
                    elif path not in kept:
                        left.append(shown(path))
    if left:
        message = f"{len(left)} files in folders of removed packages are in no RECORD and stay: {some(sorted(left))}"
        done.note("warning", "unowned-files", message)
