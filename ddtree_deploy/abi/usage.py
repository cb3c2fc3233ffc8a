"""How a native file is used by Python code: at import, only later, or not at all. Decides error against warning."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import Dict, List, Set, Tuple

from ddtree_deploy.abi.cache import Cache
from ddtree_deploy.abi.environment import Environment
from ddtree_deploy.abi.metadata import Distribution
from ddtree_deploy.abi.python_source import (
    Import,
    calls_at_import,
    candidates,
    parse_imports,
    quick_imports,
    string_uses,
)

ENGINES = ("sglang", "vllm")
# Loaded behind a guard that only writes a log line, but nothing runs without them.
_CORE = ("common_ops", "_moe_C")
_TESTS = re.compile(r"/tests?/|/testing/|/test_[^/]*$|/conftest\.py$")
_EXTENSION = re.compile(r"\.(cpython-\d+[a-z]*(-[\w-]+)?|abi3)\.so$")


class Usage:
    """Answers from the Python sources of the distributions that own or require a file; parses as little as it can."""

    def __init__(self, environment: Environment, cache: Cache) -> None:
        self._environment = environment
        self._cache = cache
        self._imports: Dict[str, List[Import]] = {}
        self._quick: Dict[str, List[Import]] = {}
        self._sources: Dict[str, List[str]] = {}
        self._calls: Dict[str, Set[str]] = {}
        self._runs_with: Dict[str, Set[str]] = {}  # first source of a package -> sources that its import runs
        self._levels: Dict[str, str] = {}
        self._needed: Dict[str, bool] = {}
        self.engine = next((dist for dist in environment.distributions if dist.name in ENGINES), None)

    def level(self, path: str) -> str:
        """``import`` (its package cannot be imported without it) | ``lazy`` (only when used) | ``plugin`` (unnamed)."""
        if path not in self._levels:
            self._levels[path] = self._level(path)
        return self._levels[path]

    def named(self, path: str) -> bool:
        """Whether an import statement names exactly this file, so that no sibling can stand in for it."""
        dist = self._environment.owner(path)
        module = self.module_name(path)
        stem = module.rpartition(".")[2]
        sources = self.sources(dist) if dist else self._neighbours(path)
        return any(stem in self._text(source) and _names(self.imports(source), module) for source in sources)

    def mentions(self, path: str, text: str) -> bool:
        """Whether the Python code of the file's distribution contains ``text``."""
        dist = self._environment.owner(path)
        sources = self.sources(dist) if dist else self._neighbours(path)
        return any(text in (self._text(source)) for source in sources)

    def imports(self, path: str) -> List[Import]:
        """Every import statement of a Python file; empty where it cannot be parsed."""
        if path not in self._imports:
            text = self._environment.text(path)
            self._imports[path] = list(parse_imports(text or "", self.module_name(path), path.endswith("/__init__.py")))
        return self._imports[path]

    def quick(self, path: str) -> List[Import]:
        """As ``imports``, of those that always run, by a fast scan: good for following them, confirm by ``imports``."""
        if path not in self._quick:
            name = self.module_name(path)  # the file of another place is another module
            entry = self._environment.tree.find(path)
            rows = self._cache.get(entry, "imports", lambda: self._scan(path, name), name)
            self._quick[path] = [Import(module, tuple(names), True, line) for module, names, line in rows]
        return self._quick[path]

    def _scan(self, path: str, name: str) -> List[Tuple[str, List[str], int]]:
        found = quick_imports(self._text(path), name, path.endswith("/__init__.py"))
        return [(item.module, list(item.names), item.line) for item in found]

    def module_name(self, path: str) -> str:
        """Dotted name of a Python file or extension module below an import root."""
        roots = [root for root in self._environment.import_roots if path.startswith(root + "/")]
        root = max(roots, key=len, default="")
        parts = path[len(root) + 1 :].split("/")
        parts[-1] = parts[-1].split(".")[0]
        if parts[-1] == "__init__":
            parts.pop()
        return ".".join(parts)

    def sources(self, dist: Distribution) -> List[str]:
        """The Python files of a distribution, by RECORD, or below its top folders where it has none."""
        if dist.folder not in self._sources:
            record = dist.record
            if dist.editable or record is None:
                start = f"{dist.site}/{dist.name.replace('-', '_')}/"
                paths = [path for path in self._environment.tree.files if path.startswith(start)]
            else:
                paths = [path for path in record if self._environment.tree.find(path)]
            below = len(dist.site)
            self._sources[dist.folder] = sorted(
                path for path in paths if path.endswith(".py") and not _TESTS.search(path[below:])
            )
        return self._sources[dist.folder]

    def needed(self, dist: Distribution) -> bool:
        """Whether the engine imports the distribution for certain, by itself or through what it requires.

        True for everything where there is no engine: then each package stands for itself.
        """
        if self.engine is None or dist.folder == self.engine.folder or dist.name == "torch":
            return True
        if dist.name not in self._needed:
            self._needed[dist.name] = False  # ends cycles
            self._needed[dist.name] = self._is_needed(dist, self.engine)
        return self._needed[dist.name]

    def _is_needed(self, dist: Distribution, engine: Distribution) -> bool:
        modules = self._top_modules(dist)
        requiring = [other for other in self._environment.distributions if self._requires(other, dist)]
        named = False
        for user in (user for user in [*requiring, engine] if user.folder != dist.folder):
            certain, mentioned = self._imports_any(user, modules)
            named = named or mentioned
            if certain and self.needed(user):
                return True
        # Required, and no source says how it is used: then it is what its package says, needed.
        return not named and any(self.needed(user) for user in requiring if user.folder != dist.folder)

    # ----------------------------------------------------------------------------------------------------------

    def _level(self, path: str) -> str:
        dist = self._environment.owner(path)
        sources = self.sources(dist) if dist else self._neighbours(path)
        level = self._by_sources(path, [source for source in sources if self._size(source)])
        if level == "import" and dist is not None and not self.needed(dist):
            return "lazy"
        return level

    def _size(self, source: str) -> int:
        entry = self._environment.tree.find(source)
        return entry.size if entry else 0

    def _by_sources(self, path: str, sources: List[str]) -> str:
        extension = _EXTENSION.search(path)
        if not sources:
            return "import" if extension else "plugin"
        module = self.module_name(path)
        stem = module.rpartition(".")[2]
        word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(stem)}(?![A-Za-z0-9_])")
        naming = [source for source in sources if word.search(self._text(source))]
        certain = [source for source in naming if _names(self.quick(source), module)]
        found = bool(certain)
        if not self._some_reached(certain, sources):  # nothing at the margin: look into if, try and functions
            certain, found = self._references(module, naming, sources)
        if found and stem in _CORE:
            return "import"
        if self._some_reached(certain, sources):
            return "import"
        if found:
            return "lazy"
        if self._picked_at_run_time(path, stem, sources):
            return "lazy" if extension else "plugin"
        return "import" if extension and self._fits_python(path) else "plugin"

    def _text(self, source: str) -> str:
        return self._environment.text(source) or ""

    def _some_reached(self, certain: List[str], sources: List[str]) -> bool:
        """Whether one of the sources runs when its package is imported, or is a module of its own for users."""
        reached = self._reached(sources) if certain else set()
        return any(source in reached for source in certain) or any(
            not self._imported_in(source, sources) for source in certain
        )

    def _fits_python(self, path: str) -> bool:
        match = re.search(r"\.cpython-(\d)(\d+)", path)
        return match is None or (int(match.group(1)), int(match.group(2))) == self._environment.python

    def _picked_at_run_time(self, path: str, stem: str, sources: List[str]) -> bool:
        """Whether the sources name a pattern that the file fits: ``libfoo_core{n}``, ``_C*.so``."""
        name = posixpath.basename(path)
        start = stem.rstrip("0123456789")
        for source in sources:
            text = self._text(source)
            if start != stem and re.search(rf"{re.escape(start)}(?![A-Za-z0-9_])", text):
                return True
            patterns = re.findall(r"['\"/]([\w.]*\*[\w.*]*)['\"]", text) if ".so" in text else []
            if any(".so" in pattern and fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                return True
        return False

    def _references(self, module: str, naming: List[str], sources: List[str]) -> Tuple[List[str], bool]:
        """(sources that load the module for certain when they run, whether any names it at all)."""
        stem = module.rpartition(".")[2]
        certain = []
        found = False
        for source in naming:
            mentions = [item for item in self.imports(source) if _names([item], module)]
            found = found or bool(mentions)
            if any(item.likely for item in mentions):
                certain.append(source)
        if found:
            return certain, True
        for source in naming:
            functions = list(string_uses(self._text(source), stem))
            found = found or bool(functions)
            if any(function is None or self._runs(function, sources) for function in functions):
                certain.append(source)
        return certain, found

    def _runs(self, function: str, sources: List[str]) -> bool:
        """Whether the top level of a source calls ``function``."""
        for source in sources:
            if function + "(" not in self._text(source):
                continue
            if source not in self._calls:
                self._calls[source] = calls_at_import(self._text(source))
            if function in self._calls[source]:
                return True
        return False

    def _reached(self, sources: List[str]) -> Set[str]:
        """Sources that importing the top packages runs."""
        key = sources[0]
        if key not in self._runs_with:
            by_module = {self.module_name(source): source for source in sources}
            queue = [source for name, source in by_module.items() if "." not in name]
            reached: Set[str] = set()
            while queue:
                source = queue.pop()
                if source not in reached:
                    reached.add(source)
                    wanted = (name for item in self.quick(source) for name in candidates(item))
                    queue += [by_module[name] for name in wanted if name in by_module]
            self._runs_with[key] = reached
        return self._runs_with[key]

    def _imported_in(self, source: str, sources: List[str]) -> bool:
        """Whether another source of the package imports this one, anywhere in its text."""
        leaf = re.escape(self.module_name(source).split(".")[-1])
        line = re.compile(rf"^\s*(?:from|import)\s[^\n]*(?<![A-Za-z0-9_]){leaf}(?![A-Za-z0-9_])", re.MULTILINE)
        return any(other != source and line.search(self._text(other)) for other in sources)

    def _neighbours(self, path: str) -> List[str]:
        """Python files of the same top folder, for files that no RECORD claims."""
        root = next((r for r in self._environment.import_roots if path.startswith(r + "/")), "")
        top = path[len(root) + 1 :].split("/")[0]
        if root + "/" + top == path:
            return []
        start = f"{root}/{top}/"
        return sorted(p for p in self._environment.tree.files if p.startswith(start) and p.endswith(".py"))

    def _top_modules(self, dist: Distribution) -> Set[str]:
        names = set()
        for path in dist.record or {}:
            if path.startswith(dist.site + "/"):
                head, slash, _ = path[len(dist.site) + 1 :].partition("/")
                if slash and not head.endswith((".dist-info", ".libs", ".data")):
                    names.add(head)
                elif head.endswith((".py", ".so")):
                    names.add(head.split(".")[0])
        return names or {dist.name.replace("-", "_")}

    def _requires(self, user: Distribution, dist: Distribution) -> bool:
        pattern = re.compile(rf"^{re.escape(dist.name).replace('-', '[-_.]')}(?![A-Za-z0-9_.-])", re.IGNORECASE)
        return any(pattern.match(text) for text in user.requires)

    def _imports_any(self, user: Distribution, modules: Set[str]) -> Tuple[bool, bool]:
        """(whether a source of ``user`` imports one of the modules whenever it runs, whether any imports it at all)."""
        names = "|".join(re.escape(module) for module in modules)
        line = re.compile(rf"^([ \t]*)(?:import|from)\s+(?:{names})(?![A-Za-z0-9_])", re.MULTILINE)
        mentioned = False
        for source in self.sources(user):
            margins = {match.group(1) for match in line.finditer(self._text(source))}
            mentioned = mentioned or bool(margins)
            if "" in margins and any(
                item.always and item.module.split(".")[0] in modules for item in self.imports(source)
            ):
                return True, True
        return False, mentioned


def _names(imports: List[Import], module: str) -> bool:
    return any(module in candidates(item) for item in imports)
