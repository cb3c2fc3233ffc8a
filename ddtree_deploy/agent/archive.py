"""Where the agent's own code is, for those who start a further process of it. Standard library only (agent-safe)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import List, Optional

import ddtree_deploy


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
