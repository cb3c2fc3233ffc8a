"""Planning and provisioning one host: gather, plan, send what the plan needs, apply. No command line in here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddtree_deploy.agent.protocol import ProgressSink, silent
from ddtree_deploy.codec import to_dict
from ddtree_deploy.donor.transfer import action_to_bring_for, bring, way_to
from ddtree_deploy.errors import DeployError, ExitCode, InputError, ProblemsError, StepError
from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.fleet import HostResult, worst
from ddtree_deploy.inventory.load import Inventory
from ddtree_deploy.plan.build import build_plan
from ddtree_deploy.plan.gather import Prepared, check_facts, collect_facts, donor_params
from ddtree_deploy.plan.mix import preview_params, with_findings
from ddtree_deploy.plan.model import Plan
from ddtree_deploy.plan.source_choice import donor_host
from ddtree_deploy.sessions import Connector, Session


def plan_exit_code(plan: Plan) -> int:
    """3 (or what the problem says) when something stands in the way, 2 with changes pending, 0 when all is done."""
    if plan.errors:
        return worst([problem.exit_code for problem in plan.errors])
    return int(ExitCode.CHANGES if plan.pending else ExitCode.OK)


def plan_error(plan: Plan) -> DeployError | None:
    """The plan's errors as one: the first with the plan's exit code in full, all in ``details``.

    A ProblemsError where all that was found is that the packages would not fit together, else an InputError.
    """
    if not plan.errors:
        return None
    code = plan_exit_code(plan)
    first = next(problem for problem in plan.errors if problem.exit_code == code)
    others = len(plan.errors) - 1
    message = first.message + (f" (and {others} more)" if others else "")
    kind = ProblemsError if code == ExitCode.PROBLEMS else InputError
    error = kind(first.id, message, where=plan.host, hint=first.hint)
    error.details = {"problems": [to_dict(problem) for problem in plan.errors]}
    return error


def planned(plan: Plan) -> HostResult:
    """The result of a host that was planned only."""
    return HostResult(plan.host, plan_exit_code(plan), {"plan": to_dict(plan)}, plan, plan_error(plan))


def plan_offline(prepared: Prepared, facts: HostFacts, file: str, donor: HostFacts | None = None) -> Plan:
    """Plan from facts saved in ``file``, and from those of the donor: no host, no network, no engine."""
    check_facts(facts, prepared.settings, file)
    return build_plan(prepared.inputs(facts, donor if prepared.source.kind == "donor" else None))


def plan_host(
    prepared: Prepared, session: Session, connect: Connector, inventory: Inventory | None, sink: ProgressSink = silent
) -> Plan:
    """Ask the host (and the donor's, where there is one) for facts, and plan."""
    facts = collect_facts(lambda op, params: session.call(op, params, sink), prepared.facts_params())
    donor = None
    asked = donor_params(prepared, inventory)
    if asked is not None:
        host, params = asked
        if host.name == prepared.host.name:
            donor = collect_facts(lambda op, args: session.call(op, args, sink), params)
        else:
            with connect(host) as other:
                donor = collect_facts(lambda op, args: other.call(op, args, sink), params)
    plan = build_plan(prepared.inputs(facts, donor))
    asked_mix = preview_params(plan)
    return with_findings(plan, session.call("abi.preview", asked_mix, sink)) if asked_mix is not None else plan


def provision_host(
    prepared: Prepared,
    connect: Connector,
    inventory: Inventory | None,
    *,
    dry_run: bool = False,
    sink: ProgressSink = silent,
    on_plan: Callable[[Plan], None] = lambda plan: None,
) -> HostResult:
    """Plan one host and, unless ``dry_run``, execute the plan. ``on_plan`` sees it before anything is done."""
    name = prepared.host.name
    with connect(prepared.host) as session:
        plan = plan_host(prepared, session, connect, inventory, sink)
        if not dry_run:
            on_plan(plan)
        if dry_run or plan.errors:
            return planned(plan)
        data = {"plan": to_dict(plan)}
        if not plan.pending:
            return HostResult(name, 0, {**data, "changed": False}, plan)
        try:
            result = _apply(prepared, session, plan, connect, inventory, sink)
        except DeployError as error:
            return HostResult(name, int(error.exit_code), data, error=error)
    return HostResult(name, 0, {**data, "changed": bool(result.get("changed", True)), "result": result}, plan)


def _apply(
    prepared: Prepared,
    session: Session,
    plan: Plan,
    connect: Connector,
    inventory: Inventory | None,
    sink: ProgressSink,
) -> dict[str, Any]:
    blobs = session.put_blobs(find_blobs(prepared, plan), plan.root, sink)
    params = {"plan": to_dict(plan), "blobs": blobs, "indexes": prepared.index_urls()}
    action = action_to_bring_for(plan)
    if action is not None:
        host = donor_host(prepared.source, prepared.host, inventory)
        with connect(host) as donor:
            way = way_to(host, prepared.host)
            params["donor"] = bring(action, plan.root, plan.base, donor, session, way, sink).to_params()
    return session.call("plan.apply", params, sink)


def find_blobs(prepared: Prepared, plan: Plan) -> list[Path]:
    """Files on the controller that the plan's actions ask for, by their sha256."""
    known = known_blobs(prepared)
    paths: list[Path] = []
    for action in plan.actions:
        for blob in action.params.get("blobs", []):
            path = known.get(blob["sha256"])
            if path is None:
                message = f"{action.id} needs {blob.get('name')} (sha256 {blob['sha256'][:12]}…), which is not at hand"
                raise StepError("blob-unknown", message, hint="Plan again: a file changed since.")
            if path not in paths:
                paths.append(path)
    return paths


def known_blobs(prepared: Prepared) -> Mapping[str, Path]:
    """sha256 -> path of everything that an action may ask for."""
    known = {extra.sha256: Path(extra.source) for extra in prepared.profile.extra_files}
    known.update({wheel.sha256: Path(wheel.path) for wheel in prepared.wheels})
    if prepared.uv is not None:
        known[prepared.uv.sha256] = Path(prepared.uv.path)
    return known
