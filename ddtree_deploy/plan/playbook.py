"""Playbooks: the ordered steps of ``provision`` as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from pydantic import BeforeValidator, Field

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.models import Text
from ddtree_deploy.inventory.validation import Finding, StrictModel, near, report, validate
from ddtree_deploy.inventory.yaml_lines import KeyPath, read_text, read_yaml
from ddtree_deploy.named_files import find_named
from ddtree_deploy.plan.inputs import Playbook, PlaybookStep
from ddtree_deploy.resources import data_dir

STEPS = ("clone", "overlay", "patch", "audit", "smoke", "activate")
COMMAND = "command"


def _short(value: Any) -> Any:
    return {"step": value} if isinstance(value, str) else value


class StepEntry(StrictModel):
    """``step`` alone, or ``command`` with its options."""

    step: Text
    name: Optional[Text] = None
    argv: Annotated[Optional[list[str]], Field(min_length=1)] = None
    when: Optional[Literal["always", "gpu", "cpu"]] = None
    timeout: Optional[Annotated[int, Field(ge=1, le=86400)]] = None


class PlaybookFile(StrictModel):
    """The whole file."""

    name: Text
    steps: Annotated[list[Annotated[StepEntry, BeforeValidator(_short)]], Field(min_length=1)]


def load_playbook(name_or_path: str | Path, search: Sequence[Path] = ()) -> Playbook:
    """A shipped playbook, or a user's own by name in the ``search`` folders or by path from the working folder.

    Options of a ``command``: ``argv`` (``{release}`` stands for the release being built), ``name``, ``when`` (always,
    gpu or cpu) and ``timeout`` in seconds, all set. Raises InputError: ``unknown-playbook``, ``unknown-step``,
    ``playbook-order``, ``playbook-no-clone``, ``playbook-twice``, ``playbook-options``, and those of YAML files.
    """
    path = find_named("playbook", name_or_path, [*search, data_dir("playbooks")], _is_playbook, True)
    document = read_yaml(path, "playbook", frozenset({"argv"}))
    file = validate(PlaybookFile, document)
    findings = [*_option_findings(file.steps), *_order_findings(file.steps)]
    if findings:
        raise report(findings, document)
    return Playbook(name=file.name, steps=[PlaybookStep(entry.step, _options(entry)) for entry in file.steps])


def _options(entry: StepEntry) -> dict[str, Any]:
    if entry.step != COMMAND:
        return {}
    argv = list(entry.argv or [])
    return {
        "argv": argv,
        "name": entry.name or " ".join(argv),
        "when": entry.when or "always",
        "timeout": entry.timeout or 600,
    }


def _option_findings(entries: Sequence[StepEntry]) -> list[Finding]:
    findings = []
    for index, entry in enumerate(entries):
        at: KeyPath = ("steps", index)
        if entry.step == COMMAND and entry.argv is None:
            hint = 'as in argv: ["{release}/bin/python", -m, pip, check]'
            findings.append(Finding("playbook-options", "a command needs argv", at, hint))
        elif entry.step != COMMAND:
            for key in sorted(entry.model_fields_set - {"step"}):
                message = f"the step {entry.step} has no such option"
                findings.append(Finding("playbook-options", message, (*at, key), None, True))
    return findings


def _order_findings(entries: Sequence[StepEntry]) -> list[Finding]:
    findings = []
    names = [entry.step for entry in entries]
    for index, name in enumerate(names):
        at: KeyPath = ("steps", index)
        before = names[:index]
        if name not in (*STEPS, COMMAND):
            close = near(name, (*STEPS, COMMAND))
            hint = f"did you mean {close!r}?" if close else f"known: {', '.join((*STEPS, COMMAND))}"
            findings.append(Finding("unknown-step", f"unknown step {name!r}", at, hint))
        elif name in STEPS and name in before:
            findings.append(Finding("playbook-twice", f"{name} is there twice", at, "each step runs once"))
        elif "activate" in before:
            message = f"{name} after activate: nothing may change or fail once a release is current"
            findings.append(Finding("playbook-order", message, at, "move it before activate"))
        elif "clone" in names and "clone" not in before and name != "clone":
            hint = "move clone to the front"
            findings.append(Finding("playbook-order", f"{name} before clone: there is no release yet", at, hint))
        elif name in STEPS and (late := [step for step in before if step in STEPS[STEPS.index(name) + 1 :]]):
            message = f"{name} after {late[0]}: the order is {', '.join(STEPS)}"
            findings.append(Finding("playbook-order", message, at, f"move {name} before {late[0]}"))
    if "clone" not in names:
        message = "without clone there is no release for the other steps"
        findings.append(Finding("playbook-no-clone", message, ("steps",), "begin with clone"))
    return findings


def _is_playbook(path: Path) -> bool:
    try:
        return any(line.startswith("steps:") for line in read_text(path, "playbook").splitlines())
    except InputError:
        return False
