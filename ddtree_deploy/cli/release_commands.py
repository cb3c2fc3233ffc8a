"""``releases``, ``rollback`` and ``prune``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree_deploy.cli.context import app_context
from ddtree_deploy.cli.hosts import call_op, run_on_hosts
from ddtree_deploy.cli.parameters import Hosts
from ddtree_deploy.units import human_bytes, plural, some

if TYPE_CHECKING:
    from rich.console import Console

    from ddtree_deploy.fleet import HostResult


def releases(context: typer.Context, hosts: Hosts) -> None:
    """List the releases on hosts: which is current, which a rollback would go to."""
    app = app_context(context)
    work = call_op("releases.list", lambda host: {"root": host.root}, lambda result: 0)
    verbose = bool(app.output.verbose)
    run_on_hosts(
        app, "releases", app.hosts(hosts), work, lambda console, result: _draw_releases(console, result, verbose)
    )


def rollback(
    context: typer.Context,
    hosts: Hosts,
    to: Annotated[str | None, typer.Option("--to", metavar="RELEASE", help="Default: the one before.")] = None,
) -> None:
    """Make an earlier release current again. Running services keep theirs until they are launched anew."""
    app = app_context(context)
    work = call_op("releases.rollback", lambda host: {"root": host.root, "to": to}, lambda result: 0)
    run_on_hosts(app, "rollback", app.hosts(hosts), work, _draw_rollback)


def prune(
    context: typer.Context,
    hosts: Hosts,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=0, help="How many of the newest releases stay.")],
) -> None:
    """Remove old releases. The current one, the one before and those that services use always stay."""
    app = app_context(context)
    work = call_op("releases.prune", lambda host: {"root": host.root, "keep": keep}, lambda result: 0)
    run_on_hosts(app, "prune", app.hosts(hosts), work, _draw_prune)


def _draw_releases(console: Console, result: HostResult, verbose: bool) -> None:
    from rich.table import Table

    found: dict[str, Any] = result.value
    if not found["releases"]:
        console.print(f"{result.host}: no releases")
    else:
        table = Table(title=result.host, title_justify="left", box=None, pad_edge=False)
        for column in ("", "release", "created", "size", "state", *(("cloned by", "made by") if verbose else ())):
            table.add_column(column, overflow="fold")
        for release in found["releases"]:
            current, previous = release["current"], release["id"] == found.get("previous")
            state = "complete" if release["complete"] else "incomplete"
            state += ", current" if current else ", previous" if previous else ""
            style = "green" if current else None if release["complete"] else "red"
            size = human_bytes(release["bytes"]) if release["bytes"] else "-"
            more = (release["clone_method"] or "-", release["tool_version"] or "-") if verbose else ()
            table.add_row("*" if current else "", release["id"], release["created"], size, state, *more, style=style)
        console.print(table)
    for name in found["partial"]:
        console.print(f"{result.host}: {name} is being built, or was left by an interrupted run")
    _draw_foreign(console, result)


def _draw_rollback(console: Console, result: HostResult) -> None:
    found: dict[str, Any] = result.value
    release, previous = found["release"], found["previous"]
    if found["changed"]:
        console.print(f"{result.host}: {release} is current now (it was {previous or 'none'})")
    else:
        console.print(f"{result.host}: nothing to do, {release} is current")
    if found["staying"]:
        names, move = some(found["staying"]), f"ddtree-deploy launch {result.host} --replace"
        console.print(f"{result.host}: still served from another release: {names}; `{move}` moves them")
    _draw_note(console, result)


def _draw_prune(console: Console, result: HostResult) -> None:
    found: dict[str, Any] = result.value
    removed = found["removed"]
    console.print(
        f"{result.host}: {plural(len(removed), 'release')} removed, {human_bytes(found['freed_bytes'])} freed"
    )
    for release in removed:
        console.print(f"  - {release}", style="red")
    for release in found["kept"]:
        console.print(f"    {release['id']}  {release['why']}")
    _draw_foreign(console, result)
    _draw_note(console, result)


def _draw_foreign(console: Console, result: HostResult) -> None:
    for name in result.value["foreign"]:
        console.print(f"{result.host}: {name!r} among the releases is none, and is left alone", markup=False)


def _draw_note(console: Console, result: HostResult) -> None:
    if result.value.get("note"):
        console.print(f"{result.host}: {result.value['note']}", style="yellow")
