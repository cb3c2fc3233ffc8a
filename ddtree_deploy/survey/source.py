"""The engine's source as syntax trees; never imported. Standard library only (agent-safe)."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Tuple

from ddtree_deploy.survey.model import Evidence


@dataclass(frozen=True)
class Module:
    path: str  # relative to the root, with forward slashes
    tree: ast.Module
    lines: List[str]

    def evidence(self, line: int) -> Evidence:
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return Evidence(self.path, line, text[:160])


class Source:
    """Modules below ``root`` (the folder that holds ``package``), parsed once when first asked for."""

    def __init__(self, root: Path, package: str) -> None:
        self.root = root
        self.package = package
        self.problems: List[str] = []
        self._modules: Dict[str, Optional[Module]] = {}

    def module(self, path: str) -> Optional[Module]:
        """The module at ``path`` relative to the root, or None; what cannot be parsed is noted in ``problems``."""
        if path not in self._modules:
            self._modules[path] = self._parse(path)
        return self._modules[path]

    def imported(self, dotted: str) -> Optional[Module]:
        """The module that ``import dotted`` would load: a file or a package's ``__init__``."""
        base = dotted.replace(".", "/")
        return self.module(f"{base}.py") or self.module(f"{base}/__init__.py")

    def resolve(self, dotted: str, name: str, hops: int = 3) -> Optional[Tuple[Module, ast.ClassDef]]:
        """The class that ``from dotted import name`` gives, through at most ``hops`` re-exports."""
        module = self.imported(dotted)
        if module is None:
            return None
        if name in classes(module):
            return module, classes(module)[name]
        origin = imports(module).get(name)
        return self.resolve(*origin, hops - 1) if origin and hops else None

    def find(self, pattern: str) -> List[str]:
        """Paths of files below the package that match ``pattern``, sorted."""
        folder = self.root / self.package
        return sorted(path.relative_to(self.root).as_posix() for path in folder.glob(pattern) if path.is_file())

    def _parse(self, path: str) -> Optional[Module]:
        file = self.root / path
        if not file.is_file():
            return None
        try:
            content = file.read_bytes()
            encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)  # a byte order mark, a coding line
            text = content.decode(encoding)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the engine's own string escapes
                return Module(path, ast.parse(content), text.split("\n"))
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.problems.append(f"{path} cannot be parsed: {error}")
            return None


def classes(module: Module) -> Dict[str, ast.ClassDef]:
    """Top-level classes by name."""
    return {node.name: node for node in module.tree.body if isinstance(node, ast.ClassDef)}


def imports(module: Module, node: Optional[ast.AST] = None) -> Dict[str, Tuple[str, str]]:
    """Names bound by ``from module import name [as alias]`` below ``node``: alias -> (module, name)."""
    parts = module.path.split("/")[:-1]
    found: Dict[str, Tuple[str, str]] = {}
    for child in ast.walk(node or module.tree):
        if isinstance(child, ast.ImportFrom):
            parents = parts[: len(parts) - child.level + 1] if child.level else []
            dotted = ".".join([*parents, *([child.module] if child.module else [])])
            for alias in child.names:
                found[alias.asname or alias.name] = (dotted, alias.name)
    return found


def last_name(node: ast.AST) -> str:
    """The last identifier of a name, attribute or call: ``forward_batch.spec_info`` -> ``spec_info``."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def calls(node: ast.AST, name: str) -> Iterator[ast.Call]:
    """Calls below ``node`` of a function or method called ``name``."""
    for child in ast.walk(node):
        if isinstance(child, ast.Call) and last_name(child.func) == name:
            yield child


def constant(node: Optional[ast.AST]) -> Optional[str]:
    """The text of a string literal, else None."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
