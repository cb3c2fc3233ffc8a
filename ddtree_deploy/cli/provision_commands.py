"""``facts``, ``plan`` and ``provision``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddtree_deploy.cli.context import AppContext, app_context
from ddtree_deploy.cli.hosts import RenderHost, Work, finish, run_on_hosts
from ddtree_deploy.cli.parameters import Hosts, Playbook, Profile, Source, complete_hosts

if TYPE_CHECKING:
    from rich.console import Console

    from ddtree_deploy.agent.protocol import ProgressSink
    from ddtree_deploy.fleet import HostResult
    from ddtree_deploy.inventory.load import Inventory
    from ddtree_deploy.inventory.settings import HostSettings
    from ddtree_deploy.plan.gather import Choices
    from ddtree_deploy.plan.model import Plan
    from ddtree_deploy.sessions import Connector

PlanHosts = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="HOST",
        help="Hosts, groups, patterns, or all. May be left out with --facts.",
        autocompletion=complete_hosts,
    ),
]
FactsFile = Annotated[
    Path | None,
    typer.Option("--facts", metavar="FILE", help="Plan from saved facts: no host, no network. For one host."),
]
WithoutGpu = Annotated[
    bool, typer.Option("--without-gpu", help="Prepare a GPU profile on a host that has no GPU (yet).")
]


def facts(
    context: typer.Context,
    hosts: Hosts,
    save: Annotated[
        Path | None,
        typer.Option("--save", metavar="FILE", help="Write the facts for `plan --facts`; {host} stands for the host."),
    ] = None,
) -> None:
    """Show what a host is: GPUs, driver, glibc, base venv, engine, disks, releases and services."""
    from ddtree_deploy.cli.facts_view import render_facts
    from ddtree_deploy.errors import InputError
    from ddtree_deploy.plan.gather import facts_of_host, save_facts

    app = app_context(context)
    selected = app.hosts(hosts)
    if save is not None and len(selected) > 1 and "{host}" not in str(save):
        hint = "Write a name such as facts/{host}.json."
        raise InputError(
            "one-file-for-many", f"{save} cannot hold the facts of several hosts", where="--save", hint=hint
        )

    def work(host: HostSettings, connect: Connector, sink: ProgressSink) -> HostResult:
        from ddtree_deploy.codec import to_dict
        from ddtree_deploy.fleet import HostResult

        with connect(host) as session:
            found = facts_of_host(lambda op, params: session.call(op, params, sink), host)
        if save is not None:
            save_facts(found, Path(str(save).replace("{host}", host.name)))
        return HostResult(host.name, 0, {"facts": to_dict(found)}, found)

    run_on_hosts(app, "facts", selected, work, lambda console, result: render_facts(console, result.host, result.value))


def plan(
    context: typer.Context,
    hosts: PlanHosts = None,
    facts: FactsFile = None,
    profile: Profile = None,
    playbook: Playbook = None,
    source: Source = None,
    without_gpu: WithoutGpu = False,
) -> None:
    """Show what `provision` would do, with a diff of packages and files. Exit 2 with changes pending, else 0."""
    _provision(app_context(context), "plan", hosts, _choices(profile, playbook, source, without_gpu), facts, True)


def provision(
    context: typer.Context,
    hosts: PlanHosts = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan; the same as `plan`.")] = False,
    facts: FactsFile = None,
    profile: Profile = None,
    playbook: Playbook = None,
    source: Source = None,
    without_gpu: WithoutGpu = False,
) -> None:
    """Build the release and make it current. Several hosts: the first alone, then the others in parallel."""
    from ddtree_deploy.errors import InputError

    if facts is not None and not dry_run:
        hint = "Add --dry-run; to provision, leave --facts out: facts are asked for anew."
        raise InputError("usage", "--facts is for planning only", where="--facts", hint=hint)
    app = app_context(context)
    _provision(app, "provision", hosts, _choices(profile, playbook, source, without_gpu), facts, dry_run)


def _choices(profile: str | None, playbook: str | None, source: str | None, without_gpu: bool) -> Choices:
    from ddtree_deploy.plan.gather import Choices

    return Choices(profile, playbook, source, without_gpu)


def _provision(
    app: AppContext,
    command: str,
    names: list[str] | None,
    choices: Choices,
    facts_file: Path | None,
    dry_run: bool,
) -> None:
    from ddtree_deploy.errors import InputError

    if facts_file is not None:
        _plan_offline(app, command, names or [], choices, facts_file)
        return
    if not names:
        raise InputError("usage", "no HOST is given", hint=f"ddtree-deploy {command} --help")
    inventory = app.inventory()
    selected = inventory.select(names)
    several = len(selected) > 1
    work = _work(app, inventory, choices, dry_run, several)
    run_on_hosts(app, command, selected, work, _draw(app, shows_plan=dry_run, several=several), canary=not dry_run)


def _work(app: AppContext, inventory: Inventory, choices: Choices, dry_run: bool, several: bool) -> Work:
    def work(host: HostSettings, connect: Connector, sink: ProgressSink) -> HostResult:
        from ddtree_deploy.plan.gather import prepare
        from ddtree_deploy.provision import provision_host

        def show(plan: Plan) -> None:
            if not several and not app.output.json:
                app.output.show(lambda console: _draw_plan(console, plan, app.output.verbose, executed=True))

        prepared = prepare(host, choices, sink)
        return provision_host(prepared, connect, inventory, dry_run=dry_run, sink=sink, on_plan=show)

    return work


def _plan_offline(app: AppContext, command: str, names: Sequence[str], choices: Choices, file: Path) -> None:
    from ddtree_deploy.errors import InputError
    from ddtree_deploy.plan.gather import host_for_facts, load_facts, prepare
    from ddtree_deploy.provision import plan_offline, planned

    found = load_facts(file)
    inventory = app.inventory()
    selected = inventory.select(names) if names else [host_for_facts(found, inventory)]
    if len(selected) > 1:
        raise InputError("usage", "--facts is about one host", where="--facts", hint="Name one host, or none.")
    host = selected[0]
    prepared = prepare(host, choices)
    plan = plan_offline(prepared, found, str(file))
    finish(app, command, [planned(plan)], _draw(app, shows_plan=True))


def _draw(app: AppContext, *, shows_plan: bool, several: bool = False) -> RenderHost:
    """What is printed of a host at the end. One host that was provisioned has shown its plan before; of several, only a
    plan that could not be carried out is shown."""

    def draw(console: Console, result: HostResult) -> None:
        from rich.text import Text

        from ddtree_deploy.plan.render import last_line

        plan: Plan = result.value
        if shows_plan or (several and (plan.errors or app.output.verbose)):
            _draw_plan(console, plan, app.output.verbose, executed=not shows_plan)
        if "changed" not in result.data:
            return
        for note in result.data.get("result", {}).get("notes", []):
            text = f"{result.host}: {note['severity']}: {note['message']} [{note['id']}]"
            console.print(Text(text, style="yellow" if note["severity"] == "warning" else "dim"))
        if result.data["changed"]:
            before = f"; before it was {plan.previous}" if plan.previous else ""
            console.print(Text(f"{result.host}: {plan.release_id} is current{before}", style="green"))
        else:
            console.print(last_line(plan))

    return draw


def _draw_plan(console: Console, plan: Plan, verbose: bool, executed: bool) -> None:
    from ddtree_deploy.plan.render import render_plan

    render_plan(console, plan, verbose=verbose, executed=executed)
