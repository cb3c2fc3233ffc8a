"""Loader modules that open CUDA libraries of another major than torch's by a fixed name."""

from __future__ import annotations

from pathlib import Path
from typing import List, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.cuda import soname_cuda_major, tag_major
from ddtree_deploy.abi.loaders import LOADER_FILE, Literal, literals
from ddtree_deploy.abi.metadata import Distribution
from ddtree_deploy.abi.model import Finding

_LARGEST = 400_000  # bytes; a larger source is generated code


def check(context: Context) -> List[Finding]:
    ours = tag_major(context.environment.abi_tag)
    if ours is None:
        return []
    findings = []
    for dist in context.environment.distributions:
        if dist.name == "torch" or not _touches_cuda(dist):
            continue
        for path in context.usage.sources(dist):
            entry = context.store.entry(path)
            if entry is None or entry.size > _LARGEST or not LOADER_FILE.search(path):
                continue
            found = _literals(context, path)
            wrong = [item for item in found if soname_cuda_major(item.name) not in (None, ours)]
            right = {item.name.split(".so")[0] for item in found if soname_cuda_major(item.name) == ours}
            wrong = [item for item in wrong if item.name.split(".so")[0] not in right]
            if wrong:
                findings.append(_finding(context, dist, path, wrong))
    return findings


def _literals(context: Context, path: str) -> List[Literal]:
    def read() -> List[Tuple[str, int, bool, bool]]:
        text = context.environment.text(path) or ""
        found = literals(text) if ".so." in text else []
        return [(item.name, item.line, item.certain, item.checked) for item in found]

    return [Literal(*row) for row in context.cache.get(context.store.entry(path), "library-names", read)]


def _touches_cuda(dist: Distribution) -> bool:
    """Packages that bring native code or ask for torch or NVIDIA's packages; others have no reason to load CUDA."""
    words = ("torch", "nvidia", "cuda", "triton")
    return any(text.startswith(words) for text in dist.requires) or any(".so" in path for path in dist.record or {})


def _on_host(context: Context, name: str) -> bool:
    """Whether a loader that looks for the file would find one, also in a CUDA toolkit."""
    places = [f"/usr/local/cuda/{folder}/{name}" for folder in ("lib64", "targets/x86_64-linux/lib")]
    return bool(context.linker.on_search_path(name)) or any(Path(place).exists() for place in places)


def _finding(context: Context, dist: Distribution, path: str, wrong: List[Literal]) -> Finding:
    environment = context.environment
    certain = [item for item in wrong if item.certain and not context.linker.on_search_path(item.name)]
    first = (certain or wrong)[0]
    here = f"{environment.short(path)}:{first.line}"
    harmless = all(item.checked for item in wrong) and not any(_on_host(context, item.name) for item in wrong)
    level = "note" if harmless else "warning"
    if certain:
        level = "error" if context.usage.needed(dist) else "warning"
    return Finding(
        id="loader-names-other-cuda",
        severity=level,
        title=f"{dist.label} opens {first.name} by name, torch is {environment.abi_tag}",
        message=f"{here} names {first.name}; torch {environment.torch_version} brings CUDA {environment.torch_cuda}",
        when="import" if certain else "under-load",
        cause=f"binary:{dist.label}",
        why="the name is fixed in Python code: the library is not found, or a second runtime is loaded",
        fix=f"install a {dist.name} that knows CUDA {environment.torch_cuda}",
        files=[environment.short(path)],
        symbols=sorted({item.name for item in wrong}),
        packages=[dist.label],
    )
