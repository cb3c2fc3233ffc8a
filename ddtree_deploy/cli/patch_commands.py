"""``patches check|apply|reverse|export``: patch sets against an environment on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ddtree_deploy.cli.context import app_context
from ddtree_deploy.cli.parameters import complete_patch_sets
from ddtree_deploy.units import plural

if TYPE_CHECKING:
    from rich.console import Console

    from ddtree_deploy.patching.commands import PatchReport

Target = Annotated[Path, typer.Argument(metavar="PATH", help="A venv or a site-packages folder.")]
PatchSetOption = Annotated[
    str | None,
    typer.Option(
        "--patch-set",
        metavar="NAME",
        help="A name or a folder. Default: the one for the installed engine.",
        autocompletion=complete_patch_sets,
    ),
]
Wheel = Annotated[
    Path | None,
    typer.Option("--wheel", metavar="FILE", help="The released engine, to show what was edited."),
]


def check(context: typer.Context, path: Target, patch_set: PatchSetOption = None, wheel: Wheel = None) -> None:
    """Say whether a patch set is applied there, would apply, or is refused and why. Exit 1 when refused."""
    from ddtree_deploy.patching.commands import check_path

    _finish(context, "patches check", check_path(path, patch_set, wheel))


def apply(context: typer.Context, path: Target, patch_set: PatchSetOption = None, wheel: Wheel = None) -> None:
    """Apply a patch set: all files or none, each checked by sha256 before and after."""
    from ddtree_deploy.patching.commands import apply_path

    _finish(context, "patches apply", apply_path(path, patch_set, wheel))


def reverse(context: typer.Context, path: Target, patch_set: PatchSetOption = None, wheel: Wheel = None) -> None:
    """Take a patch set out again: the files are as released, to the byte."""
    from ddtree_deploy.patching.commands import reverse_path

    _finish(context, "patches reverse", reverse_path(path, patch_set, wheel))


def export(
    context: typer.Context,
    path: Target,
    wheel: Annotated[Path, typer.Option("--wheel", metavar="FILE", help="The released engine's wheel.")],
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="Folder of the patch set to write.")],
) -> None:
    """Write the patch set that makes the released wheel into the edited engine at PATH."""
    from ddtree_deploy.patching.commands import export_path

    app = app_context(context)
    result = export_path(path, wheel, out)
    document = {
        "command": "patches export",
        "exit_code": 0,
        "patch_set": {
            "name": result.name,
            "distribution": result.distribution,
            "version": result.version,
            "digest": result.digest,
            "patches": [patch.path for patch in result.patches],
            "new_files": [new.path for new in result.new_files],
        },
        "out": str(out),
    }
    counts = f"{plural(len(result.patches), 'patch')}, {plural(len(result.new_files), 'new file')}"
    text = f"{out}: {counts} against {result.distribution} {result.version}"
    app.output.emit(document, lambda console: console.print(text))


def _finish(context: typer.Context, command: str, report: PatchReport) -> None:
    from ddtree_deploy.codec import to_dict

    app = app_context(context)
    document = {"command": command, "exit_code": int(report.exit_code), "report": to_dict(report)}
    app.output.emit(document, lambda console: _draw(console, report, app.output.verbose))
    raise typer.Exit(int(report.exit_code))


def _draw(console: Console, report: PatchReport, verbose: bool) -> None:
    from rich.text import Text

    from ddtree_deploy.patching.explain import render_state

    engine = f"{report.distribution} {report.version}"
    console.print(f"patch set {report.patch_set} for {engine} in {report.site_packages}: {report.summary}")
    if report.outcome is not None:
        changed, unchanged = len(report.outcome.changed), len(report.outcome.unchanged)
        console.print(f"{plural(changed, 'file')} changed, {unchanged} as wanted before")
    styles = {"pristine": "", "applied": "green"}
    for state in report.files:
        if state.state not in styles:
            console.print(Text(render_state(state), style="red"))
        elif verbose or report.summary == "partly applied":
            console.print(Text(f"{state.path}: {state.state}", style=styles[state.state]))
