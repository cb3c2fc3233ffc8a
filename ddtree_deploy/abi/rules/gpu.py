"""Driver, GPU architectures and CUDA runtimes: what fails at the first CUDA call or the first kernel."""

from __future__ import annotations

import re
from typing import Dict, List, Optional, Set, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.cuda import DRIVER_LIBRARIES, Arch, fatbin_architectures, parse_arch, tag_for_cuda, tag_major
from ddtree_deploy.abi.elf import ElfError, ElfFile
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import builds, severity
from ddtree_deploy.versions import version_key

_RUNTIME = re.compile(r"^libcudart\.so\.(\d+)")
_STUB = 64 * 1024  # NVIDIA's libraries with less GPU code than this make theirs at run time (cuFFT)


def check(context: Context) -> List[Finding]:
    return _driver(context) + _runtimes(context) + _architectures(context) + _toolkit(context)


# driver -----------------------------------------------------------------------------------------------------------


def _driver(context: Context) -> List[Finding]:
    environment, host = context.environment, context.host
    wanting = [root for root in context.roots if any(m.name in DRIVER_LIBRARIES for m in context.closure(root).missing)]
    runtime = environment.torch_cuda
    if host.driver is None and host.driver_cuda is None:
        if not wanting and not runtime:
            return []
        return [
            Finding(
                id="driver-missing",
                severity="note",
                title="no NVIDIA driver on this host",
                message=f"{len(wanting)} files need libcuda.so.1, which comes with the driver",
                when="first-kernel",
                cause="driver",
                why="expected on a host without a GPU; packages that link the driver cannot be imported there",
                fix="on a GPU host: install the NVIDIA driver; on a CPU host: use a CPU profile",
                files=[environment.short(path) for path in wanting[:20]],
            )
        ]
    if wanting and host.driver and not context.linker.on_search_path("libcuda.so.1"):
        return [
            Finding(
                id="driver-library-missing",
                severity="warning",
                title="the driver's library libcuda.so.1 is not to be found",
                message=f"driver {host.driver} runs, but libcuda.so.1 of {len(wanting)} files is on no search path",
                when="import",
                cause="driver",
                why="a container that was given the GPU without the driver's compute libraries",
                fix="start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility, then run ldconfig",
                files=[environment.short(path) for path in wanting[:20]],
            )
        ]
    if not runtime or not host.driver_cuda:
        return []
    if version_key(host.driver_cuda)[:1] >= version_key(runtime)[:1]:
        return []
    compat = _compat_library(context)
    return [
        Finding(
            id="driver-too-old",
            severity="warning" if compat else "error",
            title=f"the driver is too old for CUDA {runtime}",
            message=f"driver {host.driver or ''} supports CUDA up to {host.driver_cuda}; "
            f"torch {environment.torch_version} needs a driver for CUDA {version_key(runtime)[0]}",
            when="first-kernel",
            cause="driver",
            why="a runtime of a newer major than the driver fails its first call: 'driver version is insufficient'"
            + (f" (forward compatibility by {compat} works on data-center GPUs only)" if compat else ""),
            fix=f"upgrade the NVIDIA driver, or install torch and kernels for {tag_for_cuda(host.driver_cuda)}",
            packages=[f"torch {environment.torch_version}"],
        )
    ]


def _compat_library(context: Context) -> Optional[str]:
    found = context.linker.on_search_path("libcuda.so.1")
    return found if found and "compat" in found else None


# two runtimes -----------------------------------------------------------------------------------------------------


def _runtimes(context: Context) -> List[Finding]:
    """Objects whose closure, together with what torch loads, holds more than one libcudart major."""
    environment = context.environment
    ours = {name for name in context.linker.torch_loaded() if _RUNTIME.match(name)}
    major = tag_major(environment.abi_tag)
    if major:  # also where torch's own libraries were not installed with it
        ours.add(f"libcudart.so.{major}")
    grouped: Dict[str, Tuple[Set[str], Set[str]]] = {}
    for root in context.roots:
        names = {name for name in context.closure(root).names if _RUNTIME.match(name)}
        everything = names | (ours if names and context.linker.uses_torch(root) else set())
        if len({_RUNTIME.match(name).group(1) for name in everything}) < 2:  # type: ignore[union-attr]
            continue
        files, runtimes = grouped.setdefault(environment.package(root), (set(), set()))
        files.add(root)
        runtimes |= everything
    return [
        Finding(
            id="two-cuda-runtimes",
            severity=severity.of_files(context, sorted(files)),
            title=f"{package} brings a second CUDA runtime into torch's process",
            message=f"{environment.short(sorted(files)[0])} loads {' and '.join(sorted(runtimes))}",
            when="under-load",
            cause=f"binary:{package}",
            why="streams, events and memory of one runtime are invalid handles in the other",
            fix=builds.command(context, package),
            files=[environment.short(path) for path in sorted(files)],
            symbols=sorted(runtimes),
            packages=[package],
        )
        for package, (files, runtimes) in sorted(grouped.items())
    ]


# architectures ----------------------------------------------------------------------------------------------------


def _architectures(context: Context) -> List[Finding]:
    if not context.host.capabilities:
        return []
    by_package: Dict[str, Dict[str, List[Arch]]] = {}
    for path in context.objects:
        info = context.store.info(path)
        size = sum(section.size for section in info.fatbins) if info else 0
        if size == 0 or (size < _STUB and context.environment.package(path).startswith("nvidia-")):
            continue
        try:
            names = context.store.cached(path, "architectures", _read_architectures)
        except (ElfError, OSError):
            continue
        found = [parse_arch(name) for name in names]
        if found:
            by_package.setdefault(context.environment.package(path), {})[path] = found
    findings = []
    for capability in sorted(set(context.host.capabilities)):
        for package, files in sorted(by_package.items()):
            findings += _coverage(context, package, files, capability)
    return findings


