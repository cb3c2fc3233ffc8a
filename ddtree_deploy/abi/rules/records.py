"""RECORD against the disk: files that are gone, changed, or claimed by two distributions."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Dict, List, Optional, Set, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.cuda import abi_tag
from ddtree_deploy.abi.metadata import Distribution, Recorded
from ddtree_deploy.abi.model import Finding

_NATIVE = re.compile(r"\.so(\.[0-9][0-9A-Za-z_]*)*$")
_IGNORED = re.compile(r"(/__pycache__/|\.pyc$|\.dist-info/|/tests?/|/testing/|\.(h|hpp|cuh|a|lib|pyi|md|txt|rst)$)")
_SHOWN = 20
_HASHED_BELOW = 1 << 20  # bytes


def check(context: Context) -> List[Finding]:
    shared = {path: claims for path, claims in context.environment.owners.items() if len(claims) > 1}
    conflicts = {path: claims for path, claims in shared.items() if _differ(claims)}
    return _overlaps(context, conflicts) + _missing(context) + _changed(context, set(shared))


def _ignored(dist: Distribution, path: str) -> bool:
    """Files that nobody misses at run time: byte code, metadata, tests, headers, static libraries, documents."""
    return bool(_IGNORED.search(path[len(dist.site) :] if path.startswith(dist.site) else path))


def _differ(claims: List[Tuple[Distribution, Recorded]]) -> bool:
    names = {dist.name for dist, _ in claims}
    hashes = {recorded.hash for _, recorded in claims if recorded.hash}
    return len(names) > 1 and len(hashes) > 1


# two owners -------------------------------------------------------------------------------------------------------


def _overlaps(context: Context, conflicts: Dict[str, List[Tuple[Distribution, Recorded]]]) -> List[Finding]:
    pairs: Dict[Tuple[str, str], List[str]] = {}
    by_label: Dict[str, Distribution] = {}
    for path, claims in conflicts.items():
        code = _NATIVE.search(path) or path.endswith(".py")
        if not code or _ignored(claims[0][0], path):
            continue
        by_label.update({dist.label: dist for dist, _ in claims})
        labels = sorted({dist.label for dist, _ in claims})
        for index, first in enumerate(labels):
            for second in labels[index + 1 :]:
                pairs.setdefault((first, second), []).append(path)
    return [
        _overlap(context, by_label[first], by_label[second], sorted(paths))
        for (first, second), paths in sorted(pairs.items())
    ]


def _overlap(context: Context, first: Distribution, second: Distribution, paths: List[str]) -> Finding:
    environment = context.environment
    winners = {path: _winner(context, path, first, second) for path in paths}
    won = {label: sum(1 for winner in winners.values() if winner == label) for label in (first.label, second.label)}
    native = any(_NATIVE.search(path) for path in paths)
    whole = [dist for dist in (first, second) if won[dist.label] == len(paths)]
    other = second if whole and whole[0] is first else first
    twins = bool(whole) and first.version == second.version and abi_tag(first.version) == abi_tag(second.version)
    if whole:
        state = f"on disk are those of {whole[0].label}: {other.label} is overwritten"
    else:
        state = f"on disk they are mixed: {won[first.label]} of {first.label}, {won[second.label]} of {second.label}"
    keep = whole[0] if whole else first
    stray = not native and all("/" not in path[len(first.site) + 1 :] for path in paths)  # build_backend.py, setup.py
    return Finding(
        id="record-overlap",
        severity="error" if native and not twins else "note" if stray else "warning",
        title=f"{first.label} and {second.label} own the same files",
        message=f"{len(paths)} files are claimed by both with different contents; {state}",
        when="import",
        cause=f"overlap:{first.name}:{second.name}",
        why="each install overwrites the other's files, and removing either one deletes files of the other",
        fix=f"pip uninstall -y {first.name} {second.name} && pip install {keep.name}=={keep.version}",
        files=[environment.short(path) for path in paths[:_SHOWN]],
        packages=[first.label, second.label],
    )


def _winner(context: Context, path: str, first: Distribution, second: Distribution) -> Optional[str]:
    """Label of the distribution whose RECORD matches the disk, by size if that tells, else by hash."""
    entry = context.store.entry(path)
    if entry is None:
        return None
    claims = [(dist, (dist.record or {})[path]) for dist in (first, second)]
    sizes = {recorded.size for _, recorded in claims}
    if len(sizes) == len(claims) and None not in sizes:
        return next((dist.label for dist, recorded in claims if recorded.size == entry.size), None)
    digest = file_hash(entry.real)
    return next((dist.label for dist, recorded in claims if recorded.hash == digest), None)


def file_hash(path: str) -> Optional[str]:
    """``sha256=...`` of a file in RECORD's form, None where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with Path(path).open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return None
    return "sha256=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


