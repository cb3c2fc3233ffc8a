"""Runs that must be refused: with their exit code, what is wrong, where, and what to do."""

from __future__ import annotations

import os

import pytest
from e2e.program import Program, Ran

QUICK = ("provision", "box", "--playbook", "quick")
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user, or a file system of its own")


def refused(program: Program, *words: str, code: int, id: str, says: tuple[str, ...] = (), hint: bool = True) -> Ran:
    """The run ended with ``code`` and the error ``id``, which says ``says`` and what to do."""
    ran = program.run(*words, code=code)
    assert f"error: {id}\n" in ran.err, ran.said
    assert "Traceback" not in ran.err, ran.said
    assert not hint or "\nhint: " in ran.err, ran.said
    missing = [word for word in says if word not in ran.err]
    assert not missing, f"{missing}: {ran.said}"
    return ran
