"""--help and completion must not pay for what commands need: nothing heavy is imported before a command runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pydantic", "paramiko", "yaml", "elftools", "cryptography", "rich", "uv")
CODE = """
import sys
{action}
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & set({heavy!r})))
"""
BUILD = "from ddtree_deploy.cli.app import command; command()"


def imported(action: str) -> set[str]:
    code = CODE.format(action=action, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_entry_point_is_cheap() -> None:
    assert imported("import ddtree_deploy.cli.main") == set()


def test_building_the_commands_is_cheap() -> None:
    assert imported(BUILD) == set()


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["provision", "--help"], ["patches", "export", "--help"]])
def test_help_needs_little(words: list[str]) -> None:
    action = f"from ddtree_deploy.cli.main import main; assert main({words!r}) == 0"
    assert imported(action) <= {"rich", "pydantic"}  # --version prints by rich, Typer's option types may need pydantic
