"""What every rule is given: the environment, the host, the linker, and who loads what."""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Optional, Set

from ddtree_deploy.abi.cache import Cache
from ddtree_deploy.abi.elf import SHARED_OBJECT_NAME
from ddtree_deploy.abi.environment import Environment
from ddtree_deploy.abi.host import HostLimits
from ddtree_deploy.abi.linker import Closure, ElfStore, Linker
from ddtree_deploy.abi.usage import Usage


@dataclass
class Context:
    """``objects`` are the readable shared objects of the environment; ``roots`` those that no other one pulls in."""

    environment: Environment
    host: HostLimits
    store: ElfStore
    linker: Linker
    usage: Usage
    cache: Cache
    candidates: List[str] = field(default_factory=list)  # every file named like a shared object
    objects: List[str] = field(default_factory=list)
    roots: List[str] = field(default_factory=list)
    loaders: Dict[str, List[str]] = field(default_factory=dict)  # object -> roots that pull it in
    _left: Dict[str, FrozenSet[bytes]] = field(default_factory=dict)
    _globals: Optional[List[FrozenSet[bytes]]] = None

    def closure(self, path: str) -> Closure:
        return self.linker.closure(path)

    def own_unresolved(self, path: str) -> FrozenSet[bytes]:
        """Strong undefined symbols of ``path`` that neither its own closure nor the interpreter defines."""
        if path not in self._left:
            paths = self.closure(path).paths
            scope = hashlib.sha1("\n".join([*map(self.store.identity, paths), self._interpreter()]).encode())
            names = self.store.cached(
                path,
                "unresolved",
                lambda elf: sorted(name.decode("latin-1") for name in self._minus(set(elf.undefined()), paths)),
                scope.hexdigest(),
            )
            self._left[path] = frozenset(name.encode("latin-1") for name in names)
        return self._left[path]

    def _interpreter(self) -> str:
        """Identity of what every object sees."""
        paths = [self.environment.interpreter or "", *self.linker.interpreter_libraries.values()]
        return " ".join(map(self.store.identity, sorted(paths)))

    def unresolved(self, path: str, root: str) -> FrozenSet[bytes]:
        """Of these, those that are still undefined when ``root`` is what gets loaded."""
        left = set(self.own_unresolved(path))
        return frozenset(self._minus(left, self.closure(root).paths) if left and path != root else left)

    def _minus(self, left: Set[bytes], paths: List[str]) -> Set[bytes]:
        for path in paths:
            if not left:
                return left
            left -= self.store.defined(path)
        if self._globals is None:
            self._globals = self.linker.global_symbols()
        for names in self._globals:
            left -= names
        return left

    def inside(self, path: str) -> bool:
        """Whether ``path`` is a file of the environment and not of the host."""
        return self.store.entry(path) is not None


def build_context(environment: Environment, host: HostLimits, cache: Cache) -> Context:
    """Reads every shared object and works out which of them are loaded by others."""
    store = ElfStore(environment, cache)
    linker = Linker(environment, host, store)
    context = Context(environment, host, store, linker, Usage(environment, cache), cache)
    name_of = posixpath.basename
    context.candidates = sorted(path for path in environment.tree.files if SHARED_OBJECT_NAME.search(name_of(path)))
    context.objects = [path for path in context.candidates if store.info(path) is not None]
    pulled: Dict[str, List[str]] = {}
    for path in context.objects:
        for other in linker.closure(path).paths[1:]:
            pulled.setdefault(other, []).append(path)
    context.roots = [path for path in context.objects if path not in pulled]
    covered = {other for root in context.roots for other in linker.closure(root).paths}
    for path in context.objects:  # libraries that need each other: any one of them stands for the ring
        if path not in covered:
            context.roots.append(path)
            covered.update(linker.closure(path).paths)
    known = set(context.roots)
    context.loaders = {path: [root for root in by if root in known] for path, by in pulled.items()}
    return context
