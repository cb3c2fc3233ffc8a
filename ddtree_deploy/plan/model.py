"""The plan: what ``--dry-run`` prints and ``provision`` executes, the same object. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass(frozen=True)
class Precondition:
    """Re-checked on the host right before its action; ``kind`` picks the check, see ``steps.preconditions``."""

    kind: str  # venv-fingerprint | path-missing | sha256 | free-space | current-is | python-version ...
    params: Dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """One thing that will be done by ``steps/<step>.py``. ``files`` and ``bytes`` are estimates for progress."""

    id: str  # "03-overlay"
    step: str  # clone | overlay | patch | audit | smoke | activate | command
    summary: str
    params: Dict[str, Any] = field(default_factory=dict)
    preconditions: List[Precondition] = field(default_factory=list)
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class PackageChange:
    change: str  # add | replace | remove
    name: str
    reason: str
    old_version: Optional[str] = None
    new_version: Optional[str] = None
    old_abi: Optional[str] = None
    new_abi: Optional[str] = None
    source: Optional[str] = None  # where it comes from, where there is a donor: its place, "index" or "wheelhouse"


@dataclass(frozen=True)
class FileChange:
    change: str  # patch | new | shim
    path: str  # relative to site-packages (shim: to the release)
    sha256_before: Optional[str]
    sha256_after: Optional[str]
    diff: Optional[str] = None
    added: int = 0
    removed: int = 0


@dataclass(frozen=True)
class Problem:
    """Something that stops the plan (severity error) or that one should know (warning, note)."""

    severity: str  # error | warning | note
    id: str
    message: str
    hint: Optional[str] = None
    exit_code: int = 3


@dataclass(frozen=True)
class Plan:
    host: str
    root: str
    base: str
    profile: str
    release_id: str
    inputs_digest: str
    patch_set: Optional[str] = None
    previous: Optional[str] = None  # the complete release that is current now
    actions: List[Action] = field(default_factory=list)
    packages: List[PackageChange] = field(default_factory=list)
    files: List[FileChange] = field(default_factory=list)
    problems: List[Problem] = field(default_factory=list)
    unchanged_packages: int = 0
    schema: int = 1

    @property
    def pending(self) -> bool:
        """True when executing the plan would change the host."""
        return bool(self.actions)

    @property
    def errors(self) -> List[Problem]:
        return [problem for problem in self.problems if problem.severity == "error"]
