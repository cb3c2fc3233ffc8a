from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List

import pytest
import venvs

from ddtree_deploy.agent.protocol import Progress, silent
from ddtree_deploy.errors import DriftError, InputError, LockedError, StepError
from ddtree_deploy.plan.model import Action, Precondition
from ddtree_deploy.release.executor import apply_plan
from ddtree_deploy.release.journal import read_journal
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.lock import Lock
from ddtree_deploy.release.store import current_release, list_partial, list_releases, previous_release

RUN = """
import json, sys
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.release.executor import apply_plan
apply_plan(json.load(open(sys.argv[1])), silent)
"""


def command(argv: List[str], id: str = "05-command") -> Action:
    return Action(id=id, step="command", summary="a command", params={"argv": argv, "timeout": 60})


def params(
    root: Path, base: Path, wheels: Dict[str, Path], release_id: str, digest: str, *more: Action
) -> Dict[str, Any]:
    """Clone, overlay (some-lib 2.0 for 1.0, extra added), a command that imports, activate."""
    chosen = [wheels["lib-2"], wheels["extra"]]
    overlay = venvs.overlay_action(
        [("some-lib", "2.0", [venvs.sha256(chosen[0])]), ("extra", "1.0", [venvs.sha256(chosen[1])])],
        ["some-lib"],
        {"kind": "wheelhouse"},
        chosen,
    )
    check = command(["{release}/bin/python", "-c", "import extra, some_lib; assert some_lib.VALUE == 2"], "04-command")
    actions = [venvs.clone_action(base, release_id, digest), overlay, check, *more, venvs.activate_action()]
    plan = venvs.make_plan(root, base, release_id, actions, digest)
    return {"plan": plan, "blobs": {venvs.sha256(wheel): str(wheel) for wheel in chosen}}


def verify(root: Path) -> str:
    """``current`` points to a complete release that works; returns its id."""
    current = root / "current"
    release = current.resolve()
    record = json.loads((release / ".ddtree" / "release.json").read_text())
    assert record["id"] == release.name
    done = venvs.run([current / "bin" / "python", "-c", "import engine, some_lib; print(engine.VERSION)"])
    assert done.stdout == "1.0\n"
    return release.name


def clean(root: Path) -> bool:
    """No leftovers but the cache."""
    links = [path.name for path in (root / "releases").iterdir() if path.is_symlink()]
    temporary = [path.name for path in root.iterdir() if path.name.endswith(".tmp")]
    staging = root / "cache" / "staging"
    unfinished = [path.name for path in staging.iterdir() if path.name.endswith(".partial")] if staging.is_dir() else []
    return not (list_partial(str(root)) or links or temporary or unfinished)


def test_a_whole_plan(root: Path, base: Path, wheels: Dict[str, Path]) -> None:
    before = venvs.tree_state(base)
    seen: List[Progress] = []
    result = apply_plan(params(root, base, wheels, "test-1", "a" * 64), seen.append)
    assert result["release_id"] == result["current"] == "test-1"
    assert result["changed"] and result["previous"] is None
    assert [action["step"] for action in result["actions"]] == ["clone", "overlay", "command", "activate"]
    assert verify(root) == "test-1"
    assert clean(root)
    assert venvs.tree_state(base) == before
    assert {"clone", "rewrite", "remove", "overlay"} <= {progress.phase for progress in seen}
    events = [(entry["event"], entry.get("action")) for entry in read_journal(root / "journal.jsonl")]
    assert events[0] == ("run-begin", None)
    assert events[-1] == ("run-end", None)
    assert (
        events.index(("begin", "02-overlay"))
        < events.index(("end", "02-overlay"))
        < events.index(("begin", "09-activate"))
    )
    record = json.loads((root / "current" / ".ddtree" / "release.json").read_text())
    assert record["environment"] == {"SHIM": f"{root}/releases/test-1/lib/shim"}
    assert record["staging"] in [path.name for path in (root / "cache" / "staging").iterdir()]
    assert record["file_count"] > 20 and record["bytes"] > 0


