"""What an audit finds. Plain dataclasses: they cross the agent's wire as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One problem. ``cause`` is equal for findings of one root cause; ``when`` says at which moment it will show.

    error: it will fail for whoever uses the package; warning: it fails only when an optional part is used, or may fail;
    note: worth knowing, harmless by itself.
    """

    id: str
    severity: str
    title: str
    message: str
    when: str  # install | import | first-kernel | under-load
    cause: str
    why: str = ""
    fix: str = ""
    files: List[str] = field(default_factory=list)  # relative to the environment, else absolute
    symbols: List[str] = field(default_factory=list)  # demangled where possible
    packages: List[str] = field(default_factory=list)  # "torch 2.11.0"


@dataclass(frozen=True)
class Report:
    """The audit of one environment. ``timing`` is seconds by phase."""

    path: str
    python: Optional[str]
    torch: Optional[str]  # "2.11.0+cu130"
    abi_tag: Optional[str]  # cu130 | cu128 | cpu
    findings: List[Finding] = field(default_factory=list)
    counts: Dict[str, int] = field(default_factory=dict)  # error, warning, note
    files: int = 0
    shared_objects: int = 0
    distributions: int = 0
    timing: Dict[str, float] = field(default_factory=dict)
    schema: int = 1

    @property
    def ok(self) -> bool:
        """True when nothing found is an error."""
        return not self.counts.get("error")
