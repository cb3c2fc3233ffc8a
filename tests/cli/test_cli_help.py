from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_support import run, spawn, write_inventory

from ddtree_deploy.cli.app import _COMMANDS, _GROUPS

COMMANDS = [[name] for name, *_ in _COMMANDS]
COMMANDS += [[group, name] for group, _, commands in _GROUPS for name, *_ in commands]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_of_itself(words: list[str]) -> None:
    ran = run(*words, "--help")
    assert ran.code == 0
    examples = ran.out.partition("Example")[2]
    assert re.search(rf"^    ddtree-deploy {' '.join(words)}\b", examples, re.MULTILINE)
    assert run(*words, "-h").code == 0


def test_the_commands_of_the_contract_are_there() -> None:
    text = run("--help").out
    for name in ["inventory", "facts", "survey", "plan", "provision", "verify", "abi", "launch", "status", "logs"]:
        assert re.search(rf"^  {name} +\w", text, re.MULTILINE), name
    for name in ["stop", "restart", "releases", "rollback", "prune", "patches"]:
        assert re.search(rf"^  {name} +\w", text, re.MULTILINE), name


def complete(*words: str) -> set[str]:
    """What bash is offered after ``words``, the last of which is being typed."""
    line = " ".join(["ddtree-deploy", *words])
    ran = spawn(_DDTREE_DEPLOY_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words)))
    return set(ran.out.split())


def test_completion_knows_hosts_profiles_and_patch_sets(tmp_path: Path) -> None:
    inventory = str(write_inventory(tmp_path))
    assert complete("--inventory", inventory, "plan", "t") == {"two", "training"}
    assert complete("rel") == {"releases"}
    assert "sglang-0.5.11-cpu" in complete("plan", "--profile", "sglang")
    assert "sglang-0.5.11" in complete("patches", "check", "--patch-set", "sgl")


def test_completion_of_a_broken_inventory_is_empty(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("hosts: [", "utf-8")
    assert complete("--inventory", str(broken), "plan", "x") == set()


def test_completion_script_is_printed() -> None:
    ran = spawn("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert ran.code == 0
    assert "_DDTREE_DEPLOY_COMPLETE=complete_bash" in ran.out
