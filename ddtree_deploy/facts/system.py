"""The host's operating system, as files and the C library tell it. Standard library only (agent-safe)."""

from __future__ import annotations

import mmap
import os
import pwd
import re
import shutil
from pathlib import Path
from typing import List, Optional

from ddtree_deploy.facts.files import is_dir, read_text

_GLIBCXX = re.compile(rb"GLIBCXX_(\d+(?:\.\d+)+)\0")


def glibc_version() -> Optional[str]:
    """ "2.36"; None where the C library is another one."""
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (ValueError, OSError):
        return None
    return version if name == "glibc" and version else None


def libstdcxx_version(machine: str) -> Optional[str]:
    """The highest GLIBCXX_ symbol version of the system's libstdc++, "3.4.30"."""
    folders = [f"/usr/lib/{machine}-linux-gnu", f"/lib/{machine}-linux-gnu", "/usr/lib64", "/lib64", "/usr/lib", "/lib"]
    for folder in folders:
        try:
            with Path(folder, "libstdc++.so.6").open("rb") as file:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            with data:
                versions = {match.group(1).decode("ascii") for match in _GLIBCXX.finditer(data)}
        except (OSError, ValueError):
            continue
        if versions:
            return max(versions, key=lambda text: [int(part) for part in text.split(".")])
    return None


def boot_id() -> Optional[str]:
    """Changes with every boot of the kernel; None where /proc does not show it."""
    return read_text(Path("/proc/sys/kernel/random/boot_id")).strip() or None


def runs_systemd() -> bool:
    """Whether systemd is pid 1 (sd_booted(3))."""
    return is_dir(Path("/run/systemd/system"))


def user_name() -> str:
    """The user we run as; the number where it has no name (containers)."""
    uid = os.geteuid()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def find_uv(folders: List[str]) -> Optional[str]:
    """uv on PATH, where its installer puts it, or in one of ``folders``."""
    try:
        homes = [f"{Path.home()}/.local/bin", f"{Path.home()}/.cargo/bin"]
    except RuntimeError:  # a user without a home
        homes = []
    return shutil.which("uv") or shutil.which("uv", path=os.pathsep.join([*homes, "/usr/local/bin", *folders]))
