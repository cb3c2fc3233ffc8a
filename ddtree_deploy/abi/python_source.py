"""Imports and names in Python sources, read without running them."""

from __future__ import annotations

import ast
import re
from typing import Iterator, List, NamedTuple, Optional, Set, Tuple


class Import(NamedTuple):
    """One import of a module: absolute dotted name, names taken from it, and its line.

    ``always``: it runs whenever the file is imported; ``likely``: also those below an ``if`` that is not TYPE_CHECKING.
    """

    module: str
    names: Tuple[str, ...]
    always: bool
    line: int
    likely: bool = True


def candidates(item: Import) -> List[str]:
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
    """The imports of a source text, those in functions included."""
    tree = parsed(text)
    if tree is None:
        return
    stack: List[Tuple[ast.AST, int]] = [(node, 2) for node in reversed(tree.body)]  # 2 always, 1 likely, 0 neither
    base = module.split(".") if package else module.split(".")[:-1]
    while stack:
        node, sure = stack.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), sure == 2, node.lineno, sure > 0)
        elif isinstance(node, ast.ImportFrom):
            name = _absolute(node, base)
            if name is not None:
                yield Import(name, tuple(alias.name for alias in node.names), sure == 2, node.lineno, sure > 0)
        elif isinstance(node, (ast.With, ast.ClassDef)):
            stack += [(child, 0 if _suppresses(node) else sure) for child in ast.iter_child_nodes(node)]
        elif isinstance(node, ast.Try):
            tolerant = bool(node.handlers) and not all(_raises(handler) for handler in node.handlers)
            stack += [(child, 0 if tolerant else sure) for child in node.body]
            rest: List[ast.stmt] = [*node.orelse]
            for handler in node.handlers:
                rest += handler.body
            stack += [(child, 0) for child in rest]
            stack += [(child, sure) for child in node.finalbody]
        elif isinstance(node, ast.If):
            never = re.search(r"TYPE_CHECKING|__main__", ast.dump(node.test))
            stack += [(child, 0 if never else min(sure, 1)) for child in node.body]
            stack += [(child, min(sure, 1)) for child in node.orelse]
        else:
            stack += [(child, 0) for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]


def parsed(text: str) -> Optional[ast.Module]:
    """The syntax tree, None where the text is not Python of the version that runs the audit."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return None


def string_uses(text: str, word: str) -> Iterator[Optional[str]]:
    """For each string constant with ``word`` in it: the name of the function it is in, None at the top level."""
    tree = parsed(text)
    stack: List[Tuple[ast.AST, Optional[str]]] = [(node, None) for node in (tree.body if tree else [])]
    pattern = re.compile(rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])")
    while stack:
        node, function = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a docstring
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and pattern.search(node.value):
            yield function
        stack += [(child, function) for child in ast.iter_child_nodes(node)]


def calls_at_import(text: str) -> Set[str]:
    """Names of functions that the top level of a source calls, also inside ``try`` and ``if``."""
    tree = parsed(text)
    found: Set[str] = set()
    stack: List[ast.AST] = list(tree.body) if tree else []
    while stack:
        node = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(node, ast.Call):
            function = node.func
            found.add(function.id if isinstance(function, ast.Name) else getattr(function, "attr", ""))
        stack += list(ast.iter_child_nodes(node))
    return found


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
