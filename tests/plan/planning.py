"""Plans from data: a template of inputs, and JSON merge patches (RFC 7396) over it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from ddtree_deploy.codec import from_dict
from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.patching.model import PatchSet
from ddtree_deploy.plan.inputs import PlanInputs, PlanSettings, Playbook, Tool, WheelInfo
from ddtree_deploy.plan.model import Plan
from ddtree_deploy.profiles.model import Profile, Source

HERE = Path(__file__).parent
TEMPLATE = json.loads((HERE / "template.json").read_text("utf-8"))


def merged(target: Any, patch: Any) -> Any:
    """RFC 7396: null removes a key, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def inputs_of(patch: dict[str, Any] | None = None) -> PlanInputs:
    data = merged(copy.deepcopy(TEMPLATE), patch or {})
    data["facts"].setdefault("glibc", None)  # a merge patch cannot say null
    hashes = data["facts"].get("engine", {}).get("sha256", {})
    hashes.update({path: None for path, value in hashes.items() if value == "missing"})
    donor = data.get("donor")
    return PlanInputs(
        facts=from_dict(HostFacts, data["facts"]),
        settings=from_dict(PlanSettings, data["settings"]),
        profile=from_dict(Profile, data["profile"]),
        patch_set=from_dict(PatchSet, data["patch_set"]) if "patch_set" in data else None,
        playbook=from_dict(Playbook, data["playbook"]),
        source=from_dict(Source, data["source"]),
        wheels=[from_dict(WheelInfo, wheel) for wheel in data.get("wheels", [])],
        uv=from_dict(Tool, data["uv"]) if "uv" in data else None,
        donor=from_dict(HostFacts, merged(data["facts"], donor)) if donor is not None else None,
    )


def release(id: str, **changes: Any) -> dict[str, Any]:
    """A complete release of a host's facts."""
    place = f"/opt/ddtree/releases/{id}"
    plain = {"id": id, "path": place, "profile": "", "created": "2026-01-01T00:00:00Z", "current": False}
    return {**plain, "complete": True, "inputs_digest": "", **changes}


def with_release(patch: dict[str, Any], plan: Plan, *, current: bool, complete: bool = True) -> dict[str, Any]:
    """The same inputs on a host where ``plan`` was carried out."""
    made = release(plan.release_id, profile=plan.profile, current=current, complete=complete)
    made["inputs_digest"] = plan.inputs_digest if complete else ""
    releases = [made] if current else [release("older", current=True), made]
    facts = {"releases": releases, "current": plan.release_id if current else "older"}
    return merged(patch, {"facts": facts})
