"""Taking distributions from another venv (a staging venv of ours, or a donor) into a release, by RECORD. Agent-safe.

The venv they are taken from is only read. Files are linked, reflinked or copied; what names the other venv's path is
rewritten as new files.
"""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional, Set, Tuple

from packaging.version import InvalidVersion, Version

from ddtree_deploy.abi.elf import SHARED_OBJECT_NAME
from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.errors import StepError
from ddtree_deploy.release.clone import Cloned, Copier, choose_method
from ddtree_deploy.release.distributions import Distribution, find_distributions, is_bytecode, owners
from ddtree_deploy.release.files import (
    InsideCheck,
    leads_out,
    make_folders,
    make_writable,
    record_hash_file,
    recorded_form,
    remove_file,
    replace_file,
    shown,
)
from ddtree_deploy.release.hashes import HashCache
from ddtree_deploy.release.notes import Notes
from ddtree_deploy.release.paths import PathMentions
from ddtree_deploy.release.record import format_record, parse_record, venv_path
from ddtree_deploy.release.relocate import old_paths, relocate
from ddtree_deploy.units import some
from ddtree_deploy.versions import equal_versions

_EVERY = 512
_HASHED_BELOW = 1 << 18  # bytes; larger files are checked by size here; by hash when a staging venv is filled


@dataclass
class Placed(Notes):
    """``files`` and ``bytes`` placed; ``counts`` by method; ``rewritten``: relative to the release; ``notes``."""

    files: int = 0
    bytes: int = 0
    counts: Dict[str, int] = field(default_factory=dict)
    rewritten: List[str] = field(default_factory=list)
    notes: List[Dict[str, Any]] = field(default_factory=list)


def place_distributions(
    source: str,
    source_site: str,
    tree: str,
    site: str,
    wanted: Dict[str, str],
    final: str,
    progress: ProgressSink,
    also_known_as: Optional[List[str]] = None,
    fresh: bool = True,
    hashes: Optional[HashCache] = None,
    take_edited: bool = False,
) -> Placed:
    """Put the distributions ``wanted`` (normalized name -> version) of the venv ``source`` into the release ``tree``.

    ``final`` is the release's path to be; ``also_known_as``: paths under which ``source`` was known when it was made.
    What is in the way is replaced; a file of a package that stays is reported. Raises StepError ``source-lacks``
    (missing or of another version) and ``source-incomplete`` (files that RECORD names are not there, or differ).

    ``fresh``: uv has just made ``source`` from wheels, for us alone. Then only what installers write can name its path;
    in a donor any file can. There every file is hashed (``hashes`` remembers), and one that differs from its RECORD is
    a warning where it is text, which people edit, and StepError ``donor-damaged`` where it is compiled code, unless
    ``take_edited``.
    """
    done = Placed()
    place = also_known_as[0] if also_known_as and not fresh else source  # the donor's own name, not its copy's
    available = find_distributions(source, source_site)
    taken = [pick(available, name, version, source) for name, version in sorted(wanted.items())]
    kept = owners(find_distributions(tree, site), frozenset(wanted))
    placer = _Placer(source, tree, choose_method(os.path.join(source, "pyvenv.cfg"), tree), kept)
    moved = placer.moved
    done.counts = placer.copier.counts
    total_files = sum(len(distribution.files) for distribution in taken)
    total_bytes = sum(sum(distribution.sizes.values()) for distribution in taken)
    shared_files: Set[str] = set()
    placed: Set[str] = set()
    for distribution in taken:
        for path in distribution.files:
            target = site + path[len(source_site) :] if path.startswith(source_site + "/") else path
            if is_bytecode(path) or target in placed:
                continue
            placed.add(target)
            placer.place(f"{source}/{path}", target, distribution.name)
            if len(placed) % _EVERY == 0:
                size = sum(size for _, size in moved.files[-_EVERY:])
                done.bytes += size
                progress(Progress("overlay", distribution.name, done.bytes, total_bytes, len(placed), total_files))
        progress(Progress("check", distribution.name))
        differing, shared = _differing(tree, site, source_site, distribution, available, None if fresh else hashes)
        shared_files.update(shared)
        if differing and fresh:
            raise StepError(
                "source-incomplete",
                f"{distribution.name} in {source} is not what its RECORD says: {some(differing)}",
                where=source,
                hint=f"provision again: {distribution.name} {distribution.version} is installed anew then",
            )
        if differing:
            require_undamaged(place, distribution.name, distribution.version, differing, take_edited)
            message = f"{distribution.name} in {place} was edited, and is taken as it is: {some(differing)}"
            done.note("warning", "donor-edited", message)
    if shared_files:
        done.note(
            "note", "shared-file", "files of several packages are as one of them has it: " + some(sorted(shared_files))
        )
    if placer.overwritten:
        message = "files of packages that stay were replaced: " + some(placer.overwritten)
        done.note("warning", "shared-file", message)
    mentions = PathMentions(old_paths(source) + (also_known_as or []), final)
    result = relocate(tree, site, _to_look_at(moved, site) if fresh else moved, mentions, progress)
    done.rewritten = result.rewritten
    done.notes += result.notes
    for distribution in taken:
        _drop_bytecode_rows(f"{tree}/{site}/{distribution.folder}/RECORD", site)
    done.files = len(placed)
    done.bytes = sum(size for _, size in moved.files)
    progress(Progress("overlay", "", done.bytes, total_bytes, done.files, done.files, finished=True))
    return done


