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
        elif expected.startswith("sha256=") and _hash(file) != expected:
            changed.append(path)
    present = (file.relative_to(site).as_posix() for file in (site / package).rglob("*.py"))
    return LocalChanges(True, "", changed, missing, sorted(path for path in present if path not in known))


def _hash(file: Path) -> Optional[str]:
    try:
        return record_hash(file.read_bytes())
    except OSError:  # what nobody may read counts as changed
        return None


def wheel_commit(version_file: Path) -> Optional[str]:
    """``commit_id = 'gabc123'`` of setuptools-scm's ``_version.py``, without the ``g``."""
    try:
        text = version_file.read_text("utf-8", "replace")
    except OSError:
        return None
    match = re.search(r"^(?:__commit_id__ = )?commit_id = ['\"]g?([0-9a-f]{6,40})['\"]", text, re.MULTILINE)
    return match[1] if match else None
