"""``launch``, ``status``, ``logs``, ``stop`` and ``restart``."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree_deploy.cli.context import AppContext, app_context
from ddtree_deploy.cli.hosts import call_op, run_on_hosts
from ddtree_deploy.cli.parameters import Host, Hosts, Services

if TYPE_CHECKING:
    from rich.console import Console

    from ddtree_deploy.fleet import HostResult
    from ddtree_deploy.inventory.settings import HostSettings

_FOLLOW_SECONDS = 0.5  # between two looks at a log


class Algorithm(str, Enum):
    """How tokens are drafted: a tree, a chain, or not at all."""

    ddtree = "ddtree"
    dflash = "dflash"
    none = "none"


def launch(
    context: typer.Context,
    hosts: Hosts,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="N|auto",
            help="Draft-tree nodes verified per step, the root not counted: 1 to 511, or auto (GPUs only).",
        ),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", metavar="0,1", help="GPU indices. Default: the inventory's, else all.")
    ] = None,
    algorithm: Annotated[Algorithm, typer.Option("--algorithm", help="Speculative decoding.")] = Algorithm.ddtree,
    model: Annotated[
        str | None, typer.Option("--model", metavar="PATH", help="On the host. Default: the inventory's.")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="PATH", help="Draft model. Default: the inventory's.")
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", metavar="RELEASE", help="Default: the current one.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Stop services that run with other settings, and start them anew.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until each service has answered a real completion.")
    ] = True,
) -> None:
    """Start one service a GPU (one on a host without), and wait until each answers a real completion."""
    app = app_context(context)
    indices = _indices(gpus)
    _check_budget(budget)

    def params(host: HostSettings) -> dict[str, Any]:
        key = host.secret_api_key()
        return {
            "root": host.root,
            "model": model if model is not None else host.require("model"),
            "draft": draft if draft is not None else host.draft,
            "algorithm": algorithm.value,
            "budget": budget if budget is not None else host.budget,
            "release": release,
            "gpus": indices if indices is not None else list(host.gpus) if host.gpus is not None else None,
            "listen": host.listen,
            "ports": list(host.ports),
            "engine_arguments": list(host.engine_arguments),
            "environment": dict(host.environment),
            "secrets": {name: secret.reveal() for name, secret in host.secret_values().items()},
            "api_key": key.reveal() if key is not None else None,
            "launch_timeout": float(host.launch_timeout),
            "replace": replace,
            "wait": wait,
        }

    work = call_op("service.launch", params, lambda result: 0)
    run_on_hosts(app, "launch", app.hosts(hosts), work, _draw_launched)


def status(
    context: typer.Context,
    hosts: Hosts,
    service: Services = None,
    probe: Annotated[bool, typer.Option("--probe/--no-probe", help="Ask ready services for one token.")] = True,
) -> None:
    """Show the services of hosts. Exit 1 when one has failed or died."""
    app = app_context(context)
    work = call_op(
        "service.status", lambda host: {"root": host.root, "services": service or None, "probe": probe}, _status_code
    )
    run_on_hosts(app, "status", app.hosts(hosts), work, _draw_services)


def logs(
    context: typer.Context,
    host: Host,
    service: Annotated[
        str | None, typer.Option("--service", metavar="NAME", help="Needed where there are several services.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", min=0, help="How many of the last lines.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on printing until Ctrl-C.")] = False,
) -> None:
    """Print the log of a service."""
    from ddtree_deploy.errors import InputError

    app = app_context(context)
    if follow and app.output.json:
        raise InputError("usage", "--json is one document, and logs -f does not end", hint="Leave one of them out.")
    selected = app.hosts([host])
    if len(selected) > 1:
        raise InputError("usage", f"{host} stands for several hosts", where="HOST", hint="Name one.")
    params = {"root": selected[0].root, "service": service, "lines": lines, "cursor": None}
    if follow:
        _follow(app, selected[0], params)
        return
    work = call_op("service.logs", lambda settings: params, lambda result: 0)
    run_on_hosts(app, "logs", selected, work, _draw_lines)


def stop(context: typer.Context, hosts: Hosts, service: Services = None) -> None:
    """Stop services, and see to it that their processes are gone and their GPUs free."""
    app = app_context(context)
    work = call_op("service.stop", lambda host: {"root": host.root, "services": service or None}, _stop_code)
    run_on_hosts(app, "stop", app.hosts(hosts), work, _draw_stopped)


def restart(
    context: typer.Context,
    hosts: Hosts,
    service: Services = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Wait until each service has answered a real completion.")
    ] = True,
) -> None:
    """Stop services and start them again with the settings they have."""
    app = app_context(context)

    def params(host: HostSettings) -> dict[str, Any]:
        return {"root": host.root, "services": service or None, "ports": list(host.ports), "wait": wait}

    work = call_op("service.restart", params, _stop_code)
    run_on_hosts(app, "restart", app.hosts(hosts), work, _draw_services)


def _indices(text: str | None) -> list[int] | None:
    """``0,1`` -> [0, 1]; ``all`` -> None."""
    from ddtree_deploy.errors import InputError

    if text is None or text.strip() == "all":
        return None
    parts = [part.strip() for part in text.split(",")]
    hint = "Indices in PCI bus order, such as 0,1; nvidia-smi -L lists them."
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise InputError("bad-gpus", f"{text!r} is not a list of GPU indices", where="--gpus", hint=hint)
    indices = [int(part) for part in parts]
    if len(set(indices)) < len(indices):
        raise InputError("bad-gpus", f"{text!r} names a GPU twice", where="--gpus", hint=hint)
    return indices


def _check_budget(text: str | None) -> None:
    from ddtree_deploy.errors import InputError
    from ddtree_deploy.plan.inputs import parse_budget

    if text is None:
        return
    try:
        parse_budget(text)
    except InputError as error:
        raise InputError(error.id, error.message, where="--budget", hint=error.hint) from None


def _status_code(result: dict[str, Any]) -> int:
    from ddtree_deploy.errors import ExitCode

    broken = any(service["state"] in ("failed", "dead", "unknown") for service in result["services"])
    return int(ExitCode.PROBLEMS if broken else ExitCode.OK)


def _stop_code(result: dict[str, Any]) -> int:
    from ddtree_deploy.errors import ExitCode

    left = any(service["state"] == "unknown" for service in result["services"])
    return int(ExitCode.PROBLEMS if left else ExitCode.OK)


def _follow(app: AppContext, host: HostSettings, params: dict[str, Any]) -> None:
    """Print lines as they come, until Ctrl-C or until nobody reads them."""
    import time

    from ddtree_deploy.sessions import Connector

    app.output.endless = True
    with Connector(app.accept_new_host_keys)(host) as session:
        while True:
            result = session.call("service.logs", params)
            if not app.output.follow("".join(f"{line}\n" for line in result["lines"])):
                return
            params = {**params, "cursor": result["cursor"]}
            time.sleep(_FOLLOW_SECONDS)


def _draw_services(console: Console, result: HostResult) -> None:
    from ddtree_deploy.serve.report import render

    render(console, result.value["services"], host=result.host)


def _draw_launched(console: Console, result: HostResult) -> None:
    _draw_services(console, result)
    if not result.value["changed"]:
        console.print(f"{result.host}: nothing to do, they run as asked")


def _draw_lines(console: Console, result: HostResult) -> None:
    from rich.text import Text

    for line in result.value["lines"]:
        console.print(Text(line))


def _draw_stopped(console: Console, result: HostResult) -> None:
    services = result.value["services"]
    if not services:
        console.print(f"{result.host}: no services")
    for service in services:
        what = "stopped" if service["changed"] else f"nothing to do, it is {service['state']}"
        if service["state"] == "unknown":
            what = f"left as it is, its state is unknown: {service['detail']}"
        elif service.get("detail"):
            what += f" ({service['detail']})"
        console.print(f"{result.host}: {service['name']}: {what}")
