"""How a native file is used by Python code: at import, only later, or not at all. Decides error against warning."""

from __future__ import annotations

import fnmatch
import posixpath
import re
from typing import Dict, List, Optional, Set, Tuple

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
_EXTENSION = re.compile(r"\.(cpython-\d+[a-z]*(-[\w-]+)?|abi3)\.so$")


class Usage:
    """Answers from the Python sources of the distributions that own or require a file; parses as little as it can."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._imports: Dict[str, List[Import]] = {}
        self._quick: Dict[str, List[Import]] = {}
        self._sources: Dict[str, List[str]] = {}
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
        stem = posixpath.basename(path).split(".")[0]
        for source in self.sources(dist) if dist else self._neighbours(path):
            if stem in (self._environment.text(source) or "") and any(
                item.module.split(".")[-1] == stem or stem in item.names for item in self.imports(source)
            ):
                return True
        return False

    def mentions(self, path: str, text: str) -> bool:
        """Whether the Python code of the file's distribution contains ``text``."""
        dist = self._environment.owner(path)
        sources = self.sources(dist) if dist else self._neighbours(path)
        return any(text in (self._environment.text(source) or "") for source in sources)

    def imports(self, path: str) -> List[Import]:
        """Every import statement of a Python file; empty where it cannot be parsed."""
        if path not in self._imports:
            text = self._environment.text(path)
            self._imports[path] = list(parse_imports(text or "", self.module_name(path), path.endswith("/__init__.py")))
        return self._imports[path]

    def quick(self, path: str) -> List[Import]:
        """As ``imports``, of those that always run, by a fast scan: good for following them, confirm by ``imports``."""
        if path not in self._quick:
            text = self._environment.text(path) or ""
            self._quick[path] = list(quick_imports(text, self.module_name(path), path.endswith("/__init__.py")))
        return self._quick[path]

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
            self._sources[dist.folder] = sorted(path for path in paths if path.endswith(".py"))
        return self._sources[dist.folder]

    def needed(self, dist: Distribution) -> bool:
        """Whether the engine imports the distribution for certain, by itself or through what it requires.

        True for everything where there is no engine: then each package stands for itself.
        """
        if self.engine is None or dist.folder == self.engine.folder or dist.name == "torch":
            return True
        if dist.name not in self._needed:
            self._needed[dist.name] = False  # ends cycles
            modules = self._top_modules(dist)
            users = [other for other in self._environment.distributions if self._requires(other, dist)]
            if self.engine not in users:
                users.append(self.engine)
            self._needed[dist.name] = any(
                self._imports_any(user, modules) and self.needed(user) for user in users if user.folder != dist.folder
            )
        return self._needed[dist.name]

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
        stem = posixpath.basename(path).split(".")[0]
        certain, found = self._references(stem, sources)
        if stem in _CORE and found:
            return "import"
        if certain:
            reached = self._reached(sources)
            if any(source in reached or not self._imported_in(source, sources) for source in certain):
                return "import"
        if found:
            return "lazy"
        if self._picked_at_run_time(path, stem, sources):
            return "lazy" if extension else "plugin"
        return "import" if extension and self._fits_python(path) else "plugin"

    def _fits_python(self, path: str) -> bool:
        match = re.search(r"\.cpython-(\d)(\d+)", path)
        return match is None or (int(match.group(1)), int(match.group(2))) == self._environment.python

    def _picked_at_run_time(self, path: str, stem: str, sources: List[str]) -> bool:
        """Whether the sources name a pattern that the file fits: ``libfoo_core{n}``, ``_C*.so``."""
        name = posixpath.basename(path)
        start = stem.rstrip("0123456789")
        for source in sources:
            text = self._environment.text(source) or ""
            if start != stem and re.search(rf"{re.escape(start)}(?![A-Za-z0-9_])", text):
                return True
            patterns = re.findall(r"['\"/]([\w.]*\*[\w.*]*)['\"]", text) if ".so" in text else []
            if any(".so" in pattern and fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
                return True
        return False

    def _references(self, stem: str, sources: List[str]) -> Tuple[List[str], List[str]]:
        """(sources that load the module ``stem`` for certain when imported, all sources that name it)."""
        word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(stem)}(?![A-Za-z0-9_])")
        certain, found = [], []
        for source in sources:
            text = self._environment.text(source) or ""
            if not word.search(text):
                continue
            imports = [i for i in self.imports(source) if i.module.split(".")[-1] == stem or stem in i.names]
            functions = [] if imports else list(string_uses(text, stem))
            if imports or functions:
                found.append(source)
            if any(item.likely for item in imports) or any(self._runs(name, sources) for name in functions):
                certain.append(source)
        return certain, found

    def _runs(self, function: Optional[str], sources: List[str]) -> bool:
        """Whether a string in ``function`` is used at import: at the top level, or in a function called there."""
        if function is None:
            return True
        texts = (self._environment.text(source) or "" for source in sources)
        return any(function in calls_at_import(text) for text in texts if function + "(" in text)

    def _reached(self, sources: List[str]) -> Set[str]:
        """Sources that importing the top packages runs."""
        by_module = {self.module_name(source): source for source in sources}
        queue = [source for name, source in by_module.items() if "." not in name]
        reached: Set[str] = set()
        while queue:
            source = queue.pop()
            if source in reached:
                continue
            reached.add(source)
            for item in self.imports(source):
                if item.likely:
                    queue += [by_module[name] for name in candidates(item) if name in by_module]
        return reached

    def _imported_in(self, source: str, sources: List[str]) -> bool:
        name = self.module_name(source)
        leaf = name.split(".")[-1]
        for other in sources:
            if other == source or leaf not in (self._environment.text(other) or ""):
                continue
            if any(name in candidates(item) for item in self.imports(other)):
                return True
        return False

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

    def _imports_any(self, user: Distribution, modules: Set[str]) -> bool:
        names = "|".join(re.escape(module) for module in modules)
        line = re.compile(rf"^(?:import|from)\s+(?:{names})(?![A-Za-z0-9_])", re.MULTILINE)
        for source in self.sources(user):
            if "/test" in source[len(user.site) :] or not line.search(self._environment.text(source) or ""):
                continue
            if any(item.always and item.module.split(".")[0] in modules for item in self.imports(source)):
                return True
        return False
