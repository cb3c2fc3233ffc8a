"""Running steps on a small base venv."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import venvs

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.plan.model import Action
from ddtree_deploy.release.executor import apply_plan


def run(root: Path, base: Path, *actions: Action, release_id: str = "test-1") -> Dict[str, Any]:
    everything = [venvs.clone_action(base, release_id, "d" * 64), *actions, venvs.activate_action()]
    return apply_plan({"plan": venvs.make_plan(root, base, release_id, everything)}, silent)
