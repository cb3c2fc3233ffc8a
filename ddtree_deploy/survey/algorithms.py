"""Speculative algorithms, workers, tree utilities and server arguments of an engine. Standard library only."""

from __future__ import annotations

import ast
import re
from typing import Dict, List, Optional

from ddtree_deploy.survey.model import Algorithm, Component, ServerArgument
from ddtree_deploy.survey.source import Module, Source, calls, classes, constant, last_name

_SPECULATIVE = "srt/speculative"
_ENUM = "SpeculativeAlgorithm"
_REGISTER = {"register", "register_algorithm"}
_TREE_MODULES = ("dflash", "ddtree", "tree", "verify_mask")  # parts of names of modules that a tree method builds on
_TREE_FUNCTIONS = ("tree", "verify_mask_policy", "assign_req_to_token_pool_func")
_WORKER = re.compile(r"Worker(?:V\d+)?$")
_ARGUMENT_FILES = ("srt/server_args.py", "srt/arg_groups/**/*.py")


def find_algorithms(source: Source) -> List[Algorithm]:
    """Members of the enumeration in its order, then what is registered by decorator."""
    module = source.module(f"{source.package}/{_SPECULATIVE}/spec_info.py")
    node = classes(module).get(_ENUM) if module is not None else None
    found: List[Algorithm] = []
    if module is not None and node is not None:
        methods = {item.name: item for item in node.body if isinstance(item, ast.FunctionDef)}
        for item in node.body:
            if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                name = item.targets[0].id
                predicates = [m for m in methods if m.startswith("is_") and _holds(methods, m, name)]
                found.append(Algorithm(name, module.evidence(item.lineno), predicates))
    return found + _registered(source)


def find_components(source: Source) -> List[Component]:
    """Workers of the speculative algorithms, and the modules and functions that a tree method can build on."""
    found: List[Component] = []
    for path in source.find(f"{_SPECULATIVE}/**/*.py") + source.find("srt/layers/attention/*mask*.py"):
        module = source.module(path)
        if module is None:
            continue
        name = path.rsplit("/", 1)[-1][: -len(".py")]
        if any(part in name for part in _TREE_MODULES):
            found.append(Component("module", name, module.evidence(1)))
        found += _workers(module, name)
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef) and any(part in node.name for part in _TREE_FUNCTIONS):
                found.append(Component("function", node.name, module.evidence(node.lineno)))
    order = {"worker v1": 0, "worker v2": 1, "module": 2, "function": 3}
    return sorted(found, key=lambda item: order[item.kind])


def find_server_arguments(source: Source) -> List[ServerArgument]:
    """Fields ``speculative_…`` of the server's arguments with their defaults as written."""
    found: Dict[str, ServerArgument] = {}
    for path in [path for pattern in _ARGUMENT_FILES for path in source.find(pattern)]:
        module = source.module(path)
        for node in ast.walk(module.tree) if module is not None else ():
            if isinstance(node, ast.ClassDef) and module is not None:
                for item in node.body:
                    if isinstance(item, ast.AnnAssign) and last_name(item.target).startswith("speculative_"):
                        name = last_name(item.target)
                        default = "required" if item.value is None else _default(item.value)
                        found.setdefault(name, ServerArgument(name, default, module.evidence(item.lineno)))
    return list(found.values())


def mask_policies(source: Source) -> List[str]:
    """Notes on backends to which the engine itself hands no mask: constants named ``…SKIP_CUSTOM_MASK…``."""
    notes: List[str] = []
    for path in source.find(f"{_SPECULATIVE}/*.py"):
        module = source.module(path)
        for node in module.tree.body if module is not None else ():
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                names = [text for child in ast.walk(node.value) if (text := constant(child)) is not None]
                if "SKIP_CUSTOM_MASK" in last_name(target) and names:
                    notes.append(f"{path}:{node.lineno}: no custom mask is made for {', '.join(sorted(names))}")
    return notes


def _registered(source: Source) -> List[Algorithm]:
    found = []
    for path in source.find(f"{_SPECULATIVE}/**/*.py"):
        module = source.module(path)
        for node in ast.walk(module.tree) if module is not None else ():
            decorators = getattr(node, "decorator_list", [])
            for call in (d for d in decorators if isinstance(d, ast.Call) and last_name(d) in _REGISTER and d.args):
                name = constant(call.args[0])
                if name is not None and module is not None:
                    found.append(Algorithm(name.upper(), module.evidence(call.lineno), registered=True))
    return found


def _workers(module: Module, name: str) -> List[Component]:
    found = []
    for class_name, node in classes(module).items():
        if _WORKER.search(class_name) and not class_name.startswith("Base"):
            second = name.endswith("_v2") or any(last_name(base) == "BaseSpecWorker" for base in node.bases)
            kind = "worker v2" if second else "worker v1"
            found.append(Component(kind, class_name, module.evidence(node.lineno)))
    return found


def _default(value: ast.expr) -> str:
    """The default as written; of ``A[...](default=x)``-like calls the ``default``."""
    for call in calls(value, "field"):
        value = next((word.value for word in call.keywords if word.arg == "default"), value)
    try:
        text = ast.unparse(value)
    except RecursionError:
        return "..."
    return text if len(text) <= 60 else text[:57] + "..."


def _holds(methods: Dict[str, ast.FunctionDef], method: str, member: str, depth: int = 0) -> bool:
    """Whether ``member.method()`` is true, for methods that are one expression over members and other predicates."""
    function = methods.get(method)
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and constant(s.value))] if function else []
    if len(body) != 1 or not isinstance(body[0], ast.Return) or body[0].value is None or depth > 5:
        return False
    return _truth(methods, body[0].value, member, depth) is True


def _truth(methods: Dict[str, ast.FunctionDef], node: ast.expr, member: str, depth: int) -> Optional[bool]:
    """True or False, or None where the expression is not understood."""
    if isinstance(node, ast.BoolOp):
        values = [_truth(methods, value, member, depth) for value in node.values]
        if None in values:
            return None
        return all(values) if isinstance(node.op, ast.And) else any(values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        value = _truth(methods, node.operand, member, depth)
        return None if value is None else not value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and last_name(node.func.value) == "self":
        return _holds(methods, node.func.attr, member, depth + 1)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and last_name(node.left) == "self":
        other, operator = node.comparators[0], node.ops[0]
        elements = other.elts if isinstance(other, (ast.Tuple, ast.List, ast.Set)) else [other]
        inside = member in [last_name(element) for element in elements]
        if isinstance(operator, (ast.Eq, ast.Is, ast.In)):
            return inside
        return not inside if isinstance(operator, (ast.NotEq, ast.IsNot, ast.NotIn)) else None
    return None
