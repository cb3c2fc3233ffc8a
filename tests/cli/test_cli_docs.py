"""docs/cli.md against the program."""

from __future__ import annotations

import re
from pathlib import Path

from ddtree_deploy.cli.app import _COMMANDS
from ddtree_deploy.errors import ExitCode
from ddtree_deploy.plan.inputs import BUDGET_MAX

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "cli.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the tables under a heading."""
    section = re.split(r"^#+ ", DOCS.partition(f"# {heading}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_problem_is_documented_with_its_severity() -> None:
    documented = {
        id: severity for ids, severity, _ in rows("What can stand in the way") for id in re.findall(r"`([a-z-]+)`", ids)
    }
    raised: dict[str, set[str]] = {}
    for path in (ROOT / "ddtree_deploy" / "plan").glob("*.py"):
        text = path.read_text("utf-8")
        for id in re.findall(r"\berror\(\s*\"([a-z-]+)\"", text):
            raised.setdefault(id, set()).add("error")
        for severity, id in re.findall(r"Problem\(\s*\"(\w+)\", \"([a-z-]+)\"", text):
            raised.setdefault(id, set()).add(severity)
    assert set(documented) == set(raised)
    assert all(severity in documented[id] for id, severities in raised.items() for severity in severities)


def test_every_exit_code_is_documented() -> None:
    assert [int(code) for code, _ in rows("Exit codes")] == [int(code) for code in ExitCode]


def test_every_command_with_hosts_says_what_its_json_has() -> None:
    documented = {name for names, _ in rows("JSON") for name in re.findall(r"`([a-z]+)[^`]*`", names)}
    assert documented == {name for name, *_ in _COMMANDS}


def test_the_budgets_limit_is_the_planners() -> None:
    assert f"the budget is 1 to {BUDGET_MAX}" in DOCS
