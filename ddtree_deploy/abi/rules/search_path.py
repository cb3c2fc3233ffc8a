"""LD_LIBRARY_PATH of the service against DT_RUNPATH: the environment variable wins, and brings foreign libraries in."""

from __future__ import annotations

import posixpath
from typing import Dict, List, Set, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules.records import file_hash
from ddtree_deploy.abi.tree import entry_of


def check(context: Context) -> List[Finding]:
    if not context.host.ld_library_path:
        return []
    replaced: Dict[str, Set[Tuple[str, str, str]]] = {}  # folder -> (name, ours, wanted by)
    closures = [context.closure(root) for root in context.roots] + context.linker.torch_closures
    for closure in closures:
        for name, path in closure.names.items():
            if closure.how.get(path) != "ld-library-path":
                continue
            for user in closure.paths:
                info = context.store.info(user)
                if info is None or name not in info.needed:
                    continue
                ours = context.linker.by_runpath(name, user)
                if ours is not None and ours != path and context.inside(ours) and not _same(context, ours, path):
                    replaced.setdefault(posixpath.dirname(path), set()).add((name, ours, user))
    return [_finding(context, folder, sorted(libraries)) for folder, libraries in sorted(replaced.items())]


def _same(context: Context, first: str, second: str) -> bool:
    """Whether both names hold the same bytes: then it does not matter which one is taken."""
    try:
        one, two = entry_of(context.store.real(first)), entry_of(context.store.real(second))
    except OSError:
        return False
    if (one.device, one.inode) == (two.device, two.inode):
        return True
    return one.size == two.size and file_hash(one.real) == file_hash(two.real)


def _finding(context: Context, folder: str, libraries: List[Tuple[str, str, str]]) -> Finding:
    environment = context.environment
    names = sorted({name for name, _, _ in libraries})
    name, ours, user = libraries[0]
    return Finding(
        id="library-path-override",
        severity="warning",
        title=f"LD_LIBRARY_PATH replaces {names[0]}" + (f" and {len(names) - 1} more" if len(names) > 1 else ""),
        message=f"{environment.short(user)} would take {environment.short(ours)} by its RUNPATH; "
        f"LD_LIBRARY_PATH makes it {folder}/{name}",
        when="under-load",
        cause=f"search-path:{folder}",
        why="LD_LIBRARY_PATH is searched before DT_RUNPATH: libraries of two CUDA releases are mixed in one process",
        fix=f"remove {folder} from LD_LIBRARY_PATH of the service",
        files=[environment.short(user)],
        symbols=names,
        packages=sorted({environment.package(path) for _, path, _ in libraries}),
    )
