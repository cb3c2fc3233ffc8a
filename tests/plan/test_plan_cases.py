"""Plans as data: facts and settings in; packages, files, problems and steps out; then again: nothing to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
from planning import HERE, inputs_of, with_release

from ddtree_deploy.codec import dumps, from_dict
from ddtree_deploy.plan.build import build_plan
from ddtree_deploy.plan.model import Plan
from ddtree_deploy.plan.packages import same_tag

CASES = [
    pytest.param(case, id=f"{file.stem}: {case['name']}")
    for file in sorted((HERE / "cases").glob("*.json"))
    for case in json.loads(file.read_text("utf-8"))
]
CARRIED_OUT = [case for case in CASES if "error" not in case.values[0]["expect"].get("problems", {}).values()]
ALL_STEPS = ["clone", "overlay", "patch", "audit", "smoke", "activate"]


@pytest.mark.parametrize("case", CASES)
def test_case(case: dict[str, Any]) -> None:
    expect = case["expect"]
    plan = build_plan(inputs_of(case.get("with")))

    if "packages" in expect:
        assert {change.name: f"{change.change}: {change.reason}" for change in plan.packages} == expect["packages"]
    if "kept" in expect:
        assert plan.unchanged_packages == expect["kept"]
    if "files" in expect:
        assert [f"{f.change} {f.path} +{f.added} -{f.removed}" for f in plan.files] == expect["files"]
    if "problems" in expect:
        assert {problem.id: problem.severity for problem in plan.problems} == expect["problems"]
    text = "\n".join(f"{problem.message}\n{problem.hint}" for problem in plan.problems)
    for words in expect.get("says", []):
        assert words in text
    assert all(problem.exit_code == 3 for problem in plan.errors)
    assert [action.step for action in plan.actions] == expect.get("steps", [] if plan.errors else ALL_STEPS)


@pytest.mark.parametrize("case", CARRIED_OUT)
def test_again_there_is_nothing_to_do(case: dict[str, Any]) -> None:
    plan = build_plan(inputs_of(case.get("with")))
    assert not plan.errors
    again = build_plan(inputs_of(with_release(case.get("with", {}), plan, current=True)))
    assert again.release_id == plan.release_id
    assert not again.pending and again.actions == []
    assert again.packages == [] and again.files == []

    elsewhere = build_plan(inputs_of(with_release(case.get("with", {}), plan, current=False)))
    assert [action.step for action in elsewhere.actions] == ["activate"]
    assert elsewhere.previous == "older"


@pytest.mark.parametrize("case", CASES)
def test_a_plan_survives_json(case: dict[str, Any]) -> None:
    plan = build_plan(inputs_of(case.get("with")))
    assert from_dict(Plan, json.loads(dumps(plan))) == plan


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        ("cu130", "cu130", True),
        ("cu13", "cu130", True),  # the facts know the CUDA major only
        ("cu130", "cu13", True),
        (None, "cu130", True),
        ("cu12", "cu130", False),
        ("cu128", "cu130", False),
        ("cpu", "cu130", False),
    ],
)
def test_abi_tags_that_are_the_same(left: str | None, right: str, same: bool) -> None:
    assert same_tag(left, right) == same
