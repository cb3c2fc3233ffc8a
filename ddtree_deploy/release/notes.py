"""What the user should know of a run. Standard library only (agent-safe)."""

from __future__ import annotations

from typing import Any, Dict, List


class Notes:
    """Base of what collects ``notes`` {severity, id, message}; ``severity``: warning or note."""

    notes: List[Dict[str, Any]]

    def note(self, severity: str, id: str, message: str) -> None:
        self.notes.append({"severity": severity, "id": id, "message": message})
