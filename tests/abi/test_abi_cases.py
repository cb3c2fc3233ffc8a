"""Each case finds exactly its id, and its clean twin finds nothing."""

import pytest
from abi.cases import CASES, Case
from abi.fixtures import Venv

from ddtree_deploy.abi.audit import audit_environment
from ddtree_deploy.abi.explain import EXPLANATIONS
from ddtree_deploy.abi.model import Finding

names = [case.name for case in CASES]


def problems(venv: Venv) -> list[Finding]:
    """Errors and warnings: a missing driver is a note on any machine without a GPU."""
    report = audit_environment(str(venv.root), venv.host)
    return [finding for finding in report.findings if finding.severity != "note"]


@pytest.mark.parametrize("case", CASES, ids=names)
def test_it_is_found_as_exactly_this(case: Case, venv: Venv) -> None:
    case.broken(venv)
    found = problems(venv)
    assert [(f.id, f.severity, f.when) for f in found] == [(case.id, case.severity, case.when)], found
    (finding,) = found
    assert finding.title and finding.message and finding.why and finding.fix and finding.cause
    assert finding.id in EXPLANATIONS


@pytest.mark.parametrize("case", CASES, ids=names)
def test_its_clean_twin_finds_nothing(case: Case, venv: Venv) -> None:
    case.clean(venv)
    assert problems(venv) == []
