"""``inventory check`` and ``inventory show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree_deploy.cli.context import app_context
from ddtree_deploy.cli.parameters import complete_hosts
from ddtree_deploy.units import plural

if TYPE_CHECKING:
    from rich.console import Console


def check(context: typer.Context) -> None:
    """Validate the inventory and the profiles' names; errors are printed with file:line, key and what was expected."""
    from ddtree_deploy.inventory.validation import report
    from ddtree_deploy.plan.donor_set import DONOR_PROFILE
    from ddtree_deploy.profiles.locking import missing_profiles

    app = app_context(context)
    inventory = app.inventory()
    hosts = [inventory.host(name) for name in inventory.hosts]
    findings = missing_profiles(host for host in hosts if host.profile != DONOR_PROFILE)
    if findings:
        raise report(findings, inventory.document)
    document = {
        "command": "inventory check",
        "exit_code": 0,
        "inventory": {"path": str(inventory.path), "hosts": inventory.hosts, "groups": inventory.groups},
    }
    counts = f"{plural(len(inventory.hosts), 'host')}, {plural(len(inventory.groups), 'group')}"
    app.output.emit(document, lambda console: console.print(f"{inventory.path} is right: {counts}"))


def show(
    context: typer.Context,
    host: Annotated[
        str | None,
        typer.Argument(
            metavar="HOST",
            help="A host; of a group or pattern, and without, hosts are listed.",
            autocompletion=complete_hosts,
        ),
    ] = None,
) -> None:
    """Show the merged settings of a host, each with the layer and line it comes from; secrets as references."""
    app = app_context(context)
    inventory = app.inventory()
    if host is None or host not in inventory.hosts:
        chosen = [settings.name for settings in inventory.select([host or "all"])]
        groups = {name: [group for group, members in inventory.groups.items() if name in members] for name in chosen}
        rows = [_summary(inventory.host(name), groups[name]) for name in chosen]
        document: dict[str, Any] = {"path": str(inventory.path), "hosts": rows}
        app.output.emit(
            {"command": "inventory show", "exit_code": 0, "inventory": document},
            lambda console: _draw_hosts(console, rows),
        )
        return
    settings = inventory.describe(host)
    described = [
        {"key": row.key, "value": row.value, "layer": row.layer, "where": row.where, "secret": row.secret}
        for row in settings
    ]
    app.output.emit(
        {"command": "inventory show", "exit_code": 0, "host": host, "settings": described},
        lambda console: _draw_settings(console, host, described),
    )


def _summary(settings: Any, groups: list[str]) -> dict[str, Any]:
    connection = settings.connection
    return {
        "host": settings.name,
        "groups": groups,
        "connection": connection.kind if connection.kind == "local" else f"ssh {connection.address}",
        "base": settings.base,
        "profile": settings.profile,
    }


def _draw_hosts(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("host", "groups", "connection", "base", "profile"):
        table.add_column(column, overflow="fold")
    for row in rows:
        cells = [row["host"], ", ".join(row["groups"]), row["connection"], row["base"], row["profile"]]
        table.add_row(*(str(cell) if cell else "-" for cell in cells))
    console.print(table)


def _draw_settings(console: Console, host: str, rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    table = Table(title=host, title_justify="left", box=None, pad_edge=False)
    for column in ("setting", "value", "from"):
        table.add_column(column, overflow="fold")
    for row in rows:
        value = "-" if row["value"] in (None, [], "") else str(row["value"])
        origin = row["layer"] + (f" ({row['where']})" if row["where"] else "")
        table.add_row(row["key"], value + (" (secret)" if row["secret"] else ""), origin)
    console.print(table)
