"""Two copies of one library: the linker takes the first that was loaded for both users, whichever file they meant."""

from __future__ import annotations

from typing import Dict, List, Set, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.model import Finding


def check(context: Context) -> List[Finding]:
    """A finding where a copy lacks what users of the other one need: then the order of imports decides."""
    users: Dict[str, Dict[str, Set[str]]] = {}  # name -> copy -> objects that get it
    for root in context.roots:
        closure = context.closure(root)
        for path in closure.paths:
            info = context.store.info(path)
            for name in info.needed if info else []:
                copy = closure.names.get(name)
                if copy is not None and context.inside(path):
                    users.setdefault(name, {}).setdefault(copy, set()).add(path)
    findings = []
    for name, copies in sorted(users.items()):
        if len(copies) < 2:
            continue
        for copy in sorted(copies):
            for other in sorted(copies):
                if copy != other and context.store.real(copy) != context.store.real(other):
                    findings += _lacking(context, name, copy, other, copies[copy])
    return findings


def _lacking(context: Context, name: str, copy: str, other: str, users: Set[str]) -> List[Finding]:
    """Users of ``copy`` that could not live with ``other``."""
    ours, theirs = context.store.defined(copy), context.store.defined(other)
    info = context.store.info(other)
    versions = set(info.verdef) if info else set()
    broken: List[Tuple[str, List[str]]] = []
    for user in sorted(users):
        need = context.store.info(user)
        wanted = [v for v in (need.verneed.get(name, []) if need else []) if versions and v not in versions]
        symbols = {symbol for symbol in context.store.undefined(user) if symbol in ours and symbol not in theirs}
        if wanted or symbols:
            broken.append((user, wanted or sorted(symbol.decode("utf-8", "replace") for symbol in symbols)))
    if not broken:
        return []
    environment = context.environment
    user, lacks = broken[0]
    return [
        Finding(
            id="two-copies",
            severity="warning",
            title=f"two different copies of {name}",
            message=f"{environment.short(user)} means {environment.short(copy)}; it misses {lacks[0]} if "
            f"{environment.short(other)} is loaded first",
            when="import",
            cause=f"copies:{name}",
            why="the linker knows a library by its SONAME: the order of imports decides which copy everybody gets",
            fix=f"bring both to one version: {environment.package(copy)}, {environment.package(other)}",
            files=[environment.short(path) for path in (copy, other)],
            symbols=lacks[:10],
            packages=sorted({environment.package(path) for path in (user, copy, other) if context.inside(path)}),
        )
    ]
