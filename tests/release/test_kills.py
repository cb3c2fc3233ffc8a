"""SIGKILL at every line of the journal, inside of steps, at random moments: ``current`` works, the next run ends."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import venvs
from test_executor import clean, params, verify
from verify.release_double import GOOD

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.codec import to_dict
from ddtree_deploy.plan.model import Action
from ddtree_deploy.release.executor import apply_plan
from ddtree_deploy.release.journal import read_journal
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.store import current_release

# For each line, forks a child that applies a plan, and dies as hard as there is right after the n-th return of one of
# our functions. Says the child's pid, then how it ended. Forks, because what is imported would take most of the time.
RUN = """
import functools, importlib, json, operator, os, signal, sys
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.release.executor import apply_plan
import ddtree_deploy.abi.audit, ddtree_deploy.patching.engine, ddtree_deploy.verify.checks

def run(file, module, path, count):
    owner, _, name = path.rpartition(".")
    place = importlib.import_module(module)
    place = operator.attrgetter(owner)(place) if owner else place
    function, calls = getattr(place, name), []

    @functools.wraps(function)
    def dying(*args, **kwargs):
        result = function(*args, **kwargs)
        calls.append(None)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(place, name, dying)
    apply_plan(json.load(open(file)), silent)

while asked := sys.stdin.readline():
    child = os.fork()
    if child == 0:
        for number in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        try:
            run(*json.loads(asked))
        finally:
            os._exit(sys.exc_info()[0] is not None)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Runs:
    """A context manager: the process that forks."""

    def __enter__(self) -> Runs:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([sys.executable, "-c", RUN], stdin=pipe, stdout=pipe, text=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def start(self, arguments: Dict[str, Any], folder: Path, function: Tuple[str, str], count: int) -> int:
        """Apply the plan in a child that is killed when ``function`` (module, name) returned ``count`` times."""
        assert self._process.stdin is not None
        file = folder / "params.json"
        file.write_text(json.dumps(arguments))
        self._process.stdin.write(json.dumps([str(file), *function, count]) + "\n")
        self._process.stdin.flush()
        return self._number()

    def wait(self) -> int:
        return self._number()

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def runs() -> Iterator[Runs]:
    with Runs() as runs:
        yield runs


JOURNAL = ("ddtree_deploy.release.journal", "Journal.append")
NEVER = 0

# Inside of patch, audit and smoke: after the n-th return of this function.
INSIDE = {
    "patch-links-broken": ("ddtree_deploy.steps.patch", "break_link", 1),
    "patch-one-file-written": ("ddtree_deploy.patching.transaction", "_write_new", 1),
    "patch-all-written": ("ddtree_deploy.patching.engine", "replace_files", 1),
    "audit-begun": ("ddtree_deploy.abi.audit", "_Clock.phase", 2),
    "audit-done": ("ddtree_deploy.abi.audit", "audit_environment", 1),
    "smoke-a-probe-runs": ("ddtree_deploy.verify.runner", "_Conversation._read_events", 1),
    "smoke-before-its-log": ("ddtree_deploy.verify.checks", "run_checks", 1),
    "smoke-at-its-log": ("ddtree_deploy.steps.smoke", "replace_file", 1),
}


@pytest.fixture
def engine_base(base: Path) -> Path:
    """The base venv with stand-ins (test doubles) of what the smoke checks import."""
    for name, text in GOOD.items():
        file = base / venvs.SITE / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))
    return base


def all_steps(root: Path, base: Path, wheels: Dict[str, Path], number: int) -> Dict[str, Any]:
    """Clone, overlay, patch, audit, smoke, activate."""
    arguments = params(root, base, wheels, f"test-{number}", f"{number:064x}")
    checks = [
        venvs.patch_action(venvs.patch_set()),
        Action(id="05-audit", step="audit", summary="audit"),
        Action(id="06-smoke", step="smoke", summary="smoke", params={"environment": {}}),
    ]
    actions = [action for action in arguments["plan"]["actions"] if action["step"] != "command"]
    arguments["plan"]["actions"] = [*actions[:-1], *map(to_dict, checks), actions[-1]]
    return arguments


def verify_patched(root: Path) -> str:
    """As ``verify``, of a release with the patch set: whole, or the engine does not import."""
    code = "import engine, engine.tree, some_lib; print(engine.VERSION)"
    assert venvs.run([root / "current" / "bin" / "python", "-c", code]).stdout == "1.0-tree\n"
    return (root / "current").resolve().name


@pytest.mark.parametrize("where", INSIDE)
def test_killed_inside_of_patch_audit_and_smoke(
    root: Path, engine_base: Path, wheels: Dict[str, Path], tmp_path: Path, runs: Runs, where: str
) -> None:
    apply_plan(all_steps(root, engine_base, wheels, 0), silent)
    before = venvs.tree_state(engine_base)
    module, function, count = INSIDE[where]
    arguments = all_steps(root, engine_base, wheels, 1)
    assert _child(runs, arguments, tmp_path, (module, function), count) == -signal.SIGKILL
    begun = [entry for entry in read_journal(root / "journal.jsonl") if entry["event"] == "begin"]
    assert begun[-1]["step"] == where.partition("-")[0]
    assert verify_patched(root) == "test-0"
    result = apply_plan(arguments, silent)
    assert "previous-run-interrupted" in [note["id"] for note in result["notes"]]
    assert verify_patched(root) == "test-1"
    assert clean(root)
    assert venvs.tree_state(engine_base) == before


