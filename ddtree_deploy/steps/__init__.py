"""The steps of a playbook, one module each: ``plan(inputs, draft)``, ``apply(action, context)``, ``undo`` likewise.

``plan`` is pure and runs on the controller; ``apply`` and ``undo`` run on the host. Agent-safe.
"""

from __future__ import annotations

import importlib
from types import ModuleType

from ddtree_deploy.errors import InputError


def load(step: str) -> ModuleType:
    """The module of ``step``; raises InputError ``unknown-step``."""
    if step.isidentifier() and not step.startswith("_"):
        try:
            module = importlib.import_module(f"ddtree_deploy.steps.{step}")
        except ModuleNotFoundError as error:
            if error.name != f"ddtree_deploy.steps.{step}":
                raise
        else:
            if hasattr(module, "apply"):
                return module
    raise InputError("unknown-step", f"there is no step {step!r}", hint="the steps are listed in docs/releases.md")
