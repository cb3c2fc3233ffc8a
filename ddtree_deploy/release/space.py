"""Room on the disk, asked before anything is written. Standard library only (agent-safe)."""

from __future__ import annotations

import errno
import shutil
from os import PathLike
from pathlib import Path
from typing import Union

from ddtree_deploy.errors import StepError
from ddtree_deploy.units import human_bytes


def require_space(path: Union[str, PathLike[str]], needed: int, what: str, spare: int = 0) -> None:
    """Raises StepError ``no-space``, with the numbers, unless ``needed`` bytes fit where ``path`` is or will be, and
    leave ``spare`` bytes. ``what``: ``the clone needs``."""
    place = Path(path)
    while not place.is_dir():
        place = place.parent
    free = shutil.disk_usage(place).free
    missing = needed + spare - free
    if missing > 0:
        what += f" {human_bytes(needed)}" + (f" and {human_bytes(spare)} to spare" if spare else "")
        raise StepError(
            "no-space",
            f"{place}: {what}, {human_bytes(free)} are free, {human_bytes(missing)} are missing",
            where=str(place),
            hint="free some space (`ddtree-deploy prune HOST --keep 1`) or choose a root on another file system",
            details={"needed_bytes": needed, "free_bytes": free, "missing_bytes": missing},
        )


def is_full(error: OSError) -> bool:
    """Whether the disk, or what its user may have of it, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
