"""Libraries that are opened by name later (dlopen): not in DT_NEEDED, so that nothing misses them until they are used.

The names are those found in the libraries' own string tables (CUDA 12.8 and 13.0, cuDNN 9.10 and 9.19, torch 2.9-2.11,
NVSHMEM 3.3-3.4, Triton 3.5-3.6).
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.elf import ElfError, ElfFile
from ddtree_deploy.abi.model import Finding

_CUDNN9 = ("graph", "ops", "cnn", "adv", "engines_precompiled", "engines_runtime_compiled", "heuristic")
_CUDNN8 = ("ops_infer", "cnn_infer", "adv_infer", "ops_train", "cnn_train", "adv_train")
_BUILTINS = re.compile(rb"libnvrtc-builtins\.so\.\d+\.\d+")


@dataclass(frozen=True)
class Companion:
    """``names`` that ``library`` opens; ``needless`` ones are opened by an optional feature only."""

    library: str
    names: Tuple[str, ...]
    what: str
    needless: bool = False


COMPANIONS = (
    Companion(
        "libcudnn.so.9", tuple(f"libcudnn_{part}.so.9" for part in _CUDNN9), "convolutions and attention by cuDNN"
    ),
    Companion("libcudnn.so.8", tuple(f"libcudnn_{part}.so.8" for part in _CUDNN8), "convolutions by cuDNN"),
    Companion("libtorch_cuda.so", ("libtorch_cuda_linalg.so", "libcaffe2_nvrtc.so"), "torch.linalg and fused kernels"),
    Companion("libnvshmem_host.so.3", ("nvshmem_bootstrap_uid.so.3",), "NVSHMEM's start"),
    Companion("libcufile.so.0", ("libcufile_rdma.so.1",), "GPUDirect Storage over RDMA", needless=True),
    Companion("libcupti.so.12", ("libnvperf_host.so",), "profiling", needless=True),
    Companion("libcupti.so.13", ("libnvperf_host.so",), "profiling", needless=True),
)
# Programs and data that Triton runs for its first kernel, relative to triton/.
_TRITON = ("backends/nvidia/bin/ptxas", "backends/nvidia/lib/libdevice.10.bc")


def check(context: Context) -> List[Finding]:
    findings: List[Finding] = []
    for path in context.objects:
        name = posixpath.basename(path)
        for companion in COMPANIONS:
            if companion.library == name:
                findings += _absent(context, path, companion)
        if re.match(r"libnvrtc\.so\.\d+", name):
            findings += _builtins(context, path)
        if re.match(r"libcudnn\.so\.\d+", name):
            findings += _cudnn_versions(context, path)
    return findings + _triton(context)


def _absent(context: Context, path: str, companion: Companion) -> List[Finding]:
    gone = [name for name in companion.names if _find(context, name, path) is None]
    if not gone:
        return []
    borrowed = all(context.linker.on_search_path(name) for name in gone)
    return [_finding(context, path, gone, companion.what, companion.needless or borrowed)]


def _find(context: Context, name: str, path: str) -> Optional[str]:
    """Where the library's own companion is: beside it, or loaded before. The host's is of another build."""
    beside = f"{posixpath.dirname(path)}/{name}"
    return beside if context.inside(beside) else context.linker.torch_loaded().get(name)


def _finding(context: Context, path: str, names: List[str], what: str, needless: bool) -> Finding:
    environment = context.environment
    package = environment.package(path)
    used = path in context.linker.torch_loaded().values() or bool(context.loaders.get(path))
    dist = environment.owner(path)
    listed = dist is not None and any(entry.endswith("/" + names[0]) for entry in dist.record or {})
    return Finding(
        id="companion-missing",
        severity="error" if used and not needless else "warning",
        title=f"{posixpath.basename(path)} misses {names[0]}"
        + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
        message=f"{environment.short(path)} opens {', '.join(names)} by name, "
        + ("which only the host has, of its own build" if _on_host(context, names) else "which is not there"),
        when="first-kernel" if not needless else "under-load",
        cause=f"files:{package}" if listed else f"companion:{package}",
        why=f"nothing misses it at import; {what} fails when it is used first",
        fix=f"pip install --force-reinstall --no-deps {package.split()[0]}",
        files=[environment.short(path)],
        symbols=names,
        packages=[package],
    )


def _on_host(context: Context, names: List[str]) -> bool:
    return all(context.linker.on_search_path(name) for name in names)


# versions ---------------------------------------------------------------------------------------------------------


def _builtins(context: Context, path: str) -> List[Finding]:
    wanted = _wanted_builtins(context, path)
    if _find(context, wanted, path):
        return []
    what = "compiling kernels at run time (NVRTC)"
    finding = _finding(context, path, [wanted], what, _on_host(context, [wanted]))
    folder = posixpath.dirname(path)
    others = sorted(
        name
        for name, places in context.linker.by_soname.items()
        if name.startswith("libnvrtc-builtins.so.") and any(posixpath.dirname(place) == folder for place in places)
    )
    if not others:
        return [finding]
    return [
        _other_version(
            context, path, f"{posixpath.basename(path)} opens {wanted}, beside it lies {others[0]}", [wanted, *others]
        )
    ]


def _wanted_builtins(context: Context, path: str) -> str:
    """The name in the library's own strings, else by its package's version (12.8.93 -> 12.8), else by what is there."""
    try:
        found = context.store.cached(path, "nvrtc-builtins", lambda elf: (elf.find(_BUILTINS) or b"").decode("ascii"))
    except (ElfError, OSError):
        found = ""
    if found:
        return found
    dist = context.environment.owner(path)
    match = re.match(r"(\d+\.\d+)", dist.version) if dist and "nvrtc" in dist.name else None
    if match:
        return f"libnvrtc-builtins.so.{match.group(1)}"
    major = posixpath.basename(path).partition(".so.")[2].split(".")[0]
    names = sorted(name for name in context.linker.by_soname if name.startswith(f"libnvrtc-builtins.so.{major}."))
    return names[0] if names else f"libnvrtc-builtins.so.{major}"


def _cudnn_versions(context: Context, path: str) -> List[Finding]:
    """cuDNN's libraries carry their version as data (``cudnn_ops_infer_version``: 0x00090A02 is 9.10.2)."""
    folder = posixpath.dirname(path)
    versions: Dict[str, List[str]] = {}
    for part, symbol in (("graph", "graph"), ("ops", "ops_infer"), ("adv", "adv_infer")):
        other = f"{folder}/libcudnn_{part}.so.{path.rpartition('.')[2]}"
        if not context.inside(other):
            continue
        try:
            with ElfFile(context.store.real(other)) as elf:
                data = elf.constant(f"cudnn_{symbol}_version".encode(), 4)
        except (ElfError, OSError):
            continue
        if data:
            versions.setdefault(f"{data[2]}.{data[1]}.{data[0]}", []).append(posixpath.basename(other))
    if len(versions) < 2:
        return []
    said = "; ".join(f"{', '.join(names)} is {version}" for version, names in sorted(versions.items()))
    return [_other_version(context, path, f"cuDNN's libraries are of different versions: {said}", sorted(versions))]


def _other_version(context: Context, path: str, message: str, symbols: List[str]) -> Finding:
    environment = context.environment
    package = environment.package(path)
    return Finding(
        id="companion-version",
        severity="error",
        title=f"{posixpath.basename(path)} and its companions are of different versions",
        message=message,
        when="first-kernel",
        cause=f"companion:{package}",
        why="the library checks its parts when it opens them and refuses others (cuDNN: SUBLIBRARY_VERSION_MISMATCH)",
        fix=f"pip install --force-reinstall --no-deps {package.split()[0]}",
        files=[environment.short(path)],
        symbols=symbols,
        packages=[package],
    )


def _triton(context: Context) -> List[Finding]:
    environment = context.environment
    findings = []
    for site in environment.site:
        if environment.tree.find(f"{site}/triton/backends/nvidia/__init__.py") is None:
            continue
        library = f"{site}/triton/_C/libtriton.so"
        gone = [name for name in _TRITON if environment.tree.find(f"{site}/triton/{name}") is None]
        if gone and context.inside(library):
            findings.append(_finding(context, library, gone, "compiling the first Triton kernel", False))
    return findings
