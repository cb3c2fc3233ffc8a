"""Versions in order, and what markers of requirements ask of a Python. Agent-safe."""

from __future__ import annotations

import re
from typing import Dict, Tuple

from packaging.utils import canonicalize_version
from packaging.version import InvalidVersion, Version

from ddtree_deploy.errors import InputError

_CUDA_BUILD = re.compile(r"cpu|cu\d{2}\d?")


def version_key(text: str) -> Tuple[int, ...]:
    """``3.4.30`` -> (3, 4, 30)."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def equal_versions(left: str, right: str) -> bool:
    """Equal under PEP 440: ``2.11`` is ``2.11.0``. As text where one is no version."""
    return canonicalize_version(left) == canonicalize_version(right)


def same_version(installed: str, wanted: str) -> bool:
    """Equal versions. Where one has no local part, the other's may be a CUDA build's (``+cu130``), which an index may
    leave out and ABI tags or hashes tell; any other (``+git1a2b3c``) is somebody's own build."""
    try:
        left, right = Version(installed), Version(wanted)
    except InvalidVersion:
        return installed == wanted
    if left == right:
        return True
    local = left.local or right.local or ""
    if (left.local and right.local) or not _CUDA_BUILD.fullmatch(local):
        return False
    return equal_versions(left.public, right.public)


def marker_environment(python_version: str, machine: str) -> Dict[str, str]:
    """PEP 508 variables of CPython on Linux. Raises InputError ``bad-python-version``."""
    try:
        release = Version(python_version).release
    except InvalidVersion:
        raise InputError("bad-python-version", f"{python_version!r} is not the version of a Python") from None
    full = ".".join(str(part) for part in (*release, 0, 0)[: max(3, len(release))])
    return {
        "implementation_name": "cpython",
        "implementation_version": full,
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": full,
        "python_version": ".".join(full.split(".")[:2]),
        "sys_platform": "linux",
    }
