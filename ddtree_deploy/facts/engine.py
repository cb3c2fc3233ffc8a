"""The installed engine beside what was released: by the hashes in its RECORD. Agent-safe."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
from pathlib import Path, PurePosixPath
from typing import Iterator, List, Optional, Tuple

from packaging.utils import canonicalize_name

from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.files import is_dir, read_bytes, read_text
from ddtree_deploy.facts.model import Engine
from ddtree_deploy.facts.packages import Distribution

_GENERATED = {"__pycache__"}


def probe_engine(site: Path, distributions: List[Distribution], name: str, patch_files: List[str]) -> Optional[Engine]:
    """The engine named ``name`` (a distribution), or None. ``patch_files`` are paths relative to site-packages."""
    wanted = canonicalize_name(name)
    found = next((item for item in distributions if item.package.name == wanted), None)
    if found is None:
        return None
    editable = found.package.editable
    location = _source_root(Path(editable), patch_files, found.top_level) if editable else site
    changed, missing = _compare(site, found.info) if editable is None else ([], [])
    return Engine(
        distribution=wanted,
        version=found.package.version,
        location=str(location),
        commit=git_commit(location) if editable else None,
        editable=editable,
        changed_files=changed,
        missing_files=missing,
        added_files=[] if editable else _added(site, found),
        sha256={path: _sha256(location / _inside(path)) for path in patch_files},
    )


def git_commit(folder: Path) -> Optional[str]:
    """The commit that the checkout around ``folder`` is at, read from its files."""
    for parent in [folder, *folder.parents]:
        git = parent / ".git"
        pointer = _text(git)  # a file in worktrees and submodules
        if pointer.startswith("gitdir:"):
            git = parent / pointer[7:].strip()
        if is_dir(git):
            head = _text(git / "HEAD")
            commit = _resolve_ref(git, head[4:].strip()) if head.startswith("ref:") else head
            return commit if commit and re.fullmatch("[0-9a-f]{40}([0-9a-f]{24})?", commit) else None
    return None


def _resolve_ref(git: Path, ref: str) -> Optional[str]:
    common = git / (_text(git / "commondir") or ".")
    for folder in (git, common):
        commit = _text(folder / ref)
        if commit:
            return commit
    for line in _text(common / "packed-refs").splitlines():
        commit, _, name = line.partition(" ")
        if name.strip() == ref:
            return commit
    return None


def _source_root(project: Path, patch_files: List[str], top_level: List[str]) -> Path:
    """Where in an editable project the packages are: beside pyproject.toml, or in src/ or python/."""
    wanted = [PurePosixPath(path).parts[0] for path in patch_files[:1]] + top_level
    for root in (project, project / "src", project / "python"):
        if any(is_dir(root / name) for name in wanted):
            return root
    return project


def _compare(site: Path, info: Path) -> Tuple[List[str], List[str]]:
    """(changed, missing) files of the distribution, relative to site-packages."""
    changed, missing = [], []
    for path, expected, size in _record(info):
        try:
            same = size is None or (site / path).stat().st_size == size
            if not same or _digest(site / path, expected[0]) != expected[1]:
                changed.append(path)
        except FileNotFoundError:
            missing.append(path)
        except (OSError, ValueError):  # unreadable, or a hash that this Python does not know
            changed.append(path)
    return sorted(changed), sorted(missing)


def _added(site: Path, found: Distribution) -> List[str]:
    """Python files in the engine's packages that its RECORD does not know: put there by hand."""
    known = {path for path, _, _ in _record(found.info)}
    if not known:
        return []
    added = []
    for name in sorted({PurePosixPath(path).parts[0] for path in known if "/" in path and ".dist-info" not in path}):
        for folder, folders, files in os.walk(site / name):
            folders[:] = [item for item in folders if item not in _GENERATED]
            for file in files:
                path = (Path(folder) / file).relative_to(site).as_posix()
                if file.endswith(".py") and path not in known:
                    added.append(path)
    return sorted(added)


def _record(info: Path) -> Iterator[Tuple[str, Tuple[str, str], Optional[int]]]:
    """Rows of RECORD with a hash, inside site-packages: (path, (algorithm, hash), size)."""
    for row in csv.reader(_text(info / "RECORD").replace("\0", "").splitlines()):  # zeros: what a power cut leaves
        if len(row) >= 2 and row[1] and not row[0].startswith(("/", "../")):
            algorithm, _, value = row[1].partition("=")
            size = int(row[2]) if len(row) > 2 and row[2].isdigit() else None
            yield row[0], (algorithm, value), size


def _digest(path: Path, algorithm: str) -> str:
    """As RECORD writes it: urlsafe base64 without padding."""
    digest = hashlib.new(algorithm, path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def _inside(path: str) -> str:
    if path.startswith("/") or ".." in PurePosixPath(path).parts:
        raise InputError("bad-path", f"not a path relative to site-packages: {path!r}")
    return path


def _sha256(path: Path) -> Optional[str]:
    data = read_bytes(path)
    return None if data is None else hashlib.sha256(data).hexdigest()


def _text(path: Path) -> str:
    return read_text(path).strip()
