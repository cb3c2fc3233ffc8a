"""How a verification is shown: a table for people, JUnit XML for CI. Controller only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from ddtree_deploy.errors import ExitCode, InputError
from ddtree_deploy.units import plural

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"ok": "green", "warning": "yellow", "failed": "bold red", "skipped": "dim"}
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def exit_code(report: Mapping[str, Any]) -> int:
    """0, or 1 if a check failed. ``report`` is the ``verify.run`` result, here and below."""
    return int(ExitCode.OK if report["ok"] else ExitCode.PROBLEMS)


def render(console: Console, report: Mapping[str, Any], *, host: str = "", verbose: bool = False) -> None:
    """A table with a row a check; below it what failed, and the output that is not known to be harmless.

    ``verbose`` also shows the noise, with its reasons.
    """
    from rich.table import Table
    from rich.text import Text

    place = f"{host}: " if host else ""
    table = Table(title=f"{place}release {report['release']}", title_justify="left", box=None, pad_edge=False)
    for column, justify in (("check", "left"), ("result", "left"), ("seconds", "right"), ("what was seen", "left")):
        table.add_column(column, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for check in report["checks"]:
        status = Text(check["status"], style=_STYLES.get(check["status"], ""))
        table.add_row(Text(check["title"]), status, f"{check['seconds']:.1f}", Text(_seen(check)))
    console.print(table)
    for check in report["checks"]:
        if check["status"] == "failed":
            console.print(Text(f"\n{check['title']}: {check['summary']}", style="bold red"))
            if check["detail"]:
                console.print(Text(check["detail"].rstrip()))
            if check["hint"]:
                console.print(Text.assemble(("hint: ", "cyan"), check["hint"]))
        _render_output(console, check, verbose)


def _seen(check: Mapping[str, Any]) -> str:
    return f"{check['cause']}: {check['summary']}" if check["cause"] else str(check["summary"])


def _render_output(console: Console, check: Mapping[str, Any], verbose: bool) -> None:
    from rich.text import Text

    shown = [line for line in check["output"] if verbose or line["kind"] != "noise"]
    if shown:
        console.print(Text(f"\noutput of {check['title']}:", style="bold"))
    reason = None
    for line in shown:
        style = {"warning": "yellow", "noise": "dim"}.get(line["kind"], "")
        console.print(Text(f"  {line['kind']:8}{line['text']}", style=style))
        if line["reason"] and line["reason"] != reason:
            console.print(Text(f"          {line['reason']}", style="dim"))
        reason = line["reason"]
    hidden = len(check["output"]) - len(shown)
    if hidden:
        count = plural(hidden, "line")
        console.print(Text(f"  {check['title']}: {count} of harmless output (shown with -v)", style="dim"))


def junit(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """JUnit XML of ``reports`` (host -> report): one suite a host, one case a check, failures with their output."""
    root = ElementTree.Element("testsuites", name="ddtree-deploy verify")
    for host, report in reports.items():
        checks = report["checks"]
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=_clean(host),
            tests=str(len(checks)),
            failures=str(sum(check["status"] == "failed" for check in checks)),
            errors="0",
            skipped=str(sum(check["status"] == "skipped" for check in checks)),
            time=f"{report['seconds']:.3f}",
        )
        properties = ElementTree.SubElement(suite, "properties")
        for name in ("release", "path"):
            ElementTree.SubElement(properties, "property", name=name, value=_clean(str(report[name])))
        for check in checks:
            _junit_case(suite, host, check)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _junit_case(suite: ElementTree.Element, host: str, check: Mapping[str, Any]) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=_clean(f"{host}.verify"), name=_clean(check["id"]), time=f"{check['seconds']:.3f}"
    )
    if check["status"] == "failed":
        failure = ElementTree.SubElement(
            case, "failure", message=_clean(check["summary"]), type=_clean(check["cause"] or "failed")
        )
        failure.text = _clean("\n".join(text for text in (check["detail"], check["hint"]) if text))
    elif check["status"] == "skipped":
        ElementTree.SubElement(case, "skipped", message=_clean(check["summary"]))
    output = "\n".join(f"[{line['kind']}] {line['text']}" for line in check["output"])
    ElementTree.SubElement(case, "system-out").text = _clean(check["summary"])
    if output:
        ElementTree.SubElement(case, "system-err").text = _clean(output)


def write_junit(path: Path, reports: Mapping[str, Mapping[str, Any]]) -> None:
    """Write :func:`junit` to ``path``; raises InputError ``cannot-write``."""
    try:
        path.write_text(junit(reports), "utf-8")
    except OSError as error:
        message = f"cannot write the JUnit file: {error.strerror}"
        hint = "name a file in a folder that exists and that you may write"
        raise InputError("cannot-write", message, where=str(path), hint=hint) from error


def _clean(text: str) -> str:
    """XML 1.0 has no way to say control characters: they become the replacement character."""
    return _NOT_XML.sub("\ufffd", text)
