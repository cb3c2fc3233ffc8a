"""A model of the dynamic linker: which file each DT_NEEDED name becomes, and what symbols are in sight.

Order as in ld.so(8): a library that is loaded already is taken by its SONAME; else DT_RPATH of the object and of its
loaders (unless the object has DT_RUNPATH), LD_LIBRARY_PATH, DT_RUNPATH, ldconfig's cache, the default folders. What
``import torch`` loads counts as loaded for every object that needs one of torch's libraries: kernel wheels carry no
RPATH and live on that.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Callable, Dict, FrozenSet, List, Optional, Set, Tuple, TypeVar

from ddtree_deploy.abi.cache import Cache
from ddtree_deploy.abi.elf import ElfError, ElfFile, ElfInfo, Section
from ddtree_deploy.abi.environment import Environment
from ddtree_deploy.abi.host import HostLimits
from ddtree_deploy.abi.tree import Entry, entry_of

T = TypeVar("T")

TORCH_LIBRARIES = (
    "libc10.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_python.so",
    "libc10_cuda.so",
)

_PRELOAD = re.compile(r"\(\s*[\"'](\w+)[\"'],\s*[\"'](lib\w+\.so[^\"']*)[\"']")


@dataclass(frozen=True)
class Missing:
    """``name`` wanted by ``by`` was found nowhere; ``chain`` leads from the object that was loaded to ``by``."""

    name: str
    by: str
    chain: Tuple[str, ...]


@dataclass
class Closure:
    """Everything that loading ``root`` brings in: logical paths in load order, the root first."""

    root: str
    paths: List[str] = field(default_factory=list)
    missing: List[Missing] = field(default_factory=list)
    how: Dict[str, str] = field(
        default_factory=dict
    )  # path -> loaded | rpath | ld-library-path | runpath | host | assumed
    names: Dict[str, str] = field(default_factory=dict)  # wanted name -> path


class ElfStore:
    """Reads every shared object once. ``problem`` is set where a file cannot be read."""

    def __init__(self, environment: Environment, cache: Cache) -> None:
        self._environment = environment
        self._cache = cache
        self._info: Dict[str, ElfInfo] = {}
        self._defined: Dict[str, FrozenSet[bytes]] = {}
        self._undefined: Dict[str, List[bytes]] = {}
        self.problems: Dict[str, ElfError] = {}

    def entry(self, path: str) -> Optional[Entry]:
        return self._environment.tree.find(path)

    def real(self, path: str) -> str:
        entry = self.entry(path)
        return entry.real if entry else path

    def info(self, path: str) -> Optional[ElfInfo]:
        if path not in self._info and path not in self.problems:
            try:
                found = self.cached(path, "elf", lambda elf: asdict(elf.info()))
                sections = [Section(**section) for section in found["fatbins"]]
                self._info[path] = ElfInfo(**{**found, "fatbins": sections})
            except ElfError as error:
                self.problems[path] = error
            except OSError as error:
                self.problems[path] = ElfError("unreadable", error.strerror or str(error))
        return self._info.get(path)

    def cached(self, path: str, kind: str, read: Callable[[ElfFile], T], scope: str = "") -> T:
        """A JSON value read from the file, or remembered from a former audit; raises ElfError and OSError."""

        def fresh() -> T:
            with ElfFile(self.real(path)) as elf:
                return read(elf)

        return self._cache.get(self.entry(path), kind, fresh, scope)

    def identity(self, path: str) -> str:
        """Changes when the file does; also for files of the host."""
        try:
            entry = self.entry(path) or entry_of(path)
        except OSError:
            return path
        return f"{entry.device}:{entry.inode}:{entry.size}:{entry.mtime_ns}"

    def undefined(self, path: str) -> List[bytes]:
        if path not in self._undefined:
            try:
                with ElfFile(self.real(path)) as elf:
                    self._undefined[path] = elf.undefined()
            except (ElfError, OSError):
                self._undefined[path] = []
        return self._undefined[path]

    def defined(self, path: str) -> FrozenSet[bytes]:
        if path not in self._defined:
            try:
                with ElfFile(self.real(path)) as elf:
                    self._defined[path] = elf.defined()
            except (ElfError, OSError):
                self._defined[path] = frozenset()
        return self._defined[path]


class Linker:
    """Resolves library names for one environment on one host."""

    def __init__(self, environment: Environment, host: HostLimits, store: ElfStore) -> None:
        self._environment = environment
        self._host = host
        self._store = store
        self._exists: Dict[str, bool] = {}
        self._closures: Dict[str, Closure] = {}
        self._torch: Dict[str, str] = {}
        self._uses_torch: Dict[str, bool] = {}
        self.by_soname: Dict[str, List[str]] = {}
        for path in sorted(environment.tree.files):
            name = posixpath.basename(path)
            if ".so" in name:
                self.by_soname.setdefault(name, []).append(path)
        interpreter = environment.interpreter
        self._executable_rpath = self._search_path(interpreter, "rpath") if interpreter else []
        self.interpreter_libraries: Dict[str, str] = {}
        self.interpreter_libraries = self._interpreter_libraries()
        self.torch_closures: List[Closure] = []
        self._torch = self._torch_preloads()

    def closure(self, root: str) -> Closure:
        """What loading ``root`` brings in, breadth first."""
        known = self._closures.get(root)
        if known is None:
            known = self._closures[root] = self._walk(root, self._torch_for(root))
        return known

    def torch_loaded(self) -> Dict[str, str]:
        """Library name -> path of everything that ``import torch`` loads; empty without torch."""
        return self._torch

    def uses_torch(self, path: str) -> bool:
        """Whether the object, or a library of this environment that it needs, needs one of torch's libraries."""
        if path not in self._uses_torch:
            self._uses_torch[path] = False  # ends cycles
            info = self._store.info(path)
            needed = info.needed if info else []
            self._uses_torch[path] = any(name in TORCH_LIBRARIES for name in needed) or any(
                self.uses_torch(other) for name in needed for other in self.by_soname.get(name, [])[:1]
            )
        return self._uses_torch[path]

    def global_symbols(self) -> List[FrozenSet[bytes]]:
        """Symbols every object sees: of the interpreter and of the libraries it is linked to."""
        interpreter = self._environment.interpreter
        paths = ([interpreter] if interpreter else []) + list(self.interpreter_libraries.values())
        return [self._store.defined(path) for path in paths]

    # ----------------------------------------------------------------------------------------------------------

    def _interpreter_libraries(self) -> Dict[str, str]:
        interpreter = self._environment.interpreter
        if interpreter is None:
            return {}
        return self._walk(interpreter, {}).names

    def _torch_preloads(self) -> Dict[str, str]:
        site = self._environment.torch_site
        if site is None:
            return {}
        library = f"{site}/torch/lib/"
        modules = sorted(path for path in self._environment.tree.files if path.startswith(f"{site}/torch/_C."))
        stages = [
            [library + "libtorch_global_deps.so"],
            self._torch_init_preloads(site),
            modules + [library + name for name in TORCH_LIBRARIES],
        ]
        loaded: Dict[str, str] = {}
        for roots in stages:
            for path in (root for root in roots if self._store.entry(root)):
                closure = self._walk(path, loaded)
                self.torch_closures.append(closure)
                loaded.update({name: found for name, found in closure.names.items() if name not in loaded})
                for other in closure.paths:
                    info = self._store.info(other)
                    loaded.setdefault((info.soname if info else None) or posixpath.basename(other), other)
        return loaded

    def _torch_init_preloads(self, site: str) -> List[str]:
        """Libraries that torch/__init__.py loads by name from the nvidia packages (``_preload_cuda_deps``)."""
        found = []
        for folder, pattern in _PRELOAD.findall(self._environment.text(f"{site}/torch/__init__.py") or ""):
            places = [f"{site}/nvidia/{folder}/lib/"] + [f"{site}/nvidia/{name}/lib/" for name in ("cu13", "cu12")]
            stem = pattern.split(".so")[0] + ".so."
            names = sorted(name for name in self.by_soname if name.startswith(stem))
            found += [place + name for name in names for place in places if self._store.entry(place + name)][:1]
        return found

    def _torch_for(self, root: str) -> Dict[str, str]:
        """What counts as loaded already when ``root`` is: torch's libraries for those who need one of them."""
        return self._torch if self.uses_torch(root) and not self._is_torch(root) else {}

    def _walk(self, root: str, before: Dict[str, str]) -> Closure:
        closure = Closure(root)
        loaded = {**self.interpreter_libraries, **before}
        queue: List[Tuple[str, Tuple[str, ...]]] = [(root, (root,))]
        seen: Set[str] = set()
        wanted: Set[str] = set()
        while queue:
            path, chain = queue.pop(0)
            if path in seen:
                continue
            seen.add(path)
            closure.paths.append(path)
            info = self._store.info(path)
            if info is None:
                continue
            if info.soname:
                loaded.setdefault(info.soname, path)
            for name in info.needed:
                if name in closure.names or name in wanted:
                    continue
                found, how = self._find(name, path, chain, loaded)
                if found is None:
                    wanted.add(name)
                    closure.missing.append(Missing(name, path, chain))
                    continue
                closure.names[name] = found
                closure.how.setdefault(found, how)
                loaded.setdefault(name, found)
                queue.append((found, (*chain, found)))
        return closure

    def _is_torch(self, path: str) -> bool:
        site = self._environment.torch_site
        return site is not None and path.startswith(f"{site}/torch/")

    def _find(self, name: str, path: str, chain: Tuple[str, ...], loaded: Dict[str, str]) -> Tuple[Optional[str], str]:
        if "/" in name:
            return (name, "path") if self._usable(name) else (None, "")
        if name in loaded:
            return loaded[name], "loaded"
        info = self._store.info(path)
        runpath = self._search_path(path, "runpath") if info and info.runpath else []
        if not (info and info.runpath):
            for loader in reversed(chain):
                found = self._in(name, self._search_path(loader, "rpath"))
                if found:
                    return found, "rpath"
            found = self._in(name, self._executable_rpath)
            if found:
                return found, "rpath"
        for folders, how in ((self._host.ld_library_path, "ld-library-path"), (runpath, "runpath")):
            found = self._in(name, folders)
            if found:
                return found, how
        found = self._host.provides(name)
        if found:
            return found, "host"
        if name in self._torch:
            return self._torch[name], "assumed"
        return None, ""

    def on_search_path(self, name: str) -> Optional[str]:
        """Where a bare dlopen by name finds a library: LD_LIBRARY_PATH, ldconfig's cache, the default folders."""
        return self._in(name, self._host.ld_library_path) or self._host.provides(name)

    def by_runpath(self, name: str, path: str) -> Optional[str]:
        """What DT_RUNPATH of the object itself would give, were there no LD_LIBRARY_PATH."""
        return self._in(name, self._search_path(path, "runpath"))

    def _search_path(self, path: str, kind: str) -> List[str]:
        info = self._store.info(path)
        if info is None or (kind == "rpath" and info.runpath):
            return []
        origin = posixpath.dirname(path)
        return [expand(part, origin, self._host.machine) for part in getattr(info, kind)]

    def _in(self, name: str, folders: List[str]) -> Optional[str]:
        for folder in folders:
            candidate = f"{folder}/{name}"
            if self._usable(candidate):
                return candidate
        return None

    def _usable(self, path: str) -> bool:
        """Whether the linker would take this file: it exists and is for this machine (others are passed over)."""
        if path not in self._exists:
            exists = self._store.entry(path) is not None
            if not exists and not self._environment.tree.covers(path):
                exists = Path(path).exists()
            if exists:
                info = self._store.info(path)
                problem = self._store.problems.get(path)
                exists = not (problem and problem.kind == "other-class")
                exists = exists and (info is None or info.machine == self._host.machine)
            self._exists[path] = exists
        return self._exists[path]


def expand(part: str, origin: str, machine: str) -> str:
    """A search path element with its dynamic string tokens replaced and normalized (ld.so(8))."""
    library = f"lib/{machine}-linux-gnu"
    for token, value in (("ORIGIN", origin), ("LIB", library), ("PLATFORM", machine)):
        part = part.replace("${" + token + "}", value).replace("$" + token, value)
    return posixpath.normpath(part)
