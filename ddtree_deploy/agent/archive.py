"""Where the agent's own code is, for those who start a further process of it, and the removal of old copies of it.
Standard library only (agent-safe)."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from pathlib import Path
from typing import List, Optional

import ddtree_deploy

_COPY = re.compile(r"agent-[0-9a-f]{64}\.pyz(\.\d+\.partial)?")
UNUSED_S = 7 * 86400.0


def archive_path() -> Optional[Path]:
    """The zipapp we were loaded from, or None when we run from a source tree or an installed package."""
    for parent in Path(ddtree_deploy.__file__).parents:
        if parent.is_file():
            return parent
    return None


def command(arguments: List[str], archive: Optional[Path] = None) -> List[str]:
    """Argument vector that runs ``agent.main`` with ``arguments`` under this Python.

    ``archive`` is a copy of the zipapp to run instead of the cached one (a service must outlive the cache).
    """
    archive = archive or archive_path()
    if archive is not None:
        return [sys.executable, "-I", "-S", str(archive), *arguments]
    return [sys.executable, "-m", "ddtree_deploy.agent.main", *arguments]


def remove_unused(archive: Optional[Path] = None) -> List[str]:
    """Remove the zipapps beside ours that nobody has started for a week and no process runs; returns their names.

    Controllers of other versions may use this host too: the bootstrap sets a copy's time whenever it starts it.
    """
    archive = archive or archive_path()
    if archive is None:
        return []
    running = _command_lines()
    removed = []
    for path in sorted(archive.parent.iterdir()):
        if path == archive or not _COPY.fullmatch(path.name):
            continue
        with contextlib.suppress(OSError):
            used = str(path).encode() in running
            if not used and time.time() - path.lstat().st_mtime > UNUSED_S:
                path.unlink()
                removed.append(path.name)
    return removed


def _command_lines() -> bytes:
    texts = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                texts.append((process / "cmdline").read_bytes())
    return b"\0".join(texts)
