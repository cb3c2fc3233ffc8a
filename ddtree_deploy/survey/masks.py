"""Find where an attention backend handles TARGET_VERIFY and reads a tree mask. Standard library only (agent-safe).

Three ways to take a mask are known: ``spec_info.custom_mask``; the last value of
``spec_info.generate_attn_arg_prefill()``, if it is used afterwards; and, for state models, the tree's links
(``retrieve_parent_token``). A read counts as gated where every way to it leads through a test
that the draft's top-k is above 1.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import List, Optional, Sequence, Tuple

from ddtree_deploy.survey.source import constant, last_name

MASK = "custom_mask"
_SPEC_INFO = {"spec_info", "spec_input", "verify_input"}
_LINKS = {"retrieve_parent_token", "retrive_parent_token"}
_ARGUMENTS = "generate_attn_arg_prefill"

Condition = Tuple[ast.expr, bool]  # a test, and whether it held


@dataclass(frozen=True)
class MaskRead:
    line: int
    gated: bool
    graph: bool


@dataclass
class MaskUse:
    """Lines that handle TARGET_VERIFY, read a mask, get one and drop it, pass on the tree's links."""

    verify: List[int] = field(default_factory=list)
    reads: List[MaskRead] = field(default_factory=list)
    dropped: List[int] = field(default_factory=list)
    links: List[int] = field(default_factory=list)


def mask_use(nodes: Sequence[ast.AST]) -> MaskUse:
    """What the classes and functions ``nodes`` do with a tree mask."""
    use = MaskUse()
    for node in nodes:
        _Visitor(use).visit(node)
    return use


class _Visitor(ast.NodeVisitor):
    """Walks one class, knowing the tests that hold at every statement."""

    def __init__(self, use: MaskUse) -> None:
        self._use = use
        self._conditions: List[Condition] = []
        self._function: Optional[ast.AST] = None
        self._name = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        saved = (self._conditions, self._function, self._name)
        self._conditions, self._function, self._name = [], node, node.name
        self._block(node.body)
        self._conditions, self._function, self._name = saved

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for child in node.body:
            self.visit(child)

    def visit_If(self, node: ast.If) -> None:
        self.visit(node.test)
        self._under((node.test, True), node.body)
        self._under((node.test, False), node.orelse)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.visit(node.test)
        for condition, value in (((node.test, True), node.body), ((node.test, False), node.orelse)):
            self._conditions.append(condition)
            self.visit(value)
            self._conditions.pop()

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.ctx, ast.Load):
            if node.attr == MASK:
                self._read_of(node.value, node.lineno)
            if node.attr == "TARGET_VERIFY":
                self._use.verify.append(node.lineno)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = last_name(node.func)
        if name == "is_target_verify":
            self._use.verify.append(node.lineno)
        if name == "getattr" and len(node.args) > 1 and constant(node.args[1]) == MASK:
            self._read_of(node.args[0], node.lineno)
        self._use.links += [word.value.lineno for word in node.keywords if word.arg in _LINKS]
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        if isinstance(node.value, ast.Call) and last_name(node.value.func) == _ARGUMENTS:
            target = node.targets[0]
            mask = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else None
            if isinstance(mask, ast.Name) and self._used_after(mask):
                self._read(node.value.lineno)
            else:
                self._use.dropped.append(node.value.lineno)
        self.generic_visit(node)

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        """Visit statements in order; after ``if test: … return`` the rest runs only where the test did not hold."""
        depth = len(self._conditions)
        for statement in statements:
            self.visit(statement)
            if isinstance(statement, ast.If) and not statement.orelse and _leaves(statement.body):
                self._conditions.append((statement.test, False))
        del self._conditions[depth:]

    def _under(self, condition: Condition, statements: Sequence[ast.stmt]) -> None:
        self._conditions.append(condition)
        self._block(statements)
        self._conditions.pop()

    def _read_of(self, owner: ast.expr, line: int) -> None:
        if last_name(owner) in _SPEC_INFO:
            self._read(line)

    def _read(self, line: int) -> None:
        gated = any(implies_tree(test, held) for test, held in self._conditions)
        self._use.reads.append(MaskRead(line, gated, "graph" in self._name))

    def _used_after(self, mask: ast.Name) -> bool:
        if self._function is None:
            return True
        return any(
            isinstance(node, ast.Name)
            and node.id == mask.id
            and isinstance(node.ctx, ast.Load)
            and node.lineno > mask.lineno
            for node in ast.walk(self._function)
        )


def implies_tree(test: ast.expr, held: bool) -> bool:
    """True where ``test`` being ``held`` means that top-k is above 1."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return implies_tree(test.operand, not held)
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And if held else ast.Or):
        return any(implies_tree(value, held) for value in test.values)
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not last_name(test.left).endswith("topk"):
        return False
    bound, operator = test.comparators[0], test.ops[0]
    if not isinstance(bound, ast.Constant):
        return False
    above = (isinstance(operator, ast.Gt) and bound.value == 1) or (isinstance(operator, ast.GtE) and bound.value == 2)
    below = (isinstance(operator, ast.LtE) and bound.value == 1) or (isinstance(operator, ast.Lt) and bound.value == 2)
    return above if held else below


def _leaves(body: Sequence[ast.stmt]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue))
