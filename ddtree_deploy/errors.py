"""Every error a user can meet, and the exit code it ends the program with.

    DeployError
    ├── InputError          exit 3   inventory, arguments, profile, playbook, patch set
    ├── UnreachableError    exit 4   host unreachable, refused, host key changed
    ├── StepError           exit 5   a step failed; nothing was activated
    │   └── DriftError      exit 5   the host changed between plan and action
    ├── LockedError         exit 6   another run holds the lock
    └── ProblemsError       exit 1   a check found problems

An error has a stable kebab-case ``id``, says what is wrong (``message``), where (``where``) and what to do
(``hint``). It crosses the agent's wire as ``to_dict``/``from_dict``. Standard library only: the agent uses it.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Dict, Optional, Type


class ExitCode(IntEnum):
    """Exit codes of the command line; scripts and CI rely on them."""

    OK = 0
    PROBLEMS = 1
    CHANGES = 2
    BAD_INPUT = 3
    UNREACHABLE = 4
    STEP_FAILED = 5
    LOCKED = 6
    INTERRUPTED = 130


class DeployError(Exception):
    """Base of all errors meant for users. ``where`` is a place such as ``inventory/hosts.yaml:12``."""

    exit_code: ExitCode = ExitCode.STEP_FAILED

    def __init__(
        self,
        id: str,
        message: str,
        *,
        where: Optional[str] = None,
        hint: Optional[str] = None,
        details: Optional[Dict[str, Any]] = None,
    ) -> None:
        super().__init__(message)
        self.id = id
        self.message = message
        self.where = where
        self.hint = hint
        self.details: Dict[str, Any] = details or {}

    def to_dict(self) -> Dict[str, Any]:
        """JSON form, as sent by the agent and printed under ``--json``."""
        return {
            "type": type(self).__name__,
            "id": self.id,
            "message": self.message,
            "where": self.where,
            "hint": self.hint,
            "details": self.details,
            "exit_code": int(self.exit_code),
        }

    @staticmethod
    def from_dict(data: Dict[str, Any]) -> DeployError:
        """The error that ``to_dict`` described; an unknown type becomes a :class:`StepError`."""
        cls = _TYPES.get(str(data.get("type")), StepError)
        return cls(
            str(data.get("id", "unknown")),
            str(data.get("message", "")),
            where=data.get("where"),
            hint=data.get("hint"),
            details=data.get("details") or {},
        )


class InputError(DeployError):
    """Bad inventory, arguments, profile, playbook or patch set (exit 3)."""

    exit_code = ExitCode.BAD_INPUT


class UnreachableError(DeployError):
    """The host cannot be reached or refused us (exit 4)."""

    exit_code = ExitCode.UNREACHABLE


class StepError(DeployError):
    """A step failed; nothing was activated (exit 5)."""

    exit_code = ExitCode.STEP_FAILED


class DriftError(StepError):
    """The host is no longer what the plan was made for (exit 5)."""


class LockedError(DeployError):
    """Another run holds the lock (exit 6)."""

    exit_code = ExitCode.LOCKED


class ProblemsError(DeployError):
    """A check found problems (exit 1)."""

    exit_code = ExitCode.PROBLEMS


_TYPES: Dict[str, Type[DeployError]] = {
    cls.__name__: cls
    for cls in (DeployError, InputError, UnreachableError, StepError, DriftError, LockedError, ProblemsError)
}
