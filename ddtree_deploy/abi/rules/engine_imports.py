"""Modules that the engine imports for certain when it starts, and that nobody brings."""

from __future__ import annotations

import re
from collections import deque
from pathlib import Path
from typing import Deque, Dict, List, Optional, Set, Tuple

from ddtree_deploy.abi import stdlib_names
from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.model import Finding

# Modules that run when a server starts, also those that are only imported in functions of each other.
_ENTRY = {
    "sglang": (
        "sglang",
        "sglang.launch_server",
        "sglang.srt.server_args",
        "sglang.srt.entrypoints.http_server",
        "sglang.srt.entrypoints.engine",
        "sglang.srt.managers.scheduler",
        "sglang.srt.managers.tokenizer_manager",
        "sglang.srt.managers.detokenizer_manager",
        "sglang.srt.model_executor.model_runner",
    ),
    "vllm": ("vllm", "vllm.entrypoints.openai.api_server", "vllm.engine.arg_utils", "vllm.v1.engine.core"),
}
_EXTENSION_SUFFIX = re.compile(r"\.(cpython-[\w-]+\.so|abi3\.so|so|py)$")


def check(context: Context) -> List[Finding]:
    engine = context.usage.engine
    if engine is None or not context.usage.sources(engine):
        return []
    modules = {context.usage.module_name(path): path for path in context.usage.sources(engine)}
    present = _importable(context)
    absent: Dict[str, Tuple[str, int]] = {}
    for path in _reached(context, engine.name, modules):
        if all(item.module.split(".")[0] in present for item in context.usage.quick(path)):
            continue
        for item in context.usage.imports(path):
            top = item.module.split(".")[0]
            if item.always and top not in present and not top.startswith("_"):
                absent.setdefault(top, (path, item.line))
    return [_finding(context, name, *place) for name, place in sorted(absent.items())]


def _reached(context: Context, engine: str, modules: Dict[str, str]) -> List[str]:
    """Files of the engine that run for certain at its start, breadth first from the entry modules."""
    entry = [name for name in _ENTRY.get(engine, ()) if name in modules] or [m for m in modules if "." not in m]
    queue: Deque[str] = deque(name for module in entry for name in _with_parents(module) if name in modules)
    seen: Set[str] = set()
    reached = []
    while queue:
        name = queue.popleft()
        if name in seen:
            continue
        seen.add(name)
        reached.append(modules[name])
        for item in context.usage.quick(modules[name]):
            wanted = _with_parents(item.module) + [f"{item.module}.{part}" for part in item.names]
            queue += [module for module in wanted if module in modules and module not in seen]
    return reached


def _with_parents(module: str) -> List[str]:
    parts = module.split(".")
    return [".".join(parts[: end + 1]) for end in range(len(parts))]


def _importable(context: Context) -> Set[str]:
    """Top-level names that can be imported: of every import root and of the standard library."""
    environment = context.environment
    names: Set[str] = _standard_library(environment.stdlib)
    for path in environment.tree.files:
        root = next((root for root in environment.import_roots if path.startswith(root + "/")), None)
        if root is None:
            continue
        head, slash, _ = path[len(root) + 1 :].partition("/")
        if slash:
            names.add(head)
        elif _EXTENSION_SUFFIX.search(head):
            names.add(head.split(".")[0])
    for root in environment.import_roots[len(environment.site) :]:
        names |= _names_in(root)
    editable = [dist.name.replace("-", "_") for dist in environment.distributions if dist.editable]
    return names.union(editable)


def _names_in(folder: str) -> Set[str]:
    try:
        return {entry.name.split(".")[0] for entry in Path(folder).iterdir()}
    except OSError:
        return set()


def _standard_library(folder: Optional[str]) -> Set[str]:
    return set(stdlib_names.NAMES) | _names_in(folder or "") | _names_in(f"{folder}/lib-dynload")


def _finding(context: Context, name: str, path: str, line: int) -> Finding:
    environment = context.environment
    engine = context.usage.engine
    label = engine.label if engine else "the engine"
    package, version = _declared(engine.requires if engine else [], name)
    return Finding(
        id="module-missing",
        severity="error",
        title=f"module {name} is missing",
        message=f"{environment.short(path)}:{line} imports {name} when {label} starts; no installed package brings it",
        when="import",
        cause=f"requirement:{package.lower()}",
        why=f"the start ends with ModuleNotFoundError: No module named '{name}'",
        fix=f"pip install '{package}{version}'",
        files=[environment.short(path)],
        packages=[label],
    )


def _declared(requires: List[str], module: str) -> Tuple[str, str]:
    """(name, specifier) of the engine's own requirement that looks like the module, else the module's name."""
    plain = module.replace("_", "-").lower()
    for text in requires:
        match = re.match(r"([A-Za-z0-9._-]+)\s*([<>=!~][^;]*)?", text)
        if match and match.group(1).replace("_", "-").lower() == plain:
            return match.group(1), (match.group(2) or "").strip()
    return plain, ""
