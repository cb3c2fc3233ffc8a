"""The Typer application: which commands there are, their groups and examples; ``*_commands.py`` has the functions."""

from __future__ import annotations

import functools
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
from ddtree_deploy.errors import InputError

_GLOBAL = "Global options (ddtree-deploy --help) may follow the command: plan gpu1 --json."

# (name, what it does in a few words, function, examples)
_COMMANDS: list[tuple[str, str, Callable[..., Any], list[str]]] = [
    ("facts", "What a host is", provision_commands.facts, ["facts gpu1 --save gpu1.json", "facts all --json"]),
    ("survey", "What the installed engine has", audit_commands.survey, ["survey gpu1"]),
    (
        "plan",
        "What provision would do",
        provision_commands.plan,
        ["plan gpu1", "plan gpu1 --facts gpu1.json --json"],
    ),
    (
        "provision",
        "Build a release and make it current",
        provision_commands.provision,
        ["provision gpu1", "provision gpu1 --from gpu2:/opt/venv", "provision 'gpu-*' --dry-run"],
    ),
    (
        "verify",
        "Check the current release",
        audit_commands.verify,
        ["verify gpu1", "verify gpu1 --gpu", "verify gpu1 --static --junit verify.xml"],
    ),
    (
        "abi",
        "Audit the binaries of any venv",
        audit_commands.abi,
        ["abi /opt/venv", "abi gpu1:current", "abi gpu1:/opt/venv --sarif abi.sarif", "abi --explain old-cxx-abi"],
    ),
    (
        "launch",
        "Start one service a GPU",
        service_commands.launch,
        ["launch gpu1 --budget 31", "launch gpu1 --algorithm none --gpus 0,1"],
    ),
    ("status", "What the services do", service_commands.status, ["status gpu1", "status all --json"]),
    ("logs", "A service's log", service_commands.logs, ["logs gpu1 -f", "logs gpu1 --service gpu0 --lines 500"]),
    ("stop", "Stop services", service_commands.stop, ["stop gpu1", "stop gpu1 --service gpu0"]),
    ("restart", "Stop and start services", service_commands.restart, ["restart gpu1", "restart gpu1 --service gpu0"]),
    ("releases", "List releases", release_commands.releases, ["releases gpu1"]),
    (
        "rollback",
        "Make an earlier release current",
        release_commands.rollback,
        ["rollback gpu1", "rollback gpu1 --to RELEASE"],
    ),
    (
        "diff",
        "What changed between two releases",
        audit_commands.diff,
        ["diff gpu1:RELEASE current", "diff /opt/venv /opt/other"],
    ),
    ("prune", "Remove old releases", release_commands.prune, ["prune gpu1 --keep 2"]),
]

# (name, what it is about, its commands as above)
_GROUPS: list[tuple[str, str, list[tuple[str, str, Callable[..., Any], list[str]]]]] = [
    (
        "inventory",
        "Check or show the inventory",
        [
            (
                "check",
                "Validate it, with file:line",
                inventory_commands.check,
                ["inventory check", "--inventory hosts.yaml inventory check"],
            ),
            ("show", "Hosts, or a host's settings", inventory_commands.show, ["inventory show", "inventory show gpu1"]),
        ],
    ),
    (
        "patches",
        "Patch sets, on this machine",
        [
            ("check", "Applied, applicable or refused?", patch_commands.check, ["patches check /opt/venv"]),
            ("apply", "Apply a patch set", patch_commands.apply, ["patches apply /opt/venv"]),
            ("reverse", "Take a patch set out again", patch_commands.reverse, ["patches reverse /opt/venv"]),
            (
                "export",
                "Write a patch set of an edited engine",
                patch_commands.export,
                ["patches export /opt/venv --wheel sglang.whl --out mine"],
            ),
        ],
    ),
]


@functools.cache
def command() -> Any:
    """The command to run: a group that takes ``main(args, ...)``."""
    built: Any = typer.main.get_command(_build())
    _refuse_empty_values(built)
    return built


def _refuse_empty_values(command: Any) -> None:
    """An option given as ``--to ''``, often a variable that is not set, must not mean the same as no option; nor must
    an argument that is empty mean the working folder."""
    for parameter in command.params:
        if not getattr(parameter, "is_flag", False):
            parameter.process_value = _not_empty(parameter, parameter.process_value)
    for sub in getattr(command, "commands", {}).values():
        _refuse_empty_values(sub)


def _not_empty(parameter: Any, process: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def checked(context: Any, value: Any) -> Any:
        if value == "" or (isinstance(value, list | tuple) and "" in value):
            name = parameter.metavar if parameter.param_type_name == "argument" else max(parameter.opts, key=len)
            hint = f"Give {name} a value, or leave it out."
            raise InputError("empty-value", f"{name} is empty", where=name, hint=hint)
        return process(context, value)

    return checked


def _build() -> typer.Typer:
    app = typer.Typer(
        help="Provision hosts with a patched SGLang runtime, and serve DDTree speculative decoding on every GPU.",
        epilog=_epilog(["plan localhost", "provision localhost", "launch localhost --budget 15", "status localhost"]),
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its help needs four times the time
    )
    app.callback()(_globals)
    for name, short, function, examples in _COMMANDS:
        app.command(name, short_help=short, epilog=_epilog(examples))(function)
    for name, short, commands in _GROUPS:
        examples = [example for *_, more in commands for example in more[:1]]
        group = typer.Typer(help=f"{short}.", short_help=short, epilog=_epilog(examples), rich_markup_mode=None)
        for sub, sub_short, function, more in commands:
            group.command(sub, short_help=sub_short, epilog=_epilog(more))(function)
        app.add_typer(group, name=name)
    return app


def _epilog(examples: list[str]) -> str:
    """Examples, a line each: ``\\b`` keeps lines as they are."""
    title = "Example:" if len(examples) == 1 else "Examples:"
    lines = [title, *(f"  ddtree-deploy {example}" for example in examples)]
    return "\b\n" + "\n".join(lines) + "\n\n\b\n" + _GLOBAL


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
    verbose: Annotated[int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Say more.")] = 0,
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
