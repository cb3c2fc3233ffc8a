"""What the planner has worked out before it asks the steps for their actions. Standard library only (agent-safe).

Each module of ``steps/`` has ``plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]``. It is pure: all it may
read is in its two arguments. The builder overwrites the ids of the actions it returns: ``01-clone``, ``02-overlay`` ...
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from ddtree_deploy.plan.model import FileChange, PackageChange, Problem
from ddtree_deploy.profiles.model import LockedPackage


@dataclass(frozen=True)
class PlanDraft:
    """``locked`` are the profile's packages whose markers hold on this host; ``packages`` are what the overlay does:
    ``add`` and ``replace`` come from the source, ``remove`` and the old side of ``replace`` leave by their RECORD;
    ``keep`` are the names of the base's packages that stay. ``options`` are those of the playbook step being planned.
    """

    release_id: str
    inputs_digest: str
    root: str  # absolute, as the host sees it
    base: str  # absolute, as the host sees it
    site_packages: str  # relative to the release: "lib/python3.11/site-packages"
    locked: List[LockedPackage] = field(default_factory=list)
    packages: List[PackageChange] = field(default_factory=list)
    keep: List[str] = field(default_factory=list)
    files: List[FileChange] = field(default_factory=list)
    previous: Optional[str] = None  # where `current` leads now, whether or not that is a release
    problems: List[Problem] = field(default_factory=list)
    options: Dict[str, Any] = field(default_factory=dict)
