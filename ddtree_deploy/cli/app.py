"""The Typer application: which commands there are, their groups and examples; ``*_commands.py`` has the functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_deploy import __version__
from ddtree_deploy.cli import (
    audit_commands,
    inventory_commands,
    patch_commands,
    provision_commands,
    release_commands,
    service_commands,
)
from ddtree_deploy.cli.context import AppContext
from ddtree_deploy.cli.output import Output

_GLOBAL = "The global options (--inventory, --json, -v, --no-color, --accept-new-host-keys) may follow the command too."

# (panel, name, function, examples)
_COMMANDS: list[tuple[str, str, Callable[..., Any], list[str]]] = [
    ("Look", "facts", provision_commands.facts, ["facts gpu1 --save gpu1.json", "facts all --json"]),
    ("Look", "survey", audit_commands.survey, ["survey gpu1"]),
    ("Provision", "plan", provision_commands.plan, ["plan gpu1", "plan gpu1 --facts gpu1.json --json"]),
    ("Provision", "provision", provision_commands.provision, ["provision gpu1", "provision gpu-* --dry-run"]),
    ("Provision", "verify", audit_commands.verify, ["verify gpu1", "verify gpu1 --static --junit verify.xml"]),
    ("Provision", "abi", audit_commands.abi, ["abi /opt/venv", "abi gpu1:/opt/venv --json"]),
    (
        "Serve",
        "launch",
        service_commands.launch,
        ["launch gpu1 --budget 31", "launch gpu1 --algorithm none --gpus 0,1"],
    ),
    ("Serve", "status", service_commands.status, ["status gpu1", "status all --json"]),
    ("Serve", "logs", service_commands.logs, ["logs gpu1 -f", "logs gpu1 --service gpu0 --lines 500"]),
    ("Serve", "stop", service_commands.stop, ["stop gpu1", "stop gpu1 --service gpu0"]),
    ("Serve", "restart", service_commands.restart, ["restart gpu1", "restart gpu1 --service gpu0"]),
    ("Releases", "releases", release_commands.releases, ["releases gpu1"]),
    ("Releases", "rollback", release_commands.rollback, ["rollback gpu1", "rollback gpu1 --to RELEASE"]),
    ("Releases", "prune", release_commands.prune, ["prune gpu1 --keep 2"]),
]

_GROUPS: list[tuple[str, str, str, list[tuple[str, Callable[..., Any], list[str]]]]] = [
    (
        "Look",
        "inventory",
        "Check the inventory, and show what it says of a host.",
        [
            ("check", inventory_commands.check, ["inventory check", "--inventory hosts.yaml inventory check"]),
            ("show", inventory_commands.show, ["inventory show", "inventory show gpu1"]),
        ],
    ),
    (
        "Patches",
        "patches",
        "Check, apply, reverse and export patch sets, on this machine.",
        [
            ("check", patch_commands.check, ["patches check /opt/venv"]),
            ("apply", patch_commands.apply, ["patches apply /opt/venv"]),
            ("reverse", patch_commands.reverse, ["patches reverse /opt/venv"]),
            ("export", patch_commands.export, ["patches export /opt/venv --wheel sglang.whl --out patches/mine"]),
        ],
    ),
]


def command() -> Any:
    """The command to run: a group that takes ``main(args, ...)``."""
    return typer.main.get_command(_build())


def _build() -> typer.Typer:
    app = typer.Typer(
        help="Provision hosts with a patched SGLang runtime, and serve DDTree speculative decoding on every GPU.",
        epilog=_epilog(["plan localhost", "provision localhost", "launch localhost --budget 15", "status localhost"]),
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(_globals)
    for panel, name, function, examples in _COMMANDS:
        app.command(name, epilog=_epilog(examples), rich_help_panel=panel)(function)
    for panel, name, help_text, commands in _GROUPS:
        examples = [example for _, _, more in commands for example in more[:1]]
        group = typer.Typer(help=help_text, epilog=_epilog(examples))
        for sub, function, more in commands:
            group.command(sub, epilog=_epilog(more))(function)
        app.add_typer(group, name=name, rich_help_panel=panel)
    return app


def _epilog(examples: list[str]) -> str:
    """One paragraph an example: Typer joins the lines of a paragraph."""
    return "\n\n".join([f"Example: ddtree-deploy {example}" for example in examples] + [_GLOBAL])


def _version(context: typer.Context, value: bool) -> None:
    if value:
        output: Output = context.obj["output"]
        output.emit({"version": __version__}, lambda console: console.print(f"ddtree-deploy {__version__}"))
        raise typer.Exit(0)


def _globals(
    context: typer.Context,
    inventory: Annotated[
        Path | None,
        typer.Option("--inventory", "-i", metavar="PATH", help="Inventory file. Default: the shipped one, localhost."),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout; text for people on stderr.")
    ] = False,
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, help="Say more; tracebacks of bugs.")] = 0,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours and bars (also NO_COLOR=1).")] = False,
    accept_new_host_keys: Annotated[
        bool, typer.Option("--accept-new-host-keys", help="Trust and record keys of hosts that were never seen.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    output: Output = context.obj["output"]  # main's: it knows these flags already, also where parsing ends in an error
    context.obj = AppContext(output, inventory, accept_new_host_keys)