def damaged_distributions(
    venv: str, site: str, wanted: Dict[str, str], progress: ProgressSink, hashes: Optional[HashCache] = None
) -> Dict[str, List[str]]:
    """Those of ``wanted`` (normalized name -> version) in a staging venv of uv's whose files are gone or differ from
    RECORD, or that have no whole RECORD; of each ``path (how)``. Judged as :func:`place_distributions` does, with
    ``hashes`` every file by its hash. Raises StepError ``source-lacks``."""
    available = find_distributions(venv, site)

    def wrong_with(name: str) -> List[str]:
        distribution = pick(available, name, wanted[name], venv)
        if not distribution.record:
            return [f"{shown(f'{site}/{distribution.folder}/RECORD')} (gone, or cut off)"]
        names = [path for path in distribution.files if not is_bytecode(path)]
        gone = [f"{shown(path)} (gone)" for path in names if not os.path.lexists(f"{venv}/{path}")]
        return gone or _differing(venv, site, site, distribution, available, hashes)[0]

    found: Dict[str, List[str]] = {}
    names = sorted(wanted)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # hashing lets other threads run
        try:
            for name, wrong in zip(names, pool.map(wrong_with, names)):
                progress(Progress("check", name))
                if wrong:
                    found[name] = wrong
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def require_undamaged(source: str, name: str, version: str, differing: List[str], take_edited: bool) -> None:
    """Raises StepError ``donor-damaged`` where compiled files are among ``differing``: ``path (how it differs)``."""
    compiled = [text for text in differing if SHARED_OBJECT_NAME.search(text.rpartition(" (")[0])]
    if compiled and not take_edited:
        raise StepError(
            "donor-damaged",
            f"{name} in {source} has compiled files that are not what its RECORD says: {some(compiled)}",
            where=source,
            hint=f"reinstall {name} {version} there; if the change was meant, take it with --take-edited",
        )


def same_public(found: str, wanted: str) -> bool:
    """Equal versions; a local part (``+cu130``) counts only where both have one."""
    try:
        left, right = Version(found), Version(wanted)
    except InvalidVersion:
        return found == wanted
    return left == right if left.local and right.local else equal_versions(left.public, right.public)


def _to_look_at(moved: Cloned, site: str) -> Cloned:
    """Without the contents of wheels, which were made before ``source`` had a path."""
    files = [(path, size) for path, size in moved.files if not path.startswith(site + "/") or ".dist-info/" in path]
    return replace(moved, files=files)


def pick(available: Dict[str, List[Distribution]], name: str, version: str, source: str) -> Distribution:
    """The distribution ``name`` of ``version`` in ``source``; raises StepError ``source-lacks``."""
    candidates = available.get(name, [])
    for candidate in candidates:
        if same_public(candidate.version, version):
            return candidate
    found = f"has {candidates[0].version}" if candidates else "does not have it"
    raise StepError(
        "source-lacks",
        f"{name} {version} was to be taken from {source}, which {found}",
        where=source,
        hint="the donor changed since the plan was made; plan again",
    )