# gone or changed --------------------------------------------------------------------------------------------------


def _missing(context: Context) -> List[Finding]:
    environment = context.environment
    findings = []
    for dist in environment.distributions:
        gone = [path for path in dist.record or {} if not _ignored(dist, path) and not _exists(context, path)]
        code = sorted(path for path in gone if _NATIVE.search(path) or path.endswith(".py"))
        if not gone:
            continue
        total = sum(1 for path in dist.record or {} if not _ignored(dist, path))
        shown = code or sorted(gone)
        scripts = not code and all(not path.startswith(dist.site + "/") for path in gone)
        findings.append(
            Finding(
                id="record-missing-file",
                severity="error" if code else "note" if scripts else "warning",
                title=f"files of {dist.label} are gone",
                message=f"{len(gone)} of {total} files in its RECORD are gone, such as {environment.short(shown[0])}",
                when="import" if code else "under-load",
                cause=f"files:{dist.label}",
                why="they were deleted by hand, or with another package that owned the same paths",
                fix=f"pip install --force-reinstall --no-deps {dist.name}=={dist.version}",
                files=[environment.short(path) for path in shown[:_SHOWN]],
                packages=[dist.label],
            )
        )
    return findings


def _exists(context: Context, path: str) -> bool:
    tree = context.environment.tree
    if tree.find(path) is not None or path in tree.broken or path in tree.special:  # these are told apart
        return True
    return not tree.covers(path) and Path(path).exists()


def _changed(context: Context, shared: Set[str]) -> List[Finding]:
    """Shared objects whose size is not the one in RECORD; conflicts of two owners are told apart from these."""
    environment = context.environment
    findings = []
    for dist in environment.distributions:
        if dist.site.endswith("dist-packages") and dist.installer in (None, "debian"):
            continue  # the distribution strips shared objects after their RECORD is written
        changed = [
            path
            for path, recorded in (dist.record or {}).items()
            if path not in shared and _NATIVE.search(path) and _differs(context, path, recorded)
        ]
        if not changed:
            continue
        findings.append(
            Finding(
                id="record-changed-file",
                severity="warning",
                title=f"shared objects of {dist.label} are not those that were installed",
                message=f"{environment.short(sorted(changed)[0])} differs from RECORD"
                + (f", as do {len(changed) - 1} more" if len(changed) > 1 else ""),
                when="under-load",
                cause=f"files:{dist.label}",
                why="another package overwrote them, or somebody put an own build there: the version does not tell",
                fix=f"pip install --force-reinstall --no-deps {dist.name}=={dist.version}",
                files=[environment.short(path) for path in sorted(changed)[:_SHOWN]],
                packages=[dist.label],
            )
        )
    return findings


def _differs(context: Context, path: str, recorded: Recorded) -> bool:
    """By size, and by hash where the file is small: hashing gigabytes would take longer than all else."""
    entry = context.store.entry(path)
    if entry is None:
        return False
    if recorded.size is not None and entry.size != recorded.size:
        return True
    if entry.size > _HASHED_BELOW or not recorded.hash.startswith("sha256="):
        return False
    return context.cache.get(entry, "sha256", lambda: file_hash(entry.real)) not in (recorded.hash, None)
