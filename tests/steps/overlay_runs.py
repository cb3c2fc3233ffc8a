"""Running a plan with one overlay, for the tests of overlays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import venvs

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.plan.model import Action
from ddtree_deploy.release.executor import apply_plan

Install = List[Tuple[str, str, List[str]]]


def run(
    root: Path,
    base: Path,
    overlay: Action,
    blobs: Optional[Dict[str, str]] = None,
    indexes: Optional[List[str]] = None,
    release_id: str = "test-1",
) -> Tuple[Path, Dict[str, Any]]:
    actions = [venvs.clone_action(base, release_id, "d" * 64), overlay, venvs.activate_action()]
    plan = venvs.make_plan(root, base, release_id, actions)
    result = apply_plan({"plan": plan, "blobs": blobs or {}, "indexes": indexes or []}, silent)
    return root / "releases" / release_id, result


def wheelhouse(install: List[Tuple[str, str, Path]], remove: List[str], **more: Any) -> Tuple[Action, Dict[str, str]]:
    chosen = [wheel for _, _, wheel in install]
    packages = [(name, version, [venvs.sha256(wheel)]) for name, version, wheel in install]
    action = venvs.overlay_action(packages, remove, {"kind": "wheelhouse"}, chosen, **more)
    return action, {venvs.sha256(wheel): str(wheel) for wheel in chosen}


def notes(result: Dict[str, Any]) -> Dict[str, str]:
    return {note["id"]: note["message"] for note in result["notes"]}


def imported(release: Path, code: str) -> str:
    return venvs.run([release / "bin" / "python", "-c", code]).stdout.strip()


def site(release: Path) -> Path:
    return release / venvs.SITE
