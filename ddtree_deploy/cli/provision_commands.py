"""``facts``, ``plan`` and ``provision``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddtree_deploy.cli.context import AppContext, app_context
from ddtree_deploy.cli.hosts import RenderHost, Work, finish, run_on_hosts
from ddtree_deploy.cli.parameters import From, Hosts, Playbook, Profile, Source, TakeEdited, complete_hosts

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
DonorFactsFile = Annotated[
    Path | None,
    typer.Option("--donor-facts", metavar="FILE", help="With --facts: the donor's saved facts."),
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
    base: Annotated[
        str | None, typer.Option("--base", metavar="PATH", help="Look at this venv instead of the host's base venv.")
    ] = None,
) -> None:
    """Show what a host is: GPUs, driver, glibc, base venv, engine, disks, releases and services."""
    from ddtree_deploy.cli.facts_view import render_facts
    from ddtree_deploy.errors import InputError
    from ddtree_deploy.plan.gather import facts_of_host, save_facts

    app = app_context(context)
    if base is not None and not base.startswith(("/", "~/")):
        message = f"{base!r} is not an absolute path on the host"
        raise InputError("bad-path", message, where="--base", hint="Begin it with / or ~/.")
    selected = [replace(host, base=base) if base else host for host in app.hosts(hosts)]
    if save is not None and len(selected) > 1 and "{host}" not in str(save):
        hint = "Write a name such as facts/{host}.json."
        raise InputError(
            "one-file-for-many", f"{save} cannot hold the facts of several hosts", where="--save", hint=hint
        )

    def file_of(host: str) -> Path | None:
        return None if save is None else Path(str(save).replace("{host}", host))

    def work(host: HostSettings, connect: Connector, sink: ProgressSink) -> HostResult:
        from ddtree_deploy.codec import to_dict
        from ddtree_deploy.fleet import HostResult

        with connect(host) as session:
            found = facts_of_host(lambda op, params: session.call(op, params, sink), host)
        file = file_of(host.name)
        if file is not None:
            save_facts(found, file)
        return HostResult(host.name, 0, {"facts": to_dict(found)}, found)

    def draw(console: Console, result: HostResult) -> None:
        from rich.text import Text

        render_facts(console, result.host, result.value)
        file = file_of(result.host)
        if file is not None:
            console.print(Text(f"{result.host}: saved in {file}"))

    run_on_hosts(app, "facts", selected, work, draw)


def plan(
    context: typer.Context,
    hosts: PlanHosts = None,
    facts: FactsFile = None,
    donor_facts: DonorFactsFile = None,
    profile: Profile = None,
    playbook: Playbook = None,
    source: Source = None,
    donor: From = None,
    take_edited: TakeEdited = False,
    without_gpu: WithoutGpu = False,
) -> None:
    """Show what `provision` would do, with a diff of packages and files. Exit 2 with changes pending, else 0."""
    choices = _choices(profile, playbook, source, without_gpu, donor, take_edited)
    _provision(app_context(context), "plan", hosts, choices, _files(facts, donor_facts), True)


def provision(
    context: typer.Context,
    hosts: PlanHosts = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the plan; the same as `plan`.")] = False,
    facts: FactsFile = None,
    donor_facts: DonorFactsFile = None,
    profile: Profile = None,
    playbook: Playbook = None,
    source: Source = None,
    donor: From = None,
    take_edited: TakeEdited = False,
    without_gpu: WithoutGpu = False,
) -> None:
    """Build the release and make it current. Several hosts: the first alone, then the others in parallel."""
    from ddtree_deploy.errors import InputError

    if facts is not None and not dry_run:
        hint = "Add --dry-run; to provision, leave --facts out: facts are asked for anew."
        raise InputError("usage", "--facts is for planning only", where="--facts", hint=hint)
    app = app_context(context)
    choices = _choices(profile, playbook, source, without_gpu, donor, take_edited)
    _provision(app, "provision", hosts, choices, _files(facts, donor_facts), dry_run)


def _choices(
    profile: str | None,
    playbook: str | None,
    source: str | None,
    without_gpu: bool,
    donor: str | None,
    take_edited: bool,
) -> Choices:
    from ddtree_deploy.plan.gather import Choices

    return Choices(profile, playbook, source, without_gpu, donor, take_edited)


def _files(facts: Path | None, donor: Path | None) -> tuple[Path, Path | None] | None:
    """Saved facts to plan from: the host's, and the donor's."""
    from ddtree_deploy.errors import InputError

    if facts is None and donor is not None:
        hint = "Add --facts FILE; with a host that is asked, its donor is asked too."
        raise InputError("usage", "--donor-facts needs --facts", where="--donor-facts", hint=hint)
    return None if facts is None else (facts, donor)


def _provision(
    app: AppContext,
    command: str,
    names: list[str] | None,
    choices: Choices,
    files: tuple[Path, Path | None] | None,
    dry_run: bool,
) -> None:
    from ddtree_deploy.errors import InputError

    if files is not None:
        _plan_offline(app, command, names or [], choices, *files)
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
                app.output.show_first(lambda console: _draw_plan(console, plan, app.output.verbose, executed=True))

        prepared = prepare(host, choices, sink, inventory)
        return provision_host(prepared, connect, inventory, dry_run=dry_run, sink=sink, on_plan=show)

    return work


def _plan_offline(
    app: AppContext, command: str, names: Sequence[str], choices: Choices, file: Path, donor_file: Path | None
) -> None:
    from ddtree_deploy.errors import InputError
    from ddtree_deploy.plan.gather import host_for_facts, load_facts, prepare_offline
    from ddtree_deploy.provision import plan_offline, planned

    found = load_facts(file)
    donor = load_facts(donor_file) if donor_file is not None else None
    inventory = app.inventory()
    selected = inventory.select(names) if names else [host_for_facts(found, inventory)]
    if len(selected) > 1:
        raise InputError("usage", "--facts is about one host", where="--facts", hint="Name one host, or none.")
    host = selected[0]
    prepared = prepare_offline(host, choices, found, donor, inventory)
    plan = plan_offline(prepared, found, str(file), donor)
    finish(app, command, [planned(plan)], _draw(app, shows_plan=True))


def _draw(app: AppContext, *, shows_plan: bool, several: bool = False) -> RenderHost:
    """What is printed of a host at the end. One host that was provisioned has shown its plan before; of several, only a
    plan that could not be carried out is shown."""

    def draw(console: Console, result: HostResult) -> None:
        from rich.text import Text

        from ddtree_deploy.plan.render import done_line, last_line

        plan: Plan = result.value
        if shows_plan or (several and (plan.errors or app.output.verbose)):
            _draw_plan(console, plan, app.output.verbose, executed=not shows_plan)
        if "changed" not in result.data:
            return
        for note in result.data.get("result", {}).get("notes", []):
            text = f"{result.host}: {note['severity']}: {note['message']} [{note['id']}]"
            console.print(Text(text, style="yellow" if note["severity"] == "warning" else "dim"))
        executed = result.data.get("result")
        console.print(last_line(plan) if executed is None else done_line(plan, executed["current"]))

    return draw


def _draw_plan(console: Console, plan: Plan, verbose: bool, executed: bool) -> None:
    from ddtree_deploy.plan.render import render_plan

    render_plan(console, plan, verbose=verbose, executed=executed)