class _Placer:
    """Puts single files of the venv ``source`` into the release ``tree``; ``kept``: path -> packages that stay and own
    it."""

    def __init__(self, source: str, tree: str, method: str, kept: Dict[str, List[str]]) -> None:
        self.moved = Cloned()
        self.overwritten: List[str] = []
        self.copier = Copier(method)
        self._source = os.path.realpath(source)
        self._tree = tree
        self._kept = kept
        self._inside = InsideCheck(tree)
        self._folders: Set[str] = set()  # known to exist and to be in the release

    def place(self, source: str, target: str, name: str) -> None:
        """``source`` (absolute) becomes ``target`` (relative to the release); ``name`` is the package's."""
        full = f"{self._tree}/{target}"
        try:
            info = os.lstat(source)
            if stat.S_ISLNK(info.st_mode) and leads_out(source, self._source):
                info = os.stat(source)  # the file itself: it may change there, or go, any day
                source = os.path.realpath(source)
        except FileNotFoundError:
            raise StepError(
                "source-incomplete",
                f"{name}: {shown(source)} is in its RECORD but not there",
                where=shown(source),
                hint=f"reinstall {name} in the environment that it is taken from",
            ) from None
        if stat.S_ISDIR(info.st_mode):
            return
        folder = os.path.dirname(full)
        if folder not in self._folders:
            self._inside.require(full)
            make_folders(folder)
            make_writable(folder)
            self._folders.add(folder)
        self._make_way(source, full, target, name)
        if stat.S_ISLNK(info.st_mode):
            link = os.readlink(source)
            os.symlink(link, full)
            if os.path.isabs(link):
                self.moved.outward.append((target, link))
        elif stat.S_ISREG(info.st_mode):
            self.copier.place(source, full, info)
            self.moved.files.append((target, info.st_size))

    def _make_way(self, source: str, full: str, target: str, name: str) -> None:
        if not os.path.lexists(full):
            return
        if target in self._kept and not _same_content(source, full):
            self.overwritten.append(f"{shown(target)} of {', '.join(self._kept[target])} by that of {name}")
        if os.path.isdir(full) and not os.path.islink(full):
            raise StepError(
                "folder-in-the-way",
                f"{shown(target)} of {name} is a file; in the release a folder is in its place",
                where=shown(full),
                hint=f"see what made that folder in the base venv, and whether it belongs to {name}",
            )
        remove_file(full)


def _same_content(left: str, right: str) -> bool:
    if not os.path.isfile(left) or not os.path.isfile(right):
        return False
    return os.path.getsize(left) == os.path.getsize(right) and record_hash_file(left) == record_hash_file(right)


def _differing(
    tree: str,
    site: str,
    source_site: str,
    distribution: Distribution,
    available: Dict[str, List[Distribution]],
    hashes: Optional[HashCache],
) -> Tuple[List[str], List[str]]:
    """Placed files that are not what RECORD says, and apart those of them that are what another owner's RECORD says.

    Judged by size, the small ones also by hash, all of them where there are ``hashes``. Files outside of
    site-packages are scripts, into which installers write their interpreter's path after RECORD's row is made: they do
    not count.
    """
    found: List[str] = []
    shared: List[str] = []
    for path in dict.fromkeys((*distribution.sizes, *distribution.hashes)):
        if not path.startswith(source_site + "/") or is_bytecode(path) or path.endswith(".dist-info/RECORD"):
            continue  # a row of RECORD about itself cannot be right
        full = f"{tree}/{site}{path[len(source_site) :]}"
        difference = _difference(full, path, distribution, hashes)
        if difference is None:
            continue
        others = [other for same in available.values() for other in same if other is not distribution]
        others = [other for other in others if path in other.sizes or path in other.hashes]
        if any(_difference(full, path, other, hashes) is None for other in others):
            names = sorted([distribution.name, *(other.name for other in others)])
            shared.append(f"{shown(path)} of {', '.join(names)}")
        else:
            found.append(f"{shown(path)} ({difference})")
    return found, shared


def _difference(full: str, path: str, distribution: Distribution, hashes: Optional[HashCache]) -> Optional[str]:
    """How the file ``full`` differs from what ``distribution``'s RECORD says of ``path``; None where it does not."""
    now = os.stat(full).st_size
    size, recorded = distribution.sizes.get(path), distribution.hashes.get(path, "")
    if size is not None and now != size:
        return f"{now:,} bytes instead of {size:,}"
    algorithm, _, digest = recorded.partition("=")
    if algorithm.lower() != "sha256" or (hashes is None and size is not None and now >= _HASHED_BELOW):
        return None
    found = recorded_form(hashes.sha256(full)) if hashes is not None else record_hash_file(full)[0]
    return "another sha256" if found != f"sha256={digest.rstrip('=')}" else None


def new_metadata(name: str, version: str) -> Dict[str, bytes]:
    """The files of a dist-info, but RECORD, for a package that has none."""
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    return {"METADATA": metadata.encode("utf-8"), "INSTALLER": b"ddtree-deploy\n"}


def _drop_bytecode_rows(record: str, site: str) -> None:
    if not os.path.isfile(record):
        return
    with open(record, "rb") as stream:
        rows = parse_record(stream.read())
    left = [row for row in rows if not is_bytecode(venv_path(site, row[0]) or "")]
    if left != rows:
        replace_file(record, format_record(left))
