"""A playbook's own commands: how they run, and what they may change."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Optional

import pytest
import venvs
from overlay_runs import wheelhouse
from step_runs import run
from venvs import ENGINE

from ddtree_deploy.agent.protocol import Progress, silent
from ddtree_deploy.errors import StepError
from ddtree_deploy.plan.model import Action
from ddtree_deploy.release.executor import apply_plan
from ddtree_deploy.release.files import record_hash_file
from ddtree_deploy.release.record import parse_record


def command(argv: List[str], timeout: int = 60, environment: Optional[Dict[str, str]] = None) -> Action:
    params = {"argv": argv, "timeout": timeout, "environment": environment or {}}
    return Action(id="04-command", step="command", summary="a command", params=params)


def test_command_gets_the_release_and_the_environment_of_a_service(root: Path, base: Path) -> None:
    code = "import os, sys; print(sys.prefix, os.environ['MINE'], os.environ['SHIM'], os.environ.get('SECRET'))"
    result = run(root, base, command(["{release}/bin/python", "-c", code], environment={"MINE": "yes"}))
    log = Path(result["actions"][1]["result"]["log"]).read_text()
    release = root / "releases" / "test-1"
    assert log.split() == [str(release), "yes", f"{release}/lib/shim", "None"]


def test_command_in_a_venv_that_an_upgrade_of_python_went_through(root: Path, base: Path) -> None:
    """The packages of the Python before are still there; a plan goes by the Python that the venv has."""
    (base / "lib" / "python3.2" / "site-packages").mkdir(parents=True)
    result = run(root, base, command(["/bin/true"]))
    assert result["actions"][1]["result"]["status"] == 0


def test_command_is_no_shell(root: Path, base: Path, tmp_path: Path) -> None:
    run(root, base, command(["/bin/echo", f"; touch {tmp_path}/gotcha", "$(id)"]))
    assert not (tmp_path / "gotcha").exists()


@pytest.mark.parametrize(
    ("argv", "timeout", "id"),
    [
        (["/bin/sh", "-c", "echo why >&2; exit 3"], 60, "command-failed"),
        (["/no/such/program"], 60, "command-missing"),
        (["/bin/sh", "-c", "sleep 60 & echo started; wait"], 1, "command-timeout"),
        (["/bin/sh", "-c", "kill -9 $$"], 60, "command-failed"),
    ],
)
def test_commands_that_fail(root: Path, base: Path, argv: List[str], timeout: int, id: str) -> None:
    with pytest.raises(StepError) as caught:
        run(root, base, command(argv, timeout))
    assert caught.value.id == id
    assert not (root / "current").is_symlink()
    assert not list((root / "releases").iterdir())


def test_command_that_writes_into_files_changes_the_release_alone(root: Path, base: Path, tmp_path: Path) -> None:
    """Also before the overlay, which links files of its staging venv."""
    wheel = venvs.make_wheel(tmp_path / "w", "extra", "1.0", {"extra.py": "EXTRA = True\n"})
    overlay, blobs = wheelhouse([("extra", "1.0", wheel)], [])
    append = "import sys; [open(path, 'a').write('# edited\\n') for path in sys.argv[1:]]"
    engine, extra = f"{venvs.SITE}/engine/__init__.py", f"{venvs.SITE}/extra.py"
    first = command(["{release}/bin/python", "-c", append, f"{{release}}/{engine}"])
    second = command(["{release}/bin/python", "-c", append, f"{{release}}/{engine}", f"{{release}}/{extra}"])
    before = venvs.tree_state(base)
    actions = [venvs.clone_action(base, "test-1", "d" * 64), first, overlay, second, venvs.activate_action()]
    plan = venvs.make_plan(root, base, "test-1", actions)
    result = apply_plan({"plan": plan, "blobs": blobs}, silent)
    assert venvs.tree_state(base) == before
    (staged,) = (root / "cache" / "staging").glob(f"*/{extra}")
    assert staged.read_text() == "EXTRA = True\n"
    release = root / "releases" / "test-1"
    assert (release / engine).read_text() == ENGINE + "# edited\n# edited\n"
    assert (release / extra).read_text() == "EXTRA = True\n# edited\n"
    own = [action["result"]["own_files"] for action in result["actions"] if action["step"] == "command"]
    assert 0 < own[1] < own[0], "what was copied for the first is not copied again"


@pytest.mark.parametrize("status", [0, 3])
def test_command_that_writes_into_a_file_too_large_to_copy(
    root: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr("ddtree_deploy.release.own.LARGE", 1000)
    large = f"{venvs.SITE}/large.py"
    (base / large).write_text("#" * 2000)
    wheel = venvs.make_wheel(tmp_path / "w", "extra", "1.0", {"extra.py": "#" * 3000})
    overlay, blobs = wheelhouse([("extra", "1.0", wheel)], [])
    script = f"echo more >> $0/{large}; echo more >> $0/{venvs.SITE}/extra.py; exit {status}"
    actions = [venvs.clone_action(base, "test-1", "d" * 64), overlay, command(["/bin/sh", "-c", script, "{release}"])]
    plan = venvs.make_plan(root, base, "test-1", [*actions, venvs.activate_action()])
    with pytest.raises(StepError, match=r"'a command' wrote into .*large\.py") as caught:
        apply_plan({"plan": plan, "blobs": blobs}, silent)
    error = caught.value
    assert (error.id, error.exit_code, error.where) == ("shared-file-changed", 5, str(base / large))
    assert error.hint is not None and "rename" in error.hint
    (staging,) = (root / "cache" / "staging").iterdir()
    assert sorted(error.details["also"]) == sorted([str(base / large), str(staging / venvs.SITE / "extra.py")])
    assert all(name in error.message for name in error.details["also"])
    assert not (staging / ".ddtree-staging.json").exists(), "the next run fills it anew"
    assert list((root / "releases").iterdir()) == []


def test_what_a_command_changed_is_in_record(root: Path, base: Path) -> None:
    engine, lib = f"{venvs.SITE}/engine/__init__.py", f"{venvs.SITE}/some_lib/__init__.py"
    script = f"cd $0; echo '# more' >> {engine}; cp {lib} new; echo '# more' >> new; mv new {lib}; touch {lib}x"
    result = run(root, base, command(["/bin/sh", "-c", script, "{release}"]))
    release = root / "releases" / "test-1"
    records = result["actions"][1]["result"]["records"]
    assert [Path(path).parent.name for path in records] == ["engine-1.0.dist-info", "some_lib-1.0.dist-info"]
    for record, file in zip(records, (engine, lib)):
        rows = {
            path: (digest, int(size)) for path, digest, size in parse_record((release / record).read_bytes()) if size
        }
        assert rows[file[len(venvs.SITE) + 1 :]] == record_hash_file(release / file)
    assert "more" not in (base / engine).read_text()


def test_a_command_that_is_interrupted_after_it_wrote_into_a_large_file(
    root: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddtree_deploy.release.own.LARGE", 1000)
    large = base / venvs.SITE / "large.py"
    large.write_text("#" * 2000)

    def interrupt(_: Progress) -> None:
        if large.stat().st_size > 2000:
            raise KeyboardInterrupt

    write = command(["/bin/sh", "-c", f"echo more >> $0/{venvs.SITE}/large.py; sleep 600", "{release}"], timeout=600)
    actions = [venvs.clone_action(base, "test-1", "d" * 64), write, venvs.activate_action()]
    with pytest.raises(StepError) as caught:
        apply_plan({"plan": venvs.make_plan(root, base, "test-1", actions), "blobs": {}}, interrupt)
    assert (caught.value.id, caught.value.where) == ("shared-file-changed", str(large))
    assert list((root / "releases").iterdir()) == []
