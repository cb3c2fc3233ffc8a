"""Running a command on hosts, and printing what came of it: shared by all commands that take HOST."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from ddtree_deploy.cli.context import AppContext
from ddtree_deploy.cli.progress import ProgressView

if TYPE_CHECKING:
    from rich.console import Console

    from ddtree_deploy.agent.protocol import ProgressSink
    from ddtree_deploy.fleet import HostResult
    from ddtree_deploy.inventory.settings import HostSettings
    from ddtree_deploy.sessions import Connector, Session

Work = Callable[["HostSettings", "Connector", "ProgressSink"], "HostResult"]
RenderHost = Callable[["Console", "HostResult"], None]


def run_on_hosts(
    app: AppContext,
    command: str,
    hosts: Sequence[HostSettings],
    work: Work,
    render: RenderHost,
    *,
    canary: bool = False,
) -> None:
    """Run ``work`` on each host, print all results, and end the command with the worst exit code."""
    from ddtree_deploy.fleet import run_fleet
    from ddtree_deploy.sessions import Connector

    by_name = {host.name: host for host in hosts}
    connector = Connector(app.accept_new_host_keys)
    with ProgressView(app.output) as view:
        results = run_fleet(
            list(by_name),
            lambda name: work(by_name[name], connector, view.sink(name)),
            canary=canary,
            on_interrupt=connector.close_all,
        )
    finish(app, command, results, render)


def call_op(op: str, params: Callable[[HostSettings], dict[str, Any]], code: Callable[[dict[str, Any]], int]) -> Work:
    """Work that is one call of the agent; its result is the host's document, ``code`` its exit code."""

    def work(host: HostSettings, connect: Connector, sink: ProgressSink) -> HostResult:
        from ddtree_deploy.fleet import HostResult

        prepared = params(host)
        with connect(host) as session:
            result = _call(session, op, prepared, sink)
        return HostResult(host.name, code(result), result, result)

    return work


def _call(session: Session, op: str, params: dict[str, Any], sink: ProgressSink) -> dict[str, Any]:
    return session.call(op, params, sink)


def finish(app: AppContext, command: str, results: Sequence[HostResult], render: RenderHost) -> None:
    """Print the results: one document under --json, else each host's report and, for several hosts, a table."""
    from ddtree_deploy.fleet import worst

    code = worst([result.exit_code for result in results])
    document: dict[str, Any] = {
        "command": command,
        "exit_code": code,
        "hosts": [result.document() for result in results],
    }
    failed = [result for result in results if result.error is not None and result.exit_code == code]
    if failed and failed[0].error is not None:
        document["error"] = failed[0].error.to_dict()

    def draw(console: Console) -> None:
        for result in results:
            if result.value is not None:
                render(console, result)
        if len(results) > 1:
            _table(console, command, results)

    try:
        app.output.emit(document, draw)
    finally:  # stderr may take what stdout does not
        for result in results:
            if result.error is not None and not result.skipped:
                app.output.error_text(result.error, result.host if len(results) > 1 else None)
    raise typer.Exit(code)


def _table(console: Console, command: str, results: Sequence[HostResult]) -> None:
    from rich.table import Table

    table = Table(title=command, title_justify="left", box=None, pad_edge=False)
    for column in ("host", "exit", "outcome"):
        table.add_column(column, overflow="fold")
    for result in results:
        style = "green" if result.exit_code == 0 else "yellow" if result.exit_code == 2 else "red"
        table.add_row(result.host, str(result.exit_code), _outcome(result), style=style)
    console.print(table)


def _outcome(result: HostResult) -> str:
    if result.error is not None:
        return f"{result.error.id}: {result.error.message}"
    if result.exit_code == 2:
        return "changes pending"
    return "done" if result.exit_code == 0 else "problems found"
