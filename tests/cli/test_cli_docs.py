"""docs/cli.md against the program."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ddtree_deploy.cli.app import _COMMANDS, command
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
    budget = (ROOT / "ddtree_deploy" / "plan" / "inputs.py").read_text("utf-8")  # the planner passes these on
    raised |= {id: {"error"} for id in re.findall(r"InputError\(\"([a-z-]+)\"", budget)}
    assert set(documented) == set(raised)
    assert all(severity in documented[id] for id, severities in raised.items() for severity in severities)


def test_every_exit_code_is_documented() -> None:
    assert [int(code) for code, _ in rows("Exit codes")] == [int(code) for code in ExitCode]


def test_every_command_with_hosts_says_what_its_json_has() -> None:
    documented = {name for names, _ in rows("JSON") for name in re.findall(r"`([a-z]+)[^`]*`", names)}
    assert documented == {name for name, *_ in _COMMANDS}


def test_every_option_of_every_command_is_documented() -> None:
    documented = set(re.findall(r"--[a-z-]+", "".join(cell for row in rows("Options of commands") for cell in row)))
    negated = {"--no-wait", "--no-probe"}
    used = {option for option in options(command()) if option.startswith("--")}
    switches = {option.replace("--no-", "--") for option in negated}
    assert documented == used - switches


def options(group: Any) -> set[str]:
    """Option strings of a group's commands, and of theirs; not its own."""
    found: set[str] = set()
    for one in group.commands.values():
        found |= options(one) if hasattr(one, "commands") else set()
        found |= {text for parameter in one.params for text in (*parameter.opts, *parameter.secondary_opts)}
    return found


def test_the_budgets_limit_is_the_planners() -> None:
    assert f"the budget is 1 to {BUDGET_MAX}" in DOCS
