"""File systems. Standard library only (agent-safe). Nothing is left on the disk by asking."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import List, Optional

from ddtree_deploy.facts.files import is_dir, read_text
from ddtree_deploy.facts.model import Disk

_ALWAYS = {"btrfs", "bcachefs"}
_SOMETIMES = {"xfs", "overlay", "zfs", "ocfs2", "nfs4", "cifs", "smb3"}
_FICLONE = 0x40049409  # linux/fs.h: _IOW(0x94, 9, int)


def nearest_existing(path: Path) -> Path:
    """The absolute ``path`` itself, or the first of its parents that is a folder we can see."""
    while not is_dir(path) and path != path.parent:
        path = path.parent
    return path


def probe_disk(path: Path) -> Disk:
    """The file system that the absolute ``path`` is on, or would be. ``free_bytes``: for a user without privileges."""
    folder = nearest_existing(path)
    status = os.statvfs(folder)
    kind = filesystem_of(folder)
    return Disk(
        path=str(folder),
        device=folder.stat().st_dev,
        filesystem=kind,
        total_bytes=status.f_blocks * status.f_frsize,
        free_bytes=status.f_bavail * status.f_frsize,
        reflink=kind in _ALWAYS or (kind in _SOMETIMES and folder == path and _try_reflink(folder)),
    )


def writable(path: Path) -> bool:
    """Whether we may write in the folder ``path``, or make it."""
    return os.access(nearest_existing(path), os.W_OK | os.X_OK)


def blocked_by(path: Path) -> Optional[Path]:
    """What stands at the absolute ``path``, or where one of its parents should be, and is no folder."""
    for place in [*reversed(path.parents), path]:
        if os.path.lexists(place) and not is_dir(place):
            return place
    return None


def filesystem_of(folder: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """ "ext4", "xfs", "overlay" ...; "unknown" without /proc. The last mount on the longest matching path counts."""
    real = os.path.realpath(folder)
    best, kind = -1, "unknown"
    for line in read_text(mounts).splitlines():
        fields = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), fields[1])
        inside = point == "/" or real == point or real.startswith(point + "/")
        if inside and len(point) >= best:
            best, kind = len(point), fields[2]
    return kind


def _try_reflink(folder: Path) -> bool:
    """Clone one file into another; both are files that never have a name, so nothing is to be removed."""
    descriptors: List[int] = []
    try:
        descriptors.extend(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600) for _ in range(2))
        os.write(descriptors[0], b"x" * 4096)
        fcntl.ioctl(descriptors[1], _FICLONE, descriptors[0])
        return True
    except OSError:
        return False
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
