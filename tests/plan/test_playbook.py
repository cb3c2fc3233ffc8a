"""Playbooks: order, options, and places of what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.plan.inputs import Playbook, PlaybookStep
from ddtree_deploy.plan.playbook import STEPS, load_playbook


def load(folder: Path, steps: str) -> Playbook:
    path = folder / "mine.yaml"
    path.write_text(f"name: mine\nsteps:\n{steps}")
    return load_playbook(path)


def test_shipped() -> None:
    assert load_playbook("provision") == Playbook("provision", [PlaybookStep(step) for step in STEPS])


def test_own_by_name(tmp_path: Path) -> None:
    load(tmp_path, "  - clone\n  - activate\n")
    assert [step.step for step in load_playbook("mine", [tmp_path]).steps] == ["clone", "activate"]


def test_command(tmp_path: Path) -> None:
    text = """
  - clone
  - step: command
    argv: ["{release}/bin/python", -m, pip, check, 1.0]
  - step: command
    name: warm up
    argv: [sh, -c, "echo {}"]
    when: gpu
    timeout: 5
  - patch
"""
    steps = load(tmp_path, text).steps
    argv = ["{release}/bin/python", "-m", "pip", "check", "1.0"]
    assert steps[1].options == {"argv": argv, "name": " ".join(argv), "when": "always", "timeout": 600}
    assert steps[2].options == {"argv": ["sh", "-c", "echo {}"], "name": "warm up", "when": "gpu", "timeout": 5}
    assert [step.step for step in steps] == ["clone", "command", "command", "patch"]


@pytest.mark.parametrize(
    ("steps", "id", "place", "words"),
    [
        ("  - clone\n  - ovrlay\n", "unknown-step", "4:5", "'ovrlay'"),
        ("  - patch\n  - clone\n", "playbook-order", "3:5", "patch before clone"),
        ("  - step: command\n    argv: [a]\n  - clone\n", "playbook-order", "3:5", "command before clone"),
        ("  - clone\n  - patch\n  - overlay\n", "playbook-order", "5:5", "overlay after patch"),
        ("  - clone\n  - smoke\n  - audit\n", "playbook-order", "5:5", "audit after smoke"),
        ("  - clone\n  - activate\n  - smoke\n", "playbook-order", "5:5", "smoke after activate"),
        ("  - clone\n  - activate\n  - {step: command, argv: [a]}\n", "playbook-order", "5:5", "after activate"),
        ("  - clone\n  - clone\n", "playbook-twice", "4:5", "clone"),
        ("  - overlay\n", "playbook-no-clone", "3:3", "without clone"),
        ("  - clone\n  - step: command\n", "playbook-options", "4:5", "argv"),
        ("  - clone\n  - {step: command, argv: []}\n", "bad-value", "4:27", "at least one"),
        ("  - clone\n  - {step: command, argv: ls}\n", "wrong-type", "4:27", "expected a list"),
        ("  - clone\n  - {step: command, argv: [a, true]}\n", "wrong-type", "4:31", "expected text"),
        ("  - clone\n  - {step: command, argv: [a], when: never}\n", "bad-value", "4:38", "'gpu'"),
        ("  - clone\n  - {step: command, argv: [a], timeout: 0}\n", "bad-value", "4:41", "at least 1"),
        ("  - clone\n  - {step: patch, argv: [a]}\n", "playbook-options", "4:19", "patch"),
        ("  - clone\n  - {step: patch, fuzz: 2}\n", "unknown-key", "4:19", "fuzz"),
        ("  - clone\n  - {name: patch}\n", "missing-key", "4:5", "'step'"),
        ("  - clone\n  - 5\n", "wrong-type", "4:5", "found the number 5"),
        ("  []\n", "bad-value", "3:3", "at least one"),
    ],
)
def test_bad(steps: str, id: str, place: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, steps)
    assert (caught.value.id, caught.value.where) == (id, f"{tmp_path}/mine.yaml:{place}")
    assert words in caught.value.message
    assert caught.value.exit_code == 3


def test_unknown() -> None:
    with pytest.raises(InputError) as caught:
        load_playbook("provison")
    assert caught.value.id == "unknown-playbook"
    assert "provision" in str(caught.value.hint)