def test_failed_step_activates_nothing_and_leaves_only_the_log(root: Path, base: Path, wheels: Dict[str, Path]) -> None:
    apply_plan(params(root, base, wheels, "test-1", "a" * 64), silent)
    failing = command(["{release}/bin/python", "-c", "print('look here'); raise SystemExit(7)"])
    with pytest.raises(StepError, match="status 7: look here") as caught:
        apply_plan(params(root, base, wheels, "test-2", "b" * 64, failing), silent)
    assert caught.value.id == "command-failed"
    assert caught.value.details["action"] == "05-command"
    assert caught.value.where is not None and "look here" in Path(caught.value.where).read_text()
    assert verify(root) == "test-1"
    assert clean(root)
    assert [release.id for release in list_releases(str(root))] == ["test-1"]
    failed = [entry for entry in read_journal(root / "journal.jsonl") if entry["event"] == "fail"]
    assert [(entry["action"], entry["error"]["id"]) for entry in failed] == [("05-command", "command-failed")]
    apply_plan(params(root, base, wheels, "test-2", "b" * 64), silent)
    assert verify(root) == "test-2"
    assert previous_release(Layout(root)) == "test-1"


def test_playbook_without_activation_builds_and_leaves_current(root: Path, base: Path, wheels: Dict[str, Path]) -> None:
    apply_plan(params(root, base, wheels, "test-1", "a" * 64), silent)
    later = params(root, base, wheels, "test-2", "b" * 64)
    later["plan"]["actions"] = [action for action in later["plan"]["actions"] if action["step"] != "activate"]
    apply_plan(later, silent)
    assert verify(root) == "test-1"
    assert [(release.id, release.complete) for release in list_releases(str(root))] == [
        ("test-1", True),
        ("test-2", True),
    ]


@pytest.mark.parametrize(
    ("kind", "make", "words"),
    [
        ("path-missing", lambda base: {"path": str(base)}, "exists; it did not"),
        ("path-exists", lambda base: {"path": str(base / "nothing")}, "is gone"),
        ("current-is", lambda base: {"release": "other-1"}, "it was other-1"),
        ("sha256", lambda base: {"files": {"pyvenv.cfg": ["0" * 64]}}, "pyvenv.cfg"),
    ],
)
def test_drift_names_what_changed(root: Path, base: Path, kind: str, make: Any, words: str) -> None:
    late = Action(
        id="02-command",
        step="command",
        summary="never run",
        params={"argv": ["/bin/false"], "timeout": 5},
        preconditions=[Precondition(kind, make(base))],
    )
    plan = venvs.make_plan(root, base, "test-1", [venvs.clone_action(base, "test-1", "d" * 64), late])
    with pytest.raises(DriftError, match=words):
        apply_plan({"plan": plan}, silent)
    assert clean(root)
    assert current_release(Layout(root)) is None


def test_no_space_says_how_much(root: Path, base: Path) -> None:
    check = Precondition("free-space", {"path": str(root), "bytes": 10**18})
    plan = venvs.make_plan(root, base, "test-1", [venvs.clone_action(base, "test-1", "d" * 64, [check])])
    with pytest.raises(StepError, match="missing") as caught:
        apply_plan({"plan": plan}, silent)
    assert caught.value.id == "no-space"
    assert caught.value.details["missing_bytes"] == 10**18 - caught.value.details["free_bytes"]


def test_locked(root: Path, base: Path) -> None:
    root.mkdir()
    plan = venvs.make_plan(root, base, "test-1", [venvs.clone_action(base, "test-1", "d" * 64)])
    with Lock(root / "lock", "somebody else"), pytest.raises(LockedError, match="somebody else"):
        apply_plan({"plan": plan}, silent)
    assert not (root / "releases").exists()


def test_bad_plans_touch_nothing(root: Path, base: Path) -> None:
    unknown = Action(id="01-x", step="no_such_step", summary="")
    for plan, id in (
        (venvs.make_plan(root, base, "test-1", [unknown]), "unknown-step"),
        (venvs.make_plan(root, base, "../evil", []), "bad-release-id"),
        (
            {**venvs.make_plan(root, base, "a-1", []), "problems": [{"severity": "error", "id": "x", "message": "m"}]},
            "x",
        ),
        ({**venvs.make_plan(root, base, "a-1", []), "surprise": 1}, "bad-document"),
    ):
        with pytest.raises(InputError) as caught:
            apply_plan({"plan": plan}, silent)
        assert caught.value.id == id
    assert not root.exists()


@pytest.mark.parametrize("phase", ["clone", "rewrite", "remove", "overlay", "command"])
def test_interrupt_anywhere_cleans_up(root: Path, base: Path, wheels: Dict[str, Path], phase: str) -> None:
    apply_plan(params(root, base, wheels, "test-1", "a" * 64), silent)

    def stop(progress: Progress) -> None:
        if progress.phase == phase:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_plan(params(root, base, wheels, "test-2", "b" * 64), stop)
    assert verify(root) == "test-1"
    assert clean(root)
    assert [entry["interrupted"] for entry in read_journal(root / "journal.jsonl") if entry["event"] == "fail"] == [
        True
    ]
