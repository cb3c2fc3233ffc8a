"""Each case finds exactly its id, before anything is imported; its clean twin finds no error and no warning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from abi.cases import CASES, Case
from abi.fixtures import Venv
from abi.watched_audit import WatchedAudits

from ddtree_deploy.abi.explain import EXPLANATIONS
from ddtree_deploy.abi.model import Finding

names = [case.name for case in CASES]


@pytest.fixture(scope="module")
def audits() -> Iterator[WatchedAudits]:
    with WatchedAudits() as audits:
        yield audits


def problems(audits: WatchedAudits, venv: Venv) -> list[Finding]:
    """Errors and warnings: a missing driver is a note on any machine without a GPU."""
    findings, ran = audits.audit(venv)
    assert ran == []
    return [finding for finding in findings if finding.severity != "note"]


@pytest.mark.parametrize("case", CASES, ids=names)
def test_it_is_found_as_exactly_this(case: Case, venv: Venv, audits: WatchedAudits) -> None:
    case.broken(venv)
    found = problems(audits, venv)
    assert [(f.id, f.severity, f.when) for f in found] == [(case.id, case.severity, case.when)], found
    (finding,) = found
    assert finding.title and finding.message and finding.why and finding.fix and finding.cause
    assert finding.id in EXPLANATIONS


@pytest.mark.parametrize("case", CASES, ids=names)
def test_its_clean_twin_finds_no_error_and_no_warning(case: Case, venv: Venv, audits: WatchedAudits) -> None:
    case.clean(venv)
    assert problems(audits, venv) == []


@pytest.fixture
def trap(venv: Venv) -> Path:
    """The file that comes to be when anything of the environment runs: a module, its shared object, a ``.pth``."""
    mark = venv.root.parent / "something-ran"
    python = f"open({str(mark)!r}, 'a').close()\n"
    constructor = (
        "#include <stdio.h>\n"
        f'__attribute__((constructor)) static void run(void) {{ FILE *f = fopen("{mark}", "a"); if (f) fclose(f); }}'
    )
    venv.module("trap", constructor, imports=python + "from trap import _ops\n")
    venv.write("trap.pth", "import trap\n")
    venv.write("sitecustomize.py", python)
    return mark


def test_nothing_of_the_environment_runs(venv: Venv, trap: Path, audits: WatchedAudits) -> None:
    _, ran = audits.audit(venv)
    assert ran == []
    assert not trap.exists()


@pytest.mark.parametrize(
    ("statement", "noticed"),
    [
        ("import sys; sys.path[:0] = [{site!r}]; sys.modules.pop('sitecustomize', 0); import sitecustomize", "exec of"),
        ("import site; site.addsitedir({site!r})", "exec of"),
        ("import ctypes; ctypes.CDLL({site!r} + '/trap/_ops.abi3.so')", "ctypes.dlopen"),
        ("import subprocess; subprocess.run(['touch', {mark!r}])", "subprocess.Popen"),
    ],
)
def test_it_would_be_noticed(venv: Venv, trap: Path, statement: str, noticed: str) -> None:
    with WatchedAudits() as audits:
        _, ran = audits.audit(venv, statement.format(site=str(venv.site), mark=str(trap)))
    assert any(noticed in what for what in ran), ran
    assert trap.exists()
