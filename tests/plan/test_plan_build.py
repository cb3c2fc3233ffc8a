from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest
from planning import HERE, inputs_of, release, with_release

from ddtree_deploy.errors import InputError
from ddtree_deploy.plan.build import build_plan
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action

# Everything that would make a plan depend on more than its inputs. Imports are over when the hook is set.
PURITY = """
import json, sys, time, random
sys.path.insert(0, {here!r})
from planning import inputs_of
from ddtree_deploy.plan.build import build_plan
from ddtree_deploy.codec import dumps
inputs = inputs_of()
first = dumps(build_plan(inputs))
seen = []
def hook(event, arguments):
    if event.split(".")[0] in {{"open", "os", "socket", "subprocess", "shutil", "pathlib", "glob"}}:
        seen.append((event, str(arguments)[:200]))
sys.addaudithook(hook)
for module in (time,):
    for name in ("time", "time_ns", "monotonic", "gmtime", "localtime"):
        setattr(module, name, None)
again = dumps(build_plan(inputs))
assert again == first, "the same inputs gave another plan"
assert not seen, seen
"""


def test_planning_is_pure() -> None:
    code = PURITY.format(here=str(HERE))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_inputs_are_not_changed() -> None:
    inputs = inputs_of()
    before = copy.deepcopy(inputs)
    build_plan(inputs)
    assert inputs == before


def test_actions_are_numbered_in_the_playbooks_order() -> None:
    plan = build_plan(inputs_of())
    assert [action.id for action in plan.actions] == [
        "01-clone",
        "02-overlay",
        "03-patch",
        "04-audit",
        "05-smoke",
        "06-activate",
    ]


def test_each_step_gets_its_own_options() -> None:
    steps = [{"step": "clone", "options": {"a": 1}}, {"step": "overlay", "options": {"b": 2}}, {"step": "clone"}]
    seen: list[tuple[str, dict[str, object]]] = []

    def planner(name: str):  # type: ignore[no-untyped-def]
        def plan(inputs: PlanInputs, draft: PlanDraft) -> list[Action]:
            seen.append((name, dict(draft.options)))
            return [Action(id=name, step=name, summary=name)]

        return plan

    plan = build_plan(inputs_of({"playbook": {"steps": steps}}), planner)
    assert seen == [("clone", {"a": 1}), ("overlay", {"b": 2}), ("clone", {})]
    assert [action.id for action in plan.actions] == ["01-clone", "02-overlay", "03-clone"]


@pytest.mark.parametrize("name", ["nonsense", "context", "../x", "", "_private"])
def test_a_step_that_does_not_exist_is_bad_input(name: str) -> None:
    with pytest.raises(InputError) as caught:
        build_plan(inputs_of({"playbook": {"steps": [{"step": name}]}}))
    assert caught.value.id == "unknown-step"


def test_a_release_that_is_not_complete_is_in_the_way() -> None:
    plan = build_plan(inputs_of())
    broken = build_plan(inputs_of(with_release({}, plan, current=False, complete=False)))
    assert [problem.id for problem in broken.errors] == ["release-incomplete"]
    assert "prune" in str(broken.errors[0].hint)
    assert not broken.pending
    current = build_plan(inputs_of(with_release({}, plan, current=True, complete=False)))
    assert "rollback" in str(current.errors[0].hint)  # prune would keep it
    foreign = build_plan(inputs_of({"facts": {"foreign": ["other", plan.release_id]}}))
    assert [problem.id for problem in foreign.errors] == ["release-incomplete"]
    assert "prune" not in str(foreign.errors[0].hint)  # it would leave it alone


def test_a_finished_host_with_a_new_problem_is_told_of_it() -> None:
    plan = build_plan(inputs_of())
    patch = with_release({"facts": {"driver": "535.1", "driver_cuda": "12.2"}}, plan, current=True)
    again = build_plan(inputs_of(patch))
    assert [problem.id for problem in again.errors] == ["driver-too-old"]


def test_the_current_release_is_named_as_previous() -> None:
    there = {"current": "engine-0.9", "releases": [release("engine-0.9", current=True)]}
    assert build_plan(inputs_of({"facts": there})).previous == "engine-0.9"


@pytest.mark.parametrize("releases", [[], [release("engine-0.8")], [release("engine-0.9", complete=False)]])
def test_a_current_that_leads_to_no_release_is_no_release_to_go_back_to(releases: list[dict[str, Any]]) -> None:
    plan = build_plan(inputs_of({"facts": {"current": "engine-0.9", "releases": releases}}))
    assert plan.previous is None
    (precondition,) = plan.actions[-1].preconditions
    assert precondition.params == {"release": "engine-0.9"}  # where it leads must not change meanwhile


def test_a_patch_set_is_for_the_engine_however_that_is_written() -> None:
    for changes in ({"version": "1.0.0"}, {"distribution": "SGLang"}):
        assert build_plan(inputs_of({"patch_set": changes})).errors == []
    for changes in ({"version": "1.0.1"}, {"distribution": "vllm"}):
        assert [problem.id for problem in build_plan(inputs_of({"patch_set": changes})).errors] == ["patch-set-version"]
