"""Taking distributions out of a release by their RECORD. Standard library and packaging only (agent-safe)."""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Set

from packaging.utils import canonicalize_name

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.release.bare import files_below, import_entries
from ddtree_deploy.release.distributions import (
    Distribution,
    declared_names,
    find_distributions,
    is_bytecode,
    owners,
    top_level,
)
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
    tops = _top_names(tree, site, doomed)  # now: their metadata leaves, too
    hollow = {dist.name: _module_names(tree, site, dist) for dist in doomed if _is_hollow(site, dist)}
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
    _note_lost_modules(tree, site, hollow, distributions, done)
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


def _top_names(tree: str, site: str, doomed: List[Distribution]) -> Set[str]:
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
    for name in os.listdir(f"{tree}/{site}"):
        path = f"{site}/{name}"
        if _is_module_file(name) and _stem(name) in tops and path not in kept:
            left.append(shown(path))
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
        message = f"{len(left)} files in or beside folders of removed packages are in no RECORD and stay: "
        message += some(sorted(left))
        done.note("warning", "unowned-files", message)


def _is_hollow(site: str, distribution: Distribution) -> bool:
    """Whether its RECORD names nothing in site-packages but its own metadata: a package that is only requirements,
    scripts or data; or one whose RECORD was cut off after these rows, which as a rule come first."""
    own = f"{site}/{distribution.folder}/"
    return distribution.record and not any(
        path.startswith(site + "/") and not path.startswith(own) and not is_bytecode(path[len(site) :])
        for path in distribution.files
    )


def _module_names(tree: str, site: str, distribution: Distribution) -> Set[str]:
    """What its modules may be called: what ``top_level.txt`` says; without it, by its name, and every word of the
    metadata, whose examples and entry points import ``bs4`` where the package is beautifulsoup4."""
    declared = declared_names(f"{tree}/{site}", distribution.folder)
    if declared is not None:
        return set(declared)
    names = set(import_entries(distribution.name, f"{tree}/{site}"))
    names.add(re.sub(r"^py(thon)?-?", "", distribution.name).replace("-", "_"))  # pyzmq is zmq
    for file in ("METADATA", "PKG-INFO", "entry_points.txt"):
        with contextlib.suppress(OSError), open(f"{tree}/{site}/{distribution.folder}/{file}", "rb") as stream:
            names |= set(re.findall(r"\w+", stream.read().decode("utf-8", "replace")))
    return names


def _note_lost_modules(
    tree: str,
    site: str,
    hollow: Dict[str, Set[str]],
    distributions: Dict[str, List[Distribution]],
    done: Removed,
) -> None:
    """``hollow``: removed packages without modules in their RECORD, and what these may be called. What such a RECORD
    has lost is there, and nobody's; a package that has no modules is not told of."""
    if not hollow:
        return
    claimed: Set[str] = set()
    for same in distributions.values():
        for path in (path for distribution in same for path in distribution.files):
            while path not in claimed and path != site and path:
                claimed.add(path)
                path = os.path.dirname(path)
    unclaimed = {path[len(site) + 1 :] for path in _unclaimed(tree, site, claimed)}
    for name, names in sorted(hollow.items()):
        found = [path for path in unclaimed if not names.isdisjoint([path, *map(_stem, path.split("/"))])]
        if found:
            message = (
                f"the RECORD of {name} names no modules, as if it were cut off; "
                f"these are in no RECORD, may be its own, and stay: {some([shown(path) for path in sorted(found)])}"
            )
            done.note("warning", "record-without-modules", message)


def _unclaimed(tree: str, folder: str, claimed: Set[str]) -> Iterator[str]:
    """Importable files and folders below ``folder`` of which nothing is ``claimed``; namespaces are looked into."""
    for entry in sorted(os.listdir(f"{tree}/{folder}")):
        path = f"{folder}/{entry}"
        full = f"{tree}/{path}"
        if _is_module_file(entry):
            if path not in claimed:
                yield path
        elif entry.isidentifier() and entry != "__pycache__" and os.path.isdir(full):
            if path not in claimed:
                if os.path.islink(full) or any(_is_module_file(os.path.basename(at)) for at in files_below(full, ".")):
                    yield path
            elif not os.path.islink(full) and not os.path.exists(f"{full}/__init__.py"):
                yield from _unclaimed(tree, path, claimed)


def _is_module_file(name: str) -> bool:
    return name.endswith((".py", ".so")) and _stem(name).isidentifier()


def _stem(name: str) -> str:
    """The module of a file, as it is imported: ``six.py`` and ``_x.cpython-311-x86_64-linux-gnu.so``."""
    return name.partition(".")[0]
