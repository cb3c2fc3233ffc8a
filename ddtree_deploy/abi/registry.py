"""The rules in the order they are asked: one module a family, each with ``check(context) -> List[Finding]``."""

from __future__ import annotations

from typing import Callable, List, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import (
    broken_files,
    companions,
    copies,
    engine_imports,
    gpu,
    identity,
    interpreter,
    known_bad,
    linking,
    links,
    loader_names,
    numpy_abi,
    records,
    requirements,
    search_path,
    tags,
    versions,
)

Rule = Callable[[Context], List[Finding]]

RULES: Tuple[Tuple[str, Rule], ...] = (
    ("interpreter", interpreter.check),
    ("identity", identity.check),
    ("records", records.check),
    ("broken files", broken_files.check),
    ("links", links.check),
    ("linking", linking.check),
    ("symbol versions", versions.check),
    ("copies", copies.check),
    ("numpy", numpy_abi.check),
    ("search path", search_path.check),
    ("companions", companions.check),
    ("gpu", gpu.check),
    ("tags", tags.check),
    ("requirements", requirements.check),
    ("known bad", known_bad.check),
    ("loaders", loader_names.check),
    ("engine imports", engine_imports.check),
)
