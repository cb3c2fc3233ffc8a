from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from ddtree_deploy import codec
from ddtree_deploy.errors import InputError
from ddtree_deploy.verify.model import CheckResult, OutputLine, VerifyReport
from ddtree_deploy.verify.report import exit_code, junit, render, write_junit

NOISE = OutputLine("SyntaxWarning: odd", "noise", "a docstring", "torchao")
ODD = OutputLine("bell \x07 and [bold]markup[/bold] <xml> & \ud800", "unknown")


def report(ok: bool = False) -> dict[str, Any]:
    failed = CheckResult(
        "kernel",
        "sgl_kernel loads",
        "failed",
        "undefined symbol",
        2.5,
        cause="import-error",
        hint="do this",
        detail="Traceback <x>",
        output=[NOISE, ODD],
    )
    checks = [
        CheckResult("torch", "torch and its CUDA", "ok", "torch 2.11.0", 1.0),
        CheckResult("files", "files", "skipped", "no record"),
    ]
    return codec.to_dict(VerifyReport("r1", "/r/r1", ok, 3.5, checks if ok else [*checks, failed]))


def text_of(verbose: bool = False) -> str:
    buffer = io.StringIO()
    render(Console(file=buffer, width=200), report(), host="gpu1", verbose=verbose)
    return buffer.getvalue()


def test_exit_codes() -> None:
    assert exit_code(report(ok=True)) == 0
    assert exit_code(report()) == 1


def test_table_shows_failure_hint_and_unknown_output() -> None:
    text = text_of()
    for expected in ("gpu1: release r1", "import-error: undefined symbol", "Traceback <x>", "do this", "[bold]markup"):
        assert expected in text
    assert "SyntaxWarning" not in text
    assert "1 line of harmless output" in text
    assert "a docstring" in text_of(verbose=True)


def test_junit_is_well_formed_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "out.xml"
    write_junit(path, {"gpu1": report(), "gpu2": report(ok=True)})
    root = ElementTree.parse(path).getroot()
    suites = {suite.get("name"): suite for suite in root}
    assert {name: (suite.get("tests"), suite.get("failures")) for name, suite in suites.items()} == {
        "gpu1": ("3", "1"),
        "gpu2": ("2", "0"),
    }
    cases = {case.get("name"): case for case in suites["gpu1"].iter("testcase")}
    failure = cases["kernel"].find("failure")
    assert failure is not None
    assert failure.get("type") == "import-error"
    assert "Traceback <x>" in (failure.text or "")
    assert "do this" in (failure.text or "")
    assert "<xml> &" in (cases["kernel"].findtext("system-err") or "")
    assert cases["files"].find("skipped") is not None
    assert cases["torch"].find("failure") is None


def test_a_name_with_markup_stays_well_formed() -> None:
    ElementTree.fromstring(junit({'a"<b>&\x00': report()}).encode())


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        write_junit(tmp_path / "no" / "folder.xml", {})
    assert caught.value.id == "cannot-write"
