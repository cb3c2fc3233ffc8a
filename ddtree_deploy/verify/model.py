"""Results of a verification. Standard library only (agent-safe)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass(frozen=True)
class OutputLine:
    """One line that a check printed. ``kind``: noise (harmless, ``reason`` says why), warning, or unknown."""

    text: str
    kind: str
    reason: Optional[str] = None
    rule: Optional[str] = None


@dataclass(frozen=True)
class CheckResult:
    """What one check saw. ``seconds`` is its duration.

    ``cause`` of a failure: python-missing | missing-module | import-error | outside-release | wrong-value | crash |
    hang | changed-files | audit | engine-failed | check-error.
    """

    id: str  # torch | torchvision | algorithm | modules | kernel | server | audit | files | gpu-...
    title: str
    status: str  # ok | warning | failed | skipped
    summary: str
    seconds: float = 0.0
    cause: Optional[str] = None
    hint: Optional[str] = None
    detail: Optional[str] = None  # traceback or list of findings
    output: List[OutputLine] = field(default_factory=list)
    data: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class VerifyReport:
    """All checks of one release."""

    release: str  # id
    path: str
    ok: bool  # no check failed
    seconds: float
    checks: List[CheckResult] = field(default_factory=list)
    schema: int = 1
