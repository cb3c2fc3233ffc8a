"""What the host allows: driver, GPUs, C library, libraries that ``ldconfig`` knows. Given, from facts, or probed."""

from __future__ import annotations

import os
import platform
import re
import shutil
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ddtree_deploy.abi.elf import ElfError, ElfFile
from ddtree_deploy.facts.gpu import probe_gpus
from ddtree_deploy.facts.toolkits import find_toolkits
from ddtree_deploy.versions import version_key

_TRIPLETS = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
_CACHE_FLAGS = {"x86_64": 0x0303, "aarch64": 0x0A03}
_CACHE_MAGIC = b"glibc-ld.so.cache1.1"


@dataclass(frozen=True)
class HostLimits:
    """Limits of a host. None or empty means "not known": rules that need it then stay silent or say so in a note.

    ``libraries`` is ldconfig's cache (name -> path); ``folders`` are the linker's default folders.
    """

    machine: str = "x86_64"
    driver: Optional[str] = None  # "580.65.06"
    driver_cuda: Optional[str] = None  # "13.0"
    compute_capabilities: List[str] = field(default_factory=list)  # ["12.0"]
    glibc: Optional[str] = None  # "2.36"
    glibcxx: Optional[str] = None  # "3.4.30"
    libraries: Dict[str, str] = field(default_factory=dict)
    folders: List[str] = field(default_factory=list)
    ld_library_path: List[str] = field(default_factory=list)
    toolkits: List[str] = field(default_factory=list)  # versions of nvcc that a build would find, first one first

    def provides(self, name: str) -> Optional[str]:
        """Path of a library that the linker finds without any search path, or None."""
        path = self.libraries.get(name)
        if path is not None:
            return path
        for folder in self.folders:
            candidate = f"{folder}/{name}"
            if Path(candidate).exists():
                return candidate
        return None

    @property
    def capabilities(self) -> List[Tuple[int, int]]:
        pairs = [re.match(r"(\d+)\.(\d+)$", text) for text in self.compute_capabilities]
        return [(int(pair.group(1)), int(pair.group(2))) for pair in pairs if pair]


def probe_host(ld_library_path: Optional[str] = None) -> HostLimits:
    """The limits of the machine we run on; ``ld_library_path`` is the service's (default: our own environment's)."""
    machine = platform.machine() or "x86_64"
    triplet = _TRIPLETS.get(machine)
    multiarch = [f"/lib/{triplet}", f"/usr/lib/{triplet}"] if triplet else []
    folders = [path for path in [*multiarch, "/lib64", "/usr/lib64", "/lib", "/usr/lib"] if Path(path).is_dir()]
    limits = HostLimits(
        machine=machine,
        libraries=read_ld_cache(Path("/etc/ld.so.cache"), machine),
        folders=folders,
        ld_library_path=split_path(
            os.environ.get("LD_LIBRARY_PATH", "") if ld_library_path is None else ld_library_path
        ),
        toolkits=_toolkits(),
    )
    cards = probe_gpus()
    return replace(
        limits,
        glibc=_highest(limits.provides("libc.so.6"), "GLIBC_"),
        glibcxx=_highest(limits.provides("libstdc++.so.6"), "GLIBCXX_"),
        driver=cards.driver,
        driver_cuda=cards.driver_cuda,
        compute_capabilities=sorted({gpu.compute_capability for gpu in cards.gpus if gpu.compute_capability}),
    )


def limits_from_facts(facts: Dict[str, Any], base: HostLimits) -> HostLimits:
    """``base`` with what a HostFacts document says laid over it; fields that facts lack keep the probed value."""
    gpus = facts.get("gpus") or []
    capabilities = [gpu["compute_capability"] for gpu in gpus if gpu.get("compute_capability")]
    toolkits = [kit["version"] for kit in facts.get("toolkits") or [] if kit.get("version")]
    libstdcxx = facts.get("libstdcxx")
    return replace(
        base,
        machine=facts.get("machine") or base.machine,
        driver=facts.get("driver") or base.driver,
        driver_cuda=facts.get("driver_cuda") or base.driver_cuda,
        compute_capabilities=capabilities or base.compute_capabilities,
        glibc=facts.get("glibc") or base.glibc,
        glibcxx=str(libstdcxx).replace("GLIBCXX_", "") if libstdcxx else base.glibcxx,
        toolkits=toolkits or base.toolkits,
    )


def split_path(value: str) -> List[str]:
    """The folders of a colon-separated search path; empty elements, which mean the working folder, are left out."""
    return [part.rstrip("/") or "/" for part in value.split(":") if part]


def read_ld_cache(path: Path, machine: str) -> Dict[str, str]:
    """``/etc/ld.so.cache`` (glibc's new format) as name -> path; empty where there is none or it is not readable."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    start = data.find(_CACHE_MAGIC)
    if start < 0:
        return {}
    found: Dict[str, str] = {}
    wanted = _CACHE_FLAGS.get(machine)
    try:
        (count,) = struct.unpack_from("<I", data, start + 20)
        for index in range(count):
            flags, key, value = struct.unpack_from("<iII", data, start + 48 + index * 24)
            if wanted is None or flags & 0xFFFF == wanted:
                found.setdefault(_text(data, start + key), _text(data, start + value))
    except struct.error:
        return found
    return found


def _text(data: bytes, at: int) -> str:
    return data[at : data.find(b"\0", at)].decode("utf-8", "replace")


def _highest(path: Optional[str], prefix: str) -> Optional[str]:
    if path is None:
        return None
    try:
        with ElfFile(path) as elf:
            names = [name[len(prefix) :] for name in elf.info().verdef if name.startswith(prefix)]
    except (ElfError, OSError):
        return None
    numbers = [name for name in names if re.match(r"[\d.]+$", name)]
    return max(numbers, key=version_key, default=None)


def _toolkits() -> List[str]:
    """Versions of the toolkits, first that of the nvcc which a build takes: CUDA_HOME, PATH, /usr/local/cuda."""
    nvcc = shutil.which("nvcc")
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    active = os.path.realpath(home or (str(Path(nvcc).resolve().parent.parent) if nvcc else "/usr/local/cuda"))
    found = sorted(find_toolkits(), key=lambda kit: kit.path != active)
    return [kit.version for kit in found if kit.version]
