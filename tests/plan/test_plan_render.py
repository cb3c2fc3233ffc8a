from __future__ import annotations

import io
from typing import Any

from planning import inputs_of, release, with_release
from rich.console import Console

from ddtree_deploy.plan.build import build_plan
from ddtree_deploy.plan.render import render_plan


def drawn(patch: dict[str, Any], **options: Any) -> str:
    console = Console(file=io.StringIO(), width=200)
    render_plan(console, build_plan(inputs_of(patch)), **options)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_plan_says_what_changes_and_what_to_run() -> None:
    text = drawn({})
    assert "gpu1  /opt/train -> engine-1.0-cu130-" in text
    assert "packages 2 added, 1 replaced, 0 removed, 1 kept" in text
    assert "~ torch 2.9.1+cu128 -> 2.11.0 [cu130]  CUDA major changes cu128 -> cu130" in text
    assert "+ pybase64 1.4.3  new requirement of sglang" in text
    assert "~ sglang/server.py  +2 -1" in text
    assert "01-clone" in text and "40000 files" in text
    assert text.splitlines()[-1] == "6 actions, 3 packages, 2 files; run `ddtree-deploy provision gpu1`"
    assert "+more" not in text


def test_verbose_shows_the_files_diffs_and_every_package() -> None:
    packages = [
        {"name": "sglang", "version": "1.0", "hashes": ["x"]},
        {"name": "torch", "version": "2.11.0", "hashes": ["y"]},
    ]
    packages += [{"name": f"package-{number}", "version": "1", "hashes": ["z"]} for number in range(20)]
    patch = {"profile": {"packages": packages}}
    folded, full = drawn(patch), drawn(patch, verbose=True)
    assert "+ 20 packages: package-0, package-1, package-10, package-11 … (-v lists them)" in folded
    assert "package-19 1" not in folded and "package-19 1" in full
    assert "+more" in full


def test_problems_come_with_hints_and_end_the_plan() -> None:
    text = drawn({"facts": {"glibc": "2.17"}})
    assert "error glibc is 2.17; profile engine-1.0-cu130 needs 2.34 or newer [glibc-too-old]" in text
    assert "hint: Upgrade the host's distribution" in text
    assert text.splitlines()[-1] == "1 error: gpu1 is left as it is until it is solved"


def test_markup_in_names_is_text() -> None:
    text = drawn({"facts": {"gpu_problem": "[red]NVML[/red] mismatch", "gpus": []}})
    assert "[red]NVML[/red] mismatch" in text


def test_nothing_to_do() -> None:
    plan = build_plan(inputs_of())
    text = drawn(with_release({}, plan, current=True))
    assert text.splitlines()[-1] == f"nothing to do: {plan.release_id} is current on gpu1"


def test_without_activate_what_is_current_stays_so() -> None:
    playbook = {"playbook": {"steps": [{"step": "clone"}, {"step": "overlay"}]}}
    older = {"facts": {"current": "older", "releases": [release("older", current=True)]}}
    patch = {**playbook, **older}
    assert "current is older; it stays current\n" in drawn(patch)
    built = build_plan(inputs_of(patch))
    text = drawn(with_release(patch, built, current=False))
    activate = f"`ddtree-deploy rollback gpu1 --to {built.release_id}` makes it current"
    assert text.splitlines()[-1] == f"nothing to do: {built.release_id} is built, not activated; {activate}"
    assert "current is older; it stays for `ddtree-deploy rollback gpu1`\n" in drawn(older)
    assert "current is" not in drawn({"facts": {"current": "older", "releases": []}})


def test_an_executed_plan_does_not_say_what_to_run() -> None:
    assert "run `ddtree-deploy" not in drawn({}, executed=True)
