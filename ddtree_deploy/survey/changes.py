"""What differs from what the installer wrote, and which commit a checkout is at. Standard library only (agent-safe)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Optional

from ddtree_deploy.patching.installation import Installation
from ddtree_deploy.patching.record import Record
from ddtree_deploy.release.files import record_hash
from ddtree_deploy.survey.model import LocalChanges


def local_changes(installation: Installation, package: str) -> LocalChanges:
    """Compare the package's files with the hashes in RECORD."""
    if installation.editable is not None:
        return LocalChanges(False, "an editable install: ask the checkout's version control")
    try:
        record = Record(installation.record.read_bytes(), f"{installation.dist_info.name}/RECORD")
    except OSError:
        return LocalChanges(False, "the distribution has no RECORD")
    site = installation.site_packages
    changed, missing = [], []
    known = {path for path in record.paths() if path.startswith(f"{package}/")}
    for path in sorted(known):
        expected = record.hash(path)
        if expected is None:  # byte code, compiled by the installer
            continue
        file = site / path
        if not file.is_file():
            missing.append(path)
        elif expected.startswith("sha256=") and record_hash(file.read_bytes()) != expected:
            changed.append(path)
    present = (file.relative_to(site).as_posix() for file in (site / package).rglob("*.py"))
    return LocalChanges(True, "", changed, missing, sorted(path for path in present if path not in known))


def checkout_commit(folder: Path) -> Optional[str]:
    """The commit that HEAD of the git checkout around ``folder`` names, or None. Reads files; runs no git."""
    for parent in [folder, *folder.parents]:
        git = parent / ".git"
        if git.is_file():  # a worktree or submodule: "gitdir: PATH"
            target = re.match(r"gitdir: (.+)", git.read_text("utf-8", "replace"))
            git = (parent / target[1].strip()) if target else git
        if git.is_dir():
            return _head(git)
    return None


def wheel_commit(version_file: Path) -> Optional[str]:
    """``commit_id = 'gabc123'`` of setuptools-scm's ``_version.py``, without the ``g``."""
    try:
        text = version_file.read_text("utf-8", "replace")
    except OSError:
        return None
    match = re.search(r"^(?:__commit_id__ = )?commit_id = ['\"]g?([0-9a-f]{6,40})['\"]", text, re.MULTILINE)
    return match[1] if match else None


def _head(git: Path) -> Optional[str]:
    try:
        head = (git / "HEAD").read_text("utf-8").strip()
        if not head.startswith("ref: "):
            return head
        name = head[len("ref: ") :]
        common = git / "commondir"
        roots = [git] + ([git / common.read_text("utf-8").strip()] if common.is_file() else [])
        for root in roots:
            if (root / name).is_file():
                return (root / name).read_text("utf-8").strip()
            packed = root / "packed-refs"
            for line in packed.read_text("utf-8").splitlines() if packed.is_file() else ():
                if line.endswith(f" {name}"):
                    return line.split(" ", 1)[0]
    except OSError:
        pass
    return None
