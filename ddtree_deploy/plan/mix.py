"""Would the planned packages work together? Asked of the host while planning, where the source's files are there.

That is so for a donor on the host itself. What comes from an index or a wheelhouse is staged by the overlay first,
which asks the same question before it touches the release.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ddtree_deploy.errors import ExitCode
from ddtree_deploy.plan.model import Plan, Problem

_SHOWN = 5


def preview_params(plan: Plan) -> dict[str, Any] | None:
    """Parameters of the op ``abi.preview`` for the plan's overlay; None where there is nothing to look at yet."""
    overlay = next((action for action in plan.actions if action.step == "overlay"), None)
    if overlay is None or not overlay.params.get("preview"):
        return None
    source = overlay.params["source"]
    take = [package["name"] for package in overlay.params["install"]]
    if source["kind"] != "donor" or source.get("host") or not take or overlay.params.get("rest"):
        return None  # files that are elsewhere, or still to be fetched
    if source.get("without_record"):  # the overlay first makes of them what can be read
        return None
    return {
        "root": plan.root,
        "base": plan.base,
        "remove": overlay.params["remove"],
        "source": source["location"],
        "take": take,
        "environment": {},
    }


def with_findings(plan: Plan, report: Mapping[str, Any]) -> Plan:
    """The plan with the audit's errors as problems, and then without actions; warnings stay with the audit."""
    errors = [finding for finding in report["findings"] if finding["severity"] == "error"]
    if not errors:
        return plan
    return replace(plan, actions=[], problems=[*map(_problem, errors[:_SHOWN]), *plan.problems])


def _problem(finding: Mapping[str, Any]) -> Problem:
    message = f"the planned packages do not fit together ({finding['id']}): {finding['message']}"
    return Problem("error", "mix-would-fail", message, finding["fix"] or None, int(ExitCode.PROBLEMS))
