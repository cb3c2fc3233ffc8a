"""How an audit is shown: grouped by root cause for people, SARIF for code hosts. Controller only."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddtree_deploy.abi.sarif import sarif
from ddtree_deploy.errors import ExitCode, InputError

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"error": "bold red", "warning": "yellow", "note": "dim"}
_RANK = {"error": 0, "warning": 1, "note": 2}
_WHEN = {
    "install": "at install",
    "import": "at import",
    "first-kernel": "at the first kernel",
    "under-load": "under load",
}
_SIGNS = {
    "add": ("+", "green"),
    "remove": ("-", "red"),
    "replace": ("~", "yellow"),
    "rebuild": ("~", "yellow"),
    "change": ("~", "yellow"),
}
_SYMBOLS_SHOWN, _FILES_SHOWN, _CHANGED_SHOWN = 3, 3, 20


def exit_code(report: Mapping[str, Any]) -> int:
    """0, or 1 if an error was found. ``report`` is the ``abi.audit`` result, here and below."""
    return int(ExitCode.PROBLEMS if report["counts"].get("error") else ExitCode.OK)


def causes(report: Mapping[str, Any]) -> Iterator[list[Mapping[str, Any]]]:
    """The findings in groups of one root cause, the worst group and the worst finding of each first."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for finding in report["findings"]:
        groups.setdefault(finding["cause"], []).append(finding)
    for group in groups.values():
        group.sort(key=lambda finding: _RANK[finding["severity"]])
    yield from sorted(groups.values(), key=lambda group: (_RANK[group[0]["severity"]], group[0]["cause"]))


def render(console: Console, report: Mapping[str, Any], *, host: str = "", verbose: bool = False) -> None:
    """One block a cause: what, when, why, how to fix it. Notes are a line each; ``verbose`` shows everything."""
    from rich.text import Text

    place = f"{host}: " if host else ""
    python, torch = report["python"] or "?", report["torch"] or "none"
    console.print(Text(f"{place}{report['path']}: Python {python}, torch {torch}", style="bold"))
    for group in causes(report):
        if group[0]["severity"] == "note" and not verbose:
            _line(console, group[0])
        else:
            _block(console, group, verbose)
    console.print(Text(_summary(report)))


def _line(console: Console, finding: Mapping[str, Any]) -> None:
    from rich.text import Text

    console.print(Text.assemble(("note     ", "dim"), (finding["title"], ""), (f"  [{finding['id']}]", "dim")))


def _block(console: Console, group: list[Mapping[str, Any]], verbose: bool) -> None:
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    first = group[0]
    style = _STYLES[first["severity"]]
    console.print(Text.assemble((f"\n{first['severity']:9}", style), (first["title"], "bold")))
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for finding in group:
        table.add_row(finding["id"], Text(finding["message"]))
        limit = None if verbose else _SYMBOLS_SHOWN
        for symbol in finding["symbols"][:limit]:
            table.add_row("", Text(symbol, style="cyan"))
        hidden = len(finding["symbols"]) - len(finding["symbols"][:limit])
        if hidden:
            table.add_row("", Text(f"and {hidden} more (shown with -v)", style="dim"))
    files = sorted({path for finding in group for path in finding["files"]})
    if len(files) > 1:
        shown = files if verbose else files[:_FILES_SHOWN]
        rest = f" and {len(files) - len(shown)} more" if len(files) > len(shown) else ""
        table.add_row("files", Text(", ".join(shown) + rest))
    table.add_row("fails", Text(f"{_WHEN.get(first['when'], first['when'])}: {first['why']}"))
    table.add_row("fix", Text(first["fix"], style="green"))
    console.print(Padding(table, (0, 0, 0, 9)))


def _summary(report: Mapping[str, Any]) -> str:
    counts = report["counts"]
    parts = [f"{counts[name]} {name}{'' if counts[name] == 1 else 's'}" for name in _RANK if counts.get(name)]
    seconds = sum(report["timing"].values())
    return (
        f"\n{', '.join(parts) or 'nothing found'} in {report['distributions']} packages, "
        f"{report['shared_objects']} shared objects, {report['files']} files ({seconds:.1f} s)"
    )


def write_sarif(path: Path, report: Mapping[str, Any]) -> None:
    """Write SARIF 2.1.0 to ``path``; raises InputError ``cannot-write`` where that is not possible."""
    from ddtree_deploy import __version__

    try:
        path.write_text(json.dumps(sarif(report, __version__), indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError("cannot-write", f"{path}: {error.strerror}", where=str(path)) from error


def render_difference(
    console: Console, difference: Mapping[str, Any], *, host: str = "", verbose: bool = False
) -> None:
    """What ``abi.diff`` found: packages with versions and ABI tags, then files that no package explains."""
    from rich.table import Table
    from rich.text import Text

    left, right = difference["left"], difference["right"]
    place = f"{host}: " if host else ""
    console.print(Text(f"{place}{_side(left)} -> {_side(right)}", style="bold"))
    if left["abi_tag"] != right["abi_tag"]:
        console.print(Text(f"ABI tag: {left['abi_tag'] or 'none'} -> {right['abi_tag'] or 'none'}", style="yellow"))
    if difference["packages"]:
        table = Table(box=None, pad_edge=False)
        for column in ("", "package", "from", "to", "files"):
            table.add_column(column, justify="right" if column == "files" else "left", overflow="fold")
        for package in difference["packages"]:
            sign, style = _SIGNS[package["change"]]
            versions = (Text(_version(package, "old")), Text(_version(package, "new")))
            table.add_row(sign, package["name"], *versions, str(package["files"] or ""), style=style)
        console.print(table)
    shown = difference["files"] if verbose else difference["files"][:_CHANGED_SHOWN]
    for file in shown:
        sign, style = _SIGNS[file["change"]]
        owner = f"  ({file['package']})" if file["package"] else ""
        console.print(Text(f"{sign} {file['path']}{owner}", style=style))
    hidden = len(difference["files"]) - len(shown)
    if hidden:
        console.print(Text(f"and {hidden} more files (shown with -v)", style="dim"))
    console.print(
        Text(
            f"{len(difference['packages'])} packages and {len(difference['files'])} other files differ; "
            f"{difference['unchanged_packages']} packages and {difference['unchanged_files']} files are the same"
        )
    )


def _side(side: Mapping[str, Any]) -> str:
    return f"{side['release'] or side['path']} (torch {side['torch'] or 'none'})"


def _version(package: Mapping[str, Any], which: str) -> str:
    version, abi = package[f"{which}_version"], package[f"{which}_abi"]
    if version is None:
        return "-"
    return version if abi is None or version.endswith("+" + abi) else f"{version} [{abi}]"