def _read_architectures(elf: ElfFile) -> List[str]:
    return [str(arch) for arch in fatbin_architectures(elf, elf.info().fatbins)]


def _coverage_severity(package: str, whole: bool, level: str) -> str:
    """NVIDIA's libraries are only noted: where they matter, torch lacks the architecture as well."""
    if not whole or package.startswith("nvidia-"):
        return "note"
    return "warning" if level == "note" else level


def _loaded_by(context: Context, paths: List[str]) -> List[str]:
    """A library is as important as what loads it."""
    return [root for path in paths for root in (path, *context.loaders.get(path, []))]


def _coverage(
    context: Context, package: str, files: Dict[str, List[Arch]], capability: Tuple[int, int]
) -> List[Finding]:
    environment = context.environment
    without = sorted(path for path, found in files.items() if not any(arch.runs_on(capability) for arch in found))
    gpu = f"{capability[0]}.{capability[1]}"
    if without:
        whole = len(without) == len(files) or any(path.endswith("/torch/lib/libtorch_cuda.so") for path in without)
        archs = sorted({arch for path in without for arch in files[path]})
        level = severity.of_files(context, _loaded_by(context, without))
        return [
            Finding(
                id="no-gpu-code",
                severity=_coverage_severity(package, whole, level),
                title=f"{package} has no code for this GPU ({gpu})"
                if whole
                else f"parts of {package} have no code for this GPU ({gpu})",
                message=f"{environment.short(without[0])} has code for {', '.join(map(str, archs))}",
                when="first-kernel",
                cause=f"gpu:{gpu}" if package.startswith(("torch ", "nvidia-")) else f"gpu:{package}:{gpu}",
                why="the first kernel of it ends with 'no kernel image is available for execution on the device'",
                fix=f"install a build of {package.split()[0]} for compute capability {gpu}, or build it from source",
                files=[environment.short(path) for path in without],
                packages=[package],
            )
        ]
    jit = sorted(path for path, found in files.items() if all(arch.ptx for arch in found if arch.runs_on(capability)))
    driver, runtime = context.host.driver_cuda, environment.torch_cuda
    if jit and driver and runtime and version_key(driver) < version_key(runtime):
        return [
            Finding(
                id="ptx-newer-than-driver",
                severity=severity.of_files(context, _loaded_by(context, jit)).replace("note", "warning"),
                title=f"{package} has only PTX for this GPU ({gpu}), newer than the driver can compile",
                message=f"{environment.short(jit[0])} was built with CUDA {runtime}, the driver takes up to {driver}",
                when="first-kernel",
                cause=f"gpu:{package}:{gpu}",
                why="the driver refuses it: 'the provided PTX was compiled with an unsupported toolchain'",
                fix="upgrade the NVIDIA driver",
                files=[environment.short(path) for path in jit],
                packages=[package],
            )
        ]
    return []


# toolkit ----------------------------------------------------------------------------------------------------------

# First CUDA toolkit whose nvcc compiles for a compute capability (CUDA release notes).
_NVCC_SINCE = {(9, 0): "11.8", (10, 0): "12.8", (12, 0): "12.8", (10, 3): "12.9", (12, 1): "12.9", (11, 0): "13.0"}
_JIT_PACKAGES = ("flashinfer-python", "sglang", "deep-gemm", "tilelang", "flashinfer")


def _toolkit(context: Context) -> List[Finding]:
    """nvcc on the host only matters to packages that compile kernels at run time."""
    environment, host = context.environment, context.host
    users = [dist for dist in environment.distributions if dist.name in _JIT_PACKAGES]
    if not users or not host.toolkits or not host.capabilities:
        return []
    nvcc = host.toolkits[0]
    newest = max(host.capabilities)
    able = _NVCC_SINCE.get(newest)
    sglang = next((dist for dist in users if dist.name == "sglang"), None)
    since = "12.9" if newest[0] == 12 else able  # flashinfer asks for 12.9 on every SM 12.x
    if since is None or version_key(nvcc) >= version_key(since):
        return []
    covered = tag_major(environment.abi_tag) is not None and version_key(environment.torch_cuda or "0") >= version_key(
        since
    )
    if sglang and able and version_key(nvcc) < version_key(able):  # it compiles kernels whatever is prebuilt
        users, since, covered = [sglang], able, False
    gpu = f"{newest[0]}.{newest[1]}"
    return [
        Finding(
            id="toolkit-too-old",
            severity="note" if covered else "warning",
            title=f"nvcc {nvcc} is older than the {since} that compute capability {gpu} asks for",
            message=f"the first nvcc found is {nvcc}; {users[0].label} compiles kernels at run time for {gpu}",
            when="first-kernel",
            cause="toolkit",
            why=f"the notice 'SM {newest[0]}.x requires CUDA >= {since}' is harmless by itself, as the runtime is CUDA "
            f"{environment.torch_cuda}; only kernels that have to be compiled here would fail"
            if covered
            else "kernels compiled at run time end with 'unsupported gpu architecture'",
            fix=f"set CUDA_HOME to a CUDA {since} or newer, or install prebuilt kernels (flashinfer-cubin)",
            packages=[users[0].label],
        )
    ]
