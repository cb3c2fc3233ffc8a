"""What differs between two environments: packages, ABI tags, and files. Releases share most files, by inode."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Set, Tuple

from ddtree_deploy.abi.environment import Environment, load_environment
from ddtree_deploy.abi.place import place
from ddtree_deploy.abi.rules.records import file_hash
from ddtree_deploy.abi.tree import Entry
from ddtree_deploy.agent.protocol import Progress, ProgressSink, silent
from ddtree_deploy.codec import to_dict
from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.packages import read_distributions

_RECORD_FILE = ".ddtree/release.json"


@dataclass(frozen=True)
class Side:
    """One of the two: what it is called, its Python, torch and ABI tag."""

    path: str
    release: Optional[str] = None
    profile: Optional[str] = None
    patch_set: Optional[str] = None
    python: Optional[str] = None
    torch: Optional[str] = None
    abi_tag: Optional[str] = None
    packages: int = 0
    files: int = 0


@dataclass(frozen=True)
class PackageDifference:
    """``change``: add | remove | replace (another version) | rebuild (same version, another ABI tag)."""

    change: str
    name: str
    old_version: Optional[str] = None
    new_version: Optional[str] = None
    old_abi: Optional[str] = None
    new_abi: Optional[str] = None
    files: int = 0  # of it that are added, removed or changed


@dataclass(frozen=True)
class FileDifference:
    """A file of a package that is the same on both sides, or of none: a patch, a shim, an edit by hand."""

    change: str  # add | remove | change
    path: str  # relative to site-packages
    package: Optional[str] = None


@dataclass(frozen=True)
class Difference:
    left: Side
    right: Side
    packages: List[PackageDifference] = field(default_factory=list)
    files: List[FileDifference] = field(default_factory=list)
    unchanged_packages: int = 0
    unchanged_files: int = 0
    schema: int = 1

    @property
    def same(self) -> bool:
        return not self.packages and not self.files


@dataclass(frozen=True)
class _Content:
    environment: Environment
    files: Dict[str, Entry]  # relative to its site folder
    owner: Dict[str, str]
    packages: Dict[str, Tuple[str, Optional[str]]]  # name -> (version, ABI tag)


def difference(left: str, right: str, progress: ProgressSink = silent) -> Difference:
    """Compare two environments on this machine. Files of equal identity are equal; others by size, then by sha256.

    Byte code and package metadata (RECORD, INSTALLER ...) do not count as files. Raises InputError ``no-environment``.
    """
    old, new = _content(left), _content(right)
    changed = _files(old, new, progress)
    packages = _packages(old, new, changed)
    moving = {package.name for package in packages}
    files = []
    for path, change in sorted(changed.items()):
        name = new.owner.get(path) or old.owner.get(path)
        if name not in moving:
            files.append(FileDifference(change, path, name))
    return Difference(
        left=_side(left, old),
        right=_side(right, new),
        packages=packages,
        files=files,
        unchanged_packages=len(set(old.packages) & set(new.packages) - moving),
        unchanged_files=len(set(old.files) | set(new.files)) - len(changed),
    )


def op_diff(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Agent operation ``abi.diff``: params ``left`` and ``right``, each a path, or with ``root`` a release's id or
    ``current``. Returns the Difference."""
    sides = [params.get("left"), params.get("right")]
    if not all(isinstance(side, str) and side for side in sides):
        raise InputError("bad-params", "abi.diff needs left and right: each a path, or the id of a release")
    old, new = [place(str(side), params.get("root")) for side in sides]
    return to_dict(difference(old, new, progress))


def _content(path: str) -> _Content:
    environment = load_environment(path)
    site = environment.site[0]
    start = len(site) + 1
    files = {
        file[start:]: entry
        for file, entry in environment.tree.files.items()
        if file.startswith(site + "/") and ".dist-info/" not in file and ".egg-info" not in file
    }
    owner = {file[start:]: claims[0][0].name for file, claims in environment.owners.items()}
    packages = {
        found.package.name: (found.package.version, found.package.abi_tag) for found in read_distributions(Path(site))
    }
    return _Content(environment, files, owner, packages)


def _files(old: _Content, new: _Content, progress: ProgressSink) -> Dict[str, str]:
    changed: Dict[str, str] = {}
    paths = sorted(set(old.files) | set(new.files))
    for number, path in enumerate(paths):
        left, right = old.files.get(path), new.files.get(path)
        if left is None or right is None:
            changed[path] = "remove" if right is None else "add"
        elif not _equal(left, right):
            changed[path] = "change"
        if number % 1024 == 0:
            progress(Progress("compare", path, done_files=number, total_files=len(paths)))
    progress(Progress("compare", "", done_files=len(paths), total_files=len(paths), finished=True))
    return changed


def _equal(left: Entry, right: Entry) -> bool:
    if (left.device, left.inode) == (right.device, right.inode):
        return True
    if left.size != right.size:
        return False
    return file_hash(left.real) == file_hash(right.real)


def _packages(old: _Content, new: _Content, changed: Dict[str, str]) -> List[PackageDifference]:
    counts: Dict[str, int] = {}
    for path in changed:
        for name in {old.owner.get(path), new.owner.get(path)} - {None}:
            counts[str(name)] = counts.get(str(name), 0) + 1
    found = []
    names: Set[str] = set(old.packages) | set(new.packages)
    for name in sorted(names):
        (old_version, old_abi), (new_version, new_abi) = (
            old.packages.get(name, (None, None)),
            new.packages.get(name, (None, None)),
        )
        if (old_version, old_abi) == (new_version, new_abi):
            continue
        change = "add" if old_version is None else "remove" if new_version is None else "replace"
        if change == "replace" and old_version == new_version:
            change = "rebuild"
        found.append(PackageDifference(change, name, old_version, new_version, old_abi, new_abi, counts.get(name, 0)))
    return found


def _side(path: str, content: _Content) -> Side:
    record: Dict[str, Any] = {}
    try:
        record = json.loads(Path(path, _RECORD_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = {}
    environment = content.environment
    return Side(
        path=path,
        release=record.get("id"),
        profile=record.get("profile"),
        patch_set=record.get("patch_set"),
        python=environment.python_text,
        torch=environment.torch_version,
        abi_tag=environment.abi_tag,
        packages=len(content.packages),
        files=len(content.files),
    )
