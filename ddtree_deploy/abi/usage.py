"""How a native file is used by Python code: at import, only later, or not at all. Decides error against warning."""

from __future__ import annotations

import ast
import posixpath
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from ddtree_deploy.abi.environment import Environment
from ddtree_deploy.abi.metadata import Distribution

ENGINES = ("sglang", "vllm")
_EXTENSION = re.compile(r"\.(cpython-\d+[a-z]*(-[\w-]+)?|abi3)\.so$")


class Import(NamedTuple):
    """One import of a module: absolute dotted name, names taken from it, whether it always runs, and its line."""

    module: str
    names: Tuple[str, ...]
    always: bool
    line: int


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
        is_extension = bool(_EXTENSION.search(path))
        if not any((self._environment.tree.find(source) or (0, 0))[1] for source in sources):
            return "import" if is_extension else "plugin"
        stem = posixpath.basename(path).split(".")[0]
        found = self._references(stem, sources)
        if not found:
            return "plugin"
        if any(always for _, always in found):
            certain = [source for source, always in found if always]
            reached = self._reached(sources)
            if any(source in reached or not self._imported_in(source, sources) for source in certain):
                return "import" if dist is None or self.needed(dist) else "lazy"
        return "lazy"

    def _references(self, stem: str, sources: List[str]) -> List[Tuple[str, bool]]:
        """(source, always) for each source that names the module ``stem`` in an import or in a string."""
        word = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(stem)}(?![A-Za-z0-9_])")
        found = []
        for source in sources:
            text = self._environment.text(source) or ""
            if not word.search(text):
                continue
            mentions = [i for i in self.imports(source) if i.module.split(".")[-1] == stem or stem in i.names]
            if mentions:
                found.append((source, any(mention.always for mention in mentions)))
            elif re.search(rf"['\"/][^'\"\n]*{re.escape(stem)}[^'\"\n]*['\"]", text):
                found.append((source, True))
        return found

    def _reached(self, sources: List[str]) -> Set[str]:
        """Sources that importing the top packages runs for certain."""
        by_module = {self.module_name(source): source for source in sources}
        queue = [source for name, source in by_module.items() if "." not in name]
        reached: Set[str] = set()
        while queue:
            source = queue.pop()
            if source in reached:
                continue
            reached.add(source)
            for item in self.imports(source):
                if item.always:
                    queue += [by_module[name] for name in _candidates(item) if name in by_module]
        return reached

    def _imported_in(self, source: str, sources: List[str]) -> bool:
        name = self.module_name(source)
        leaf = name.split(".")[-1]
        for other in sources:
            if other == source or leaf not in (self._environment.text(other) or ""):
                continue
            if any(name in _candidates(item) for item in self.imports(other)):
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


def _candidates(item: Import) -> List[str]:
    """Modules that an import statement runs: the module, its parents, and names that may be submodules."""
    parts = item.module.split(".")
    parents = [".".join(parts[: end + 1]) for end in range(len(parts))]
    return parents + [f"{item.module}.{name}" for name in item.names]


_QUICK = re.compile(
    r"^(?:from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]+(\([^)]*\)|[^\n#;]*)|import[ \t]+([^\n#;]*))", re.MULTILINE
)


def quick_imports(text: str, module: str, package: bool) -> Iterator[Import]:
    """Imports that begin a line, found without parsing: those that always run, and rarely one inside a string."""
    base = module.split(".") if package else module.split(".")[:-1]
    for match in _QUICK.finditer(text):
        source, names, plain = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        if plain is not None:
            for part in plain.split(","):
                yield Import(part.split(" as ")[0].strip(), (), True, line)
            continue
        level = len(source) - len(source.lstrip("."))
        kept = base[: len(base) - (level - 1)] if level else []
        name = ".".join([*kept, *([source.lstrip(".")] if source.lstrip(".") else [])])
        taken = re.sub(r"#[^\n]*", "", names).strip("()\\ \n").split(",")
        yield Import(name, tuple(part.split(" as ")[0].strip() for part in taken if part.strip()), True, line)


def parse_imports(text: str, module: str, package: bool) -> Iterator[Import]:
    """The imports of a source text. ``always`` is true outside functions, ``try`` and ``if``."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    stack: List[Tuple[ast.AST, bool]] = [(node, True) for node in reversed(tree.body)]
    base = module.split(".") if package else module.split(".")[:-1]
    while stack:
        node, always = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), always, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            name = _absolute(node, base)
            if name is not None:
                yield Import(name, tuple(alias.name for alias in node.names), always, node.lineno)
        elif isinstance(node, (ast.With, ast.ClassDef)):
            stack += [(child, always and not _suppresses(node)) for child in ast.iter_child_nodes(node)]
        elif isinstance(node, ast.Try):
            tolerant = bool(node.handlers) and not all(_raises(handler) for handler in node.handlers)
            stack += [(child, always and not tolerant) for child in node.body]
            rest: List[ast.stmt] = [*node.orelse]
            for handler in node.handlers:
                rest += handler.body
            stack += [(child, False) for child in rest]
            stack += [(child, always) for child in node.finalbody]
        else:
            stack += [(child, False) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def _absolute(node: ast.ImportFrom, base: List[str]) -> Optional[str]:
    if not node.level:
        return node.module
    kept = base[: len(base) - (node.level - 1)]
    name = ".".join([*kept, *([node.module] if node.module else [])])
    return name or None


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(statement, ast.Raise) for statement in handler.body)


def _suppresses(node: ast.AST) -> bool:
    """``with contextlib.suppress(ImportError):`` guards like a try."""
    return isinstance(node, ast.With) and "suppress" in ast.dump(node.items[0].context_expr)
