"""The question "would this mix work?" as the planner asks it, and what it makes of the answer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ddtree_deploy.errors import ExitCode
from ddtree_deploy.plan.mix import preview_params, with_findings
from ddtree_deploy.plan.model import Action, Plan

DONOR = {"kind": "donor", "location": "/opt/donor", "host": None}
PARAMS: dict[str, Any] = {
    "source": DONOR,
    "install": [{"name": "torch", "version": "2.11.0", "hashes": []}],
    "remove": ["sgl-kernel", "torch"],
    "preview": True,
}
PLAN = Plan("gpu1", "/opt/ddtree", "/opt/base", "p", "p-1", "1", actions=[Action("02-overlay", "overlay", "", PARAMS)])


def planned(**changes: Any) -> Plan:
    return replace(PLAN, actions=[replace(PLAN.actions[0], params={**PARAMS, **changes})])


def test_a_donor_on_the_host_is_looked_at() -> None:
    params = preview_params(PLAN)
    assert params is not None
    assert (params["base"], params["source"], params["take"]) == ("/opt/base", "/opt/donor", ["torch"])
    assert params["remove"] == ["sgl-kernel", "torch"] and params["root"] == "/opt/ddtree"


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, actions=[]),
        planned(preview=False),  # a playbook without the audit
        planned(source={**DONOR, "host": "gpu2"}),
        planned(source={"kind": "index", "location": None, "host": None}),
        planned(install=[]),
        planned(rest={"source": {"kind": "index"}, "install": [{"name": "numpy"}]}),
    ],
)
def test_nothing_is_asked_where_the_files_are_not_there(plan: Plan) -> None:
    assert preview_params(plan) is None


def test_errors_become_problems_and_the_plan_loses_its_actions() -> None:
    finding = {"id": "undefined-torch-symbol", "severity": "error", "message": "x.so: undefined symbol y", "fix": "do"}
    plan = with_findings(PLAN, {"findings": [finding, {**finding, "severity": "warning"}]})
    (problem,) = plan.problems
    assert (problem.id, problem.severity, problem.exit_code) == ("mix-would-fail", "error", int(ExitCode.PROBLEMS))
    assert "undefined symbol y" in problem.message and problem.hint == "do"
    assert not plan.pending


def test_a_mix_that_works_leaves_the_plan_as_it_is() -> None:
    assert with_findings(PLAN, {"findings": [{"severity": "note"}]}) is PLAN
