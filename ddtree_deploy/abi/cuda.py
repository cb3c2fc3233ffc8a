"""CUDA facts that can be read from files: GPU code in ``.nv_fatbin``, CUDA majors in library names, ABI tags.

The fat binary layout is not published; it was checked against cuobjdump's output on torch 2.11, cuBLAS 13, cuDNN 9,
NCCL 2.28 and sgl-kernel. A container begins with magic 0xBA55ED50, u16 version, u16 header size, u64 payload size; in
it each entry has u16 kind (1 PTX, 2 cubin), u16, u32 header size, u64 payload size, and at offset 28 the architecture
(90 for sm_90), at offset 40 flags, of which 0x100000 marks an architecture-specific build (sm_90a) and 0x200000 a
family build (sm_100f). Payloads may be compressed; the headers never are.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Iterable, List, Optional, Set, Tuple

from ddtree_deploy.abi.elf import ElfError, ElfFile, Section

_MAGIC = 0xBA55ED50
_PTX, _CUBIN = 1, 2
_WINDOW = 4096
_MAX_CONTAINERS = 200_000

# Libraries whose SONAME's number is the CUDA major itself. The others (cufft, cusolver, cusparse, curand, nvtx, cufile,
# nccl, cudnn) count on their own: libcufft.so.11 belongs to CUDA 12, libcufft.so.12 to CUDA 13.
CUDA_MAJOR_LIBRARIES = ("libcudart", "libcublas", "libcublasLt", "libnvrtc", "libnvJitLink", "libcupti", "libnvblas")
_OTHER_MAJORS = {
    "libcufft.so.10": 11, "libcufft.so.11": 12, "libcufft.so.12": 13,
    "libcusolver.so.10": 11, "libcusolver.so.11": 12, "libcusolver.so.12": 13,
    "libcusparse.so.11": 11, "libcusparse.so.12": None,
    "libnvrtc.so.11.2": 11, "libcudart.so.11.0": 11, "libnvjpeg.so.12": 12, "libnvjpeg.so.13": 13,
}  # fmt: skip
_SONAME_MAJOR = re.compile(rf"^({'|'.join(CUDA_MAJOR_LIBRARIES)})\.so\.(\d+)")
_TAG = re.compile(r"(?:^|[+._-])(cu(\d{2})(\d)|cpu|rocm[\d.]+|xpu)(?:$|[^0-9])")

# What the driver's package installs; no wheel carries them and a host without a GPU has none.
DRIVER_LIBRARIES = (
    "libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "libnvcuvid.so.1", "libnvidia-encode.so.1", "libnvoptix.so.1",
    "libnvidia-ptxjitcompiler.so.1", "libcudadebugger.so.1", "libnvidia-fbc.so.1", "libnvidia-nvvm.so.4",
)  # fmt: skip


@dataclass(frozen=True, order=True)
class Arch:
    """One architecture that a file has code for: ``sm_90a``, ``compute_120`` (PTX). ``number`` is 90, 120 ..."""

    number: int
    ptx: bool = False
    suffix: str = ""  # "" | "a" | "f"

    def __str__(self) -> str:
        return f"{'compute' if self.ptx else 'sm'}_{self.number}{self.suffix}"

    def runs_on(self, capability: Tuple[int, int]) -> bool:
        """Whether a GPU of this compute capability can run it (CUDA programming guide, "binary compatibility")."""
        major, minor = divmod(self.number, 10)
        if self.suffix == "a":
            return (major, minor) == capability
        if self.ptx and not self.suffix:
            return (major, minor) <= capability
        return major == capability[0] and minor <= capability[1]


def parse_arch(text: str) -> Arch:
    """The :class:`Arch` that ``str`` of one gives back."""
    kind, _, rest = text.partition("_")
    suffix = rest[-1] if rest[-1:] in ("a", "f") else ""
    return Arch(int(rest[: len(rest) - len(suffix)]), kind == "compute", suffix)


def fatbin_architectures(elf: ElfFile, sections: Iterable[Section]) -> List[Arch]:
    """Every architecture in the file's fat binaries, sorted; empty where there is no GPU code."""
    found: Set[Arch] = set()
    for section in sections:
        _walk(elf, section, found)
    return sorted(found)


def _walk(elf: ElfFile, section: Section, found: Set[Arch]) -> None:
    at, end = section.offset, section.offset + section.size
    for _ in range(_MAX_CONTAINERS):
        if at + 16 > end:
            return
        window = elf.read(at, min(_WINDOW, end - at))
        magic, _, header, size = struct.unpack_from("<IHHQ", window)
        if magic != _MAGIC:
            at += 8  # padding between containers
            continue
        if header < 16 or at + header + size > end:
            raise ElfError("corrupt", f"a fat binary at byte {at} reaches beyond its section")
        _entries(elf, at, window, header, header + size, found)
        at += (header + size + 7) // 8 * 8


def _entries(elf: ElfFile, base: int, window: bytes, at: int, end: int, found: Set[Arch]) -> None:
    while at + 48 <= end:
        entry = window[at : at + 48] if at + 48 <= len(window) else elf.read(base + at, 48)
        kind, _, header, payload = struct.unpack_from("<HHIQ", entry)
        (number,) = struct.unpack_from("<I", entry, 28)
        (flags,) = struct.unpack_from("<Q", entry, 40)
        if header < 48:
            raise ElfError("corrupt", f"a fat binary entry at byte {base + at} has a header of {header} bytes")
        if kind in (_PTX, _CUBIN) and 10 <= number < 1000:
            suffix = "a" if flags & 0x100000 else "f" if flags & 0x200000 else ""
            found.add(Arch(number, kind == _PTX, suffix))
        at += header + payload


def soname_cuda_major(soname: str) -> Optional[int]:
    """The CUDA major that a library name belongs to (``libcudart.so.13`` -> 13), None where it does not tell."""
    match = _SONAME_MAJOR.match(soname)
    if match:
        return int(match.group(2))
    return _OTHER_MAJORS.get(soname)


def abi_tag(text: Optional[str]) -> Optional[str]:
    """The ABI tag in a version or file name: ``2.11.0+cu130`` -> ``cu130``, ``2.11.0+cpu`` -> ``cpu``."""
    match = _TAG.search(text or "")
    return match.group(1) if match else None


def tag_for_cuda(version: Optional[str]) -> Optional[str]:
    """``13.0`` -> ``cu130``; None stays None."""
    if not version:
        return None
    parts = version.split(".")
    return f"cu{parts[0]}{parts[1] if len(parts) > 1 else '0'}"


def tag_major(tag: Optional[str]) -> Optional[int]:
    """``cu128`` -> 12, ``cu13`` -> 13; None for ``cpu`` and None."""
    match = re.match(r"cu(\d{2})\d?$", tag or "")
    return int(match.group(1)) if match else None


def capability(text: str) -> Optional[Tuple[int, int]]:
    """``12.0`` -> (12, 0)."""
    match = re.match(r"(\d+)\.(\d+)$", text)
    return (int(match.group(1)), int(match.group(2))) if match else None
