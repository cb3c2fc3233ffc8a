"""What the planner is given. Plain data, agent-safe, so that step modules can import it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Union

from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.patching.model import PatchSet
from ddtree_deploy.profiles.model import Profile, Source

# Draft-tree nodes verified per step, the root not counted; the most is the patched engine's MAX_DDTREE_BUDGET.
BUDGET_MIN, BUDGET_MAX = 1, 511
AUTO = "auto"  # the engine measures its captured CUDA graphs at start, and picks the size of each step's tree
BUDGET_HINT = (
    f"The budget counts the draft-tree nodes verified per step, the root not counted: {BUDGET_MIN} to {BUDGET_MAX}, "
    "such as 31, or auto."
)


def parse_budget(value: Union[int, str]) -> Union[int, str]:
    """The nodes, or ``auto``: of the inventory, a plan or a launch.

    Raises InputError ``budget-invalid`` or ``budget-out-of-range``; the caller knows the place.
    """
    if value == AUTO:
        return AUTO
    if isinstance(value, bool) or not re.fullmatch(r"-?[0-9]{1,100}", str(value)):
        raise InputError("budget-invalid", f"budget {value!r} is neither a whole number nor auto", hint=BUDGET_HINT)
    budget = int(value)
    if not BUDGET_MIN <= budget <= BUDGET_MAX:
        limits = f"{BUDGET_MIN} to {BUDGET_MAX}"
        hint = "Use the algorithm none for plain decoding." if budget == 0 else BUDGET_HINT
        raise InputError("budget-out-of-range", f"budget {budget} is out of range ({limits}, or auto)", hint=hint)
    return budget


@dataclass(frozen=True)
class PlaybookStep:
    """One entry of a playbook; ``options`` go to the step's ``plan``."""

    step: str
    options: Dict[str, Any] = field(default_factory=dict)

    def applies(self, gpu: bool) -> bool:
        """Whether a ``command`` runs for a profile that is (not) for GPUs; other steps always do."""
        return self.options.get("when", "always") in ("always", "gpu" if gpu else "cpu")


@dataclass(frozen=True)
class Playbook:
    name: str
    steps: List[PlaybookStep] = field(default_factory=list)


@dataclass(frozen=True)
class PlanSettings:
    """The part of a host's merged inventory settings that provisioning reads."""

    host: str
    root: str
    base: str
    model: Optional[str] = None
    draft: Optional[str] = None
    gpus: Optional[List[int]] = None
    budget: Optional[str] = None
    environment: Dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WheelInfo:
    """A wheel of a wheelhouse, read on the controller before planning."""

    path: str
    name: str  # normalized
    version: str
    sha256: str
    bytes: int = 0


@dataclass(frozen=True)
class Tool:
    """A program on the controller that can be sent to hosts of the same ``machine``: uv."""

    path: str
    sha256: str
    bytes: int
    machine: str  # x86_64


@dataclass(frozen=True)
class PlanInputs:
    facts: HostFacts
    settings: PlanSettings
    profile: Profile
    patch_set: Optional[PatchSet]
    playbook: Playbook
    source: Source
    wheels: List[WheelInfo] = field(default_factory=list)
    donor: Optional[HostFacts] = None  # facts of the donor (its base venv is the donor venv), where source is a donor
    uv: Optional[Tool] = None  # the controller's uv, a blob for hosts that have none
