"""Library names written into Python code: ``ctypes.CDLL("libcudart.so.12")`` and what is near it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Iterator, List, Optional, Set, Tuple

# Loaders are short modules with such words in their names; scanning all of an environment's sources would be slow.
LOADER_FILE = re.compile(
    r"(^|/)(__init__|[\w]*(?:load|preload|lib|cuda|native|dll|ffi|env|runtime|wrapper|utils|backend|deps)[\w]*)\.py$"
)
LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc|nvJitLink|cupti|cufft|cusolver|nvblas)\.so\.\d+(?:\.\d+)?")
_OPENERS = {"CDLL", "PyDLL", "LoadLibrary", "dlopen", "load_library"}


@dataclass(frozen=True)
class Literal:
    """A library name in a source.

    ``certain``: it is opened at import, outside of any ``try`` or ``if``. ``checked``: only where the file exists.
    """

    name: str
    line: int
    certain: bool
    checked: bool


def literals(text: str) -> List[Literal]:
    """Every CUDA library name in the string constants of a source; docstrings and comments do not count."""
    if not LIBRARY.search(text):
        return []
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    opened = set(_opened(tree))
    checked = _checked_lines(tree, text)
    docstrings = set(_docstrings(tree))
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            # A whole file name, perhaps with a folder: messages that merely mention one do not count.
            match = LIBRARY.search(node.value)
            if match and not re.search(r"\s", node.value):
                certain = (node.lineno, match.group()) in opened
                found.append(Literal(match.group(), node.lineno, certain, node.lineno in checked))
    return found


def _checked_lines(tree: ast.Module, text: str) -> Set[int]:
    """Lines inside of functions and ``if`` statements that ask whether a file exists."""
    lines = text.splitlines()
    found: Set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.If)):
            block = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            if any("exists(" in line or "is_file(" in line for line in lines[block.start - 1 : block.stop - 1]):
                found.update(block)
    return found


def _opened(tree: ast.Module) -> Iterator[Tuple[int, str]]:
    """(line, name) of literals that are opened for certain when the module is imported."""
    called = _called_at_import(tree)
    stack: List[Tuple[ast.AST, bool]] = [(node, True) for node in tree.body]
    while stack:
        node, certain = stack.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            certain = certain and node.name in called
        elif isinstance(node, (ast.Try, ast.If, ast.Lambda, ast.ClassDef, ast.For, ast.While)):
            certain = False
        elif certain and isinstance(node, ast.Call) and _opener(node.func) and node.args:
            match = LIBRARY.search(_constant(node.args[0]) or "")
            if match:
                yield node.args[0].lineno, match.group()
        stack += [(child, certain) for child in ast.iter_child_nodes(node)]


def _called_at_import(tree: ast.Module) -> Set[str]:
    calls = [
        node.value
        for node in tree.body
        if isinstance(node, (ast.Expr, ast.Assign)) and isinstance(node.value, ast.Call)
    ]
    return {call.func.id for call in calls if isinstance(call.func, ast.Name)}


def _opener(function: ast.expr) -> bool:
    name = (
        function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
    )
    return name in _OPENERS


def _constant(node: ast.expr) -> Optional[str]:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _docstrings(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield id(node.value)
