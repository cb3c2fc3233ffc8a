"""Questions about files that never fail. Standard library only (agent-safe).

Before Python 3.12 ``Path.is_dir`` and ``Path.exists`` raise PermissionError below a folder that may not be searched.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional


def is_dir(path: Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def exists(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110


def read_bytes(path: Path) -> Optional[bytes]:
    """The file's content, None where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError:
        return None


def read_text(path: Path) -> str:
    """The file's content as UTF-8, "" where it cannot be read."""
    data = read_bytes(path)
    return "" if data is None else data.decode("utf-8", "replace")