@pytest.mark.e2e
def test_killed_at_every_journal_line_around_patch_audit_and_smoke(
    root: Path, engine_base: Path, wheels: Dict[str, Path], tmp_path: Path, runs: Runs
) -> None:
    apply_plan(all_steps(root, engine_base, wheels, 0), silent)
    before = venvs.tree_state(engine_base)
    steps = [entry.get("step") for entry in read_journal(root / "journal.jsonl")]
    lines = [number for number, step in enumerate(steps, 1) if step in ("patch", "audit", "smoke")]
    assert len(lines) == 6  # begin and end of each
    for number in lines:
        arguments = all_steps(root, engine_base, wheels, number)
        assert _child(runs, arguments, tmp_path, JOURNAL, number) == -signal.SIGKILL, number
        verify_patched(root)
        assert venvs.tree_state(engine_base) == before
    assert apply_plan(arguments, silent)["current"] == f"test-{lines[-1]}"
    assert verify_patched(root) == f"test-{lines[-1]}"
    assert clean(root)


def test_same_plan_again_after_a_kill_between_name_and_switch(
    root: Path, base: Path, wheels: Dict[str, Path], tmp_path: Path, runs: Runs
) -> None:
    arguments = params(root, base, wheels, "test-1", "a" * 64)
    journal_lines = _kill_after_event(runs, root, arguments, tmp_path, "activating")
    assert journal_lines[-1]["event"] == "activating"
    assert current_release(Layout(root)) is None
    result = apply_plan(arguments, silent)
    assert [action["step"] for action in result["actions"]] == ["activate"]
    assert "previous-run-interrupted" in [note["id"] for note in result["notes"]]
    assert verify(root) == "test-1"


@pytest.mark.e2e
def test_killed_at_every_journal_line(
    root: Path, base: Path, wheels: Dict[str, Path], tmp_path: Path, runs: Runs
) -> None:
    apply_plan(params(root, base, wheels, "test-0", "0" * 64), silent)
    before = venvs.tree_state(base)
    lines_of_a_run = _lines(root)
    assert lines_of_a_run >= 10
    for number in range(1, lines_of_a_run + 1):
        release_id, digest = f"test-{number}", f"{number:064x}"
        arguments = params(root, base, wheels, release_id, digest)
        status = _child(runs, arguments, tmp_path, JOURNAL, number)
        assert status == -signal.SIGKILL, number
        verify(root)  # whatever the moment, current works
        result = apply_plan(arguments, silent)
        assert result["current"] == release_id
        assert verify(root) == release_id
        assert clean(root)
    assert venvs.tree_state(base) == before


@pytest.mark.e2e
def test_killed_at_random_moments(root: Path, base: Path, wheels: Dict[str, Path], tmp_path: Path, runs: Runs) -> None:
    began = time.monotonic()
    apply_plan(params(root, base, wheels, "test-0", "0" * 64), silent)
    usual = time.monotonic() - began
    before = venvs.tree_state(base)
    moments = random.Random(7)
    for number in range(1, 13):
        arguments = params(root, base, wheels, f"test-{number}", f"{number:064x}")
        if number % 3 == 0:  # half of the runs find their packages staged, so the moments fall into other steps
            subprocess.run(["rm", "-rf", str(root / "cache" / "staging")], check=True)
        child = runs.start(arguments, tmp_path, JOURNAL, NEVER)
        time.sleep(moments.uniform(0.0, usual + 0.05))
        with contextlib.suppress(ProcessLookupError):  # done before
            os.kill(child, signal.SIGKILL)
        runs.wait()
        verify(root)
        if number % 2 == 0:
            apply_plan(arguments, silent)
            assert verify(root) == f"test-{number}"
            assert clean(root)
    assert venvs.tree_state(base) == before


def _lines(root: Path) -> int:
    return len(read_journal(root / "journal.jsonl"))


def _child(runs: Runs, arguments: Dict[str, Any], folder: Path, function: Tuple[str, str], count: int) -> int:
    runs.start(arguments, folder, function, count)
    return runs.wait()


def _kill_after_event(
    runs: Runs, root: Path, arguments: Dict[str, Any], folder: Path, event: str
) -> List[Dict[str, Any]]:
    """Run the plan in a child that is killed right after it wrote the first journal line ``event``."""
    apply_plan(arguments, silent)  # which line it is
    events = [entry["event"] for entry in read_journal(root / "journal.jsonl")]
    subprocess.run(["rm", "-rf", str(root)], check=True)
    assert _child(runs, arguments, folder, JOURNAL, events.index(event) + 1) == -signal.SIGKILL
    return read_journal(root / "journal.jsonl")
