"""Programs of the controller that a plan may send to a host."""

from __future__ import annotations

import hashlib
import platform
from functools import lru_cache

from ddtree_deploy.errors import InputError
from ddtree_deploy.plan.inputs import Tool


@lru_cache(maxsize=1)
def controller_uv() -> Tool | None:
    """The uv that was installed with us, else one on PATH, else None."""
    from ddtree_deploy.profiles.locking import find_uv

    try:
        path = find_uv()
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except (OSError, InputError):
        return None
    return Tool(str(path), digest, path.stat().st_size, platform.machine())
