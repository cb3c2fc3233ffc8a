"""The rules in the order they are asked: one module a family, each with ``check(context) -> List[Finding]``."""

from __future__ import annotations

from typing import Callable, List, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import linking, requirements, tags

Rule = Callable[[Context], List[Finding]]

RULES: Tuple[Tuple[str, Rule], ...] = (
    ("linking", linking.check),
    ("requirements", requirements.check),
    ("tags", tags.check),
)
