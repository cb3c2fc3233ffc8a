"""What a step is given on the host while a plan is executed. Standard library only (agent-safe)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List

from ddtree_deploy.agent.protocol import ProgressSink
from ddtree_deploy.plan.model import Plan
from ddtree_deploy.release.journal import Journal
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.notes import Notes


@dataclass
class StepContext(Notes):
    """One per run.

    ``blobs``: sha256 -> path on this host. ``indexes``: package index URLs, which may hold secrets. ``donor``:
    {staging, site, paths, notes} of a donor on another host, whose packages were brought here. ``results``: what
    ``apply`` returned, by step; ``notes``: {severity, id, message} of all steps, shown to the user and kept in the
    release's record.
    """

    layout: Layout
    plan: Plan
    progress: ProgressSink
    journal: Journal
    blobs: Dict[str, str] = field(default_factory=dict)
    indexes: List[str] = field(default_factory=list)
    donor: Dict[str, Any] = field(default_factory=dict)
    results: Dict[str, Dict[str, Any]] = field(default_factory=dict)
    notes: List[Dict[str, Any]] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.layout.root

    @property
    def release_id(self) -> str:
        return self.plan.release_id

    @property
    def partial(self) -> Path:
        """Where the release is being built. ``final`` leads there meanwhile, so that paths in scripts work."""
        return self.layout.partial(self.plan.release_id)

    @property
    def final(self) -> Path:
        return self.layout.release(self.plan.release_id)

    def log(self, name: str) -> Path:
        """Path of a log file that outlives the run, whatever becomes of the release."""
        folder = self.layout.logs(self.plan.release_id)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name
