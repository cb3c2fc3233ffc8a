"""Cloning a real venv: works from its new place, shares inodes, and the base never changes."""

from __future__ import annotations

from pathlib import Path

import venvs

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.release.executor import apply_plan
from ddtree_deploy.release.prune import prune
from ddtree_deploy.release.store import list_releases


def provision(root: Path, base: Path, release_id: str = "test-1", digest: str = "d" * 64) -> Path:
    actions = [venvs.clone_action(base, release_id, digest), venvs.activate_action()]
    apply_plan({"plan": venvs.make_plan(root, base, release_id, actions, digest)}, silent)
    return root / "releases" / release_id


def test_clone_works_and_the_base_is_untouched(root: Path, base: Path) -> None:
    before, links = venvs.tree_state(base), venvs.link_counts(base)
    release = provision(root, base)
    assert venvs.tree_state(base) == before
    out = venvs.run([release / "bin" / "engine"]).stdout
    assert out.split()[:2] == ["engine", "1.0"]
    assert out.split()[2].startswith(str(release))
    assert venvs.mentions(release, str(base)) == []
    prefix = venvs.run([release / "bin" / "python", "-c", "import sys; print(sys.prefix)"]).stdout.strip()
    assert prefix == str(release)
    shared = base / venvs.SITE / "some_lib" / "__init__.py"
    assert shared.stat().st_ino == (release / venvs.SITE / "some_lib" / "__init__.py").stat().st_ino
    provision(root, base, "test-2", "e" * 64)
    provision(root, base, "test-3", "f" * 64)
    prune(str(root), 1, silent)
    assert [info.id for info in list_releases(str(root))] == ["test-2", "test-3"]
    venvs.remove(root)
    assert venvs.link_counts(base) == links
    assert venvs.tree_state(base) == before
