"""From CUDA 12 to 13 and back with compiled files of the real shape: what moves, why, and that the result fits."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import venvs
from cuda_stacks import CU128, CU130, Stack, make_stack
from donor_steps import brought

from ddtree_deploy.abi.audit import audit_environment
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.codec import from_dict, to_dict
from ddtree_deploy.errors import StepError
from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.facts.probe import collect
from ddtree_deploy.plan.build import build_plan
from ddtree_deploy.plan.donor_set import donor_profile
from ddtree_deploy.plan.inputs import PlanInputs, PlanSettings, Playbook, PlaybookStep
from ddtree_deploy.plan.model import Plan
from ddtree_deploy.profiles.model import Source
from ddtree_deploy.release.executor import apply_plan

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

STEPS = ("clone", "overlay", "audit", "activate")
BOUND = {"torch", "torchvision", "my-ops", "sglang"}


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("stacks")
    return {"cu128": make_stack(folder / "old", CU128), "cu130": make_stack(folder / "new", CU130)}


def facts_of(venv: Path, root: Path) -> HostFacts:
    found = collect({"base": str(venv), "root": str(root), "engine": "sglang"}, silent)
    return replace(from_dict(HostFacts, found), driver_cuda="13.0")


def plan_of(base: Path, donor: Path, root: Path, host: str | None = None) -> Plan:
    facts, other = facts_of(base, root), facts_of(donor, root)
    inputs = PlanInputs(
        facts=facts,
        settings=PlanSettings("here", str(root), str(base), gpus=[]),
        profile=donor_profile(facts, other, "the donor"),
        patch_set=None,
        playbook=Playbook("short", [PlaybookStep(step) for step in STEPS]),
        source=Source("donor", str(donor), host),
        donor=other,
    )
    return build_plan(inputs)


def errors(environment: Path) -> list[str]:
    report = audit_environment(str(environment))
    return sorted({finding.id for finding in report.findings if finding.severity == "error"})


@pytest.mark.parametrize(("old", "new", "there"), [("cu128", "cu130", CU130), ("cu130", "cu128", CU128)])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_set_moves_and_the_result_fits(
    stacks: dict[str, Path], root: Path, old: str, new: str, there: Stack, elsewhere: bool
) -> None:
    base, donor = stacks[old], stacks[new]
    assert errors(base) == errors(donor) == []
    before = venvs.tree_state(base), venvs.tree_state(donor)
    plan = plan_of(base, donor, root, "elsewhere" if elsewhere else None)
    assert plan.errors == []
    changes = {change.name: change for change in plan.packages}
    here = CU128 if there is CU130 else CU130
    assert set(changes) == BOUND | {here.runtime[0], there.runtime[0], here.kernel[0], there.kernel[0]}
    assert changes["torch"].reason == f"CUDA major changes {old} -> {new}"
    assert changes["my-ops"].reason == "its shared objects link to torch's libraries: moves with torch"
    assert changes[here.runtime[0]].change == "remove"
    assert changes[there.runtime[0]].change == "add"
    assert "two names for one thing" in changes[here.kernel[0]].reason
    assert changes["sglang"].reason.startswith(f"{here.engine} wants torch=={here.torch}, the release has")
    assert plan.unchanged_packages == 1  # plain

    params: dict[str, Any] = {"plan": to_dict(plan), "blobs": {}}
    if elsewhere:
        overlay = next(action for action in plan.actions if action.step == "overlay")
        packages = {entry["name"]: entry["version"] for entry in overlay.params["install"]}
        fingerprint = overlay.params["donor_fingerprint"]
        done = brought(donor, root, base, packages, fingerprint=fingerprint)
        params["donor"] = {"staging": done["staging"], "site": done["site"], "paths": done["names"], "notes": []}
    apply_plan(params, silent)
    release = (root / "current").resolve()
    assert errors(release) == []
    site = release / venvs.SITE
    assert (site / "torch" / "version.py").read_text() == (donor / venvs.SITE / "torch" / "version.py").read_text()
    assert (site / "plain" / "__init__.py").read_text() == (base / venvs.SITE / "plain" / "__init__.py").read_text()
    assert not (site / here.runtime[2]).exists()
    assert (venvs.tree_state(base), venvs.tree_state(donor)) == before


@pytest.mark.parametrize("kept", ["my-ops", "torchvision", "sgl-kernel", "nvidia-cuda-runtime"])
def test_what_would_be_left_behind_would_be_found(stacks: dict[str, Path], root: Path, kept: str) -> None:
    """The negative control: with one package of the set left as it was, the mix is refused."""
    plan = plan_of(stacks["cu128"], stacks["cu130"], root)
    overlay = next(action for action in plan.actions if action.step == "overlay")
    left = {kept, {"sgl-kernel": "sglang-kernel"}.get(kept, kept)}
    overlay.params["install"] = [entry for entry in overlay.params["install"] if entry["name"] not in left]
    overlay.params["remove"] = [name for name in overlay.params["remove"] if name not in left]
    with pytest.raises(StepError) as caught:
        apply_plan({"plan": to_dict(plan), "blobs": {}}, silent)
    assert caught.value.id == "mix-would-fail"
    assert not (root / "current").exists()


def test_torch_alone_breaks_everything_that_is_bound_to_it(stacks: dict[str, Path], root: Path) -> None:
    plan = plan_of(stacks["cu128"], stacks["cu130"], root)
    overlay = next(action for action in plan.actions if action.step == "overlay")
    taken = ("torch", "nvidia-cuda-runtime")  # with what it links to: some hosts have that, others do not
    overlay.params.update(install=[entry for entry in overlay.params["install"] if entry["name"] in taken])
    overlay.params.update(remove=["torch"], preview=False)
    actions = [action for action in plan.actions if action.step != "audit"]
    apply_plan({"plan": to_dict(replace(plan, actions=actions)), "blobs": {}}, silent)
    release = (root / "current").resolve()
    report = audit_environment(str(release))
    text = "\n".join(finding.message for finding in report.findings if finding.severity == "error")
    for name in ("my_ops", "torchvision", "sgl_kernel", "c10::check_old"):
        assert name in text


def test_links_are_facts(stacks: dict[str, Path], root: Path) -> None:
    base = facts_of(stacks["cu128"], root).base
    assert base is not None
    found = {package.name: package.links for package in base.packages}
    assert found == {
        "my-ops": ["torch"],
        "nvidia-cuda-runtime-cu12": [],
        "plain": [],
        "sgl-kernel": ["cuda12", "torch"],
        "sglang": [],
        "torch": [],
        "torchvision": ["cuda12", "torch"],
    }
    requires = {package.name: package.requires for package in base.packages}
    assert requires["torch"] == ["nvidia-cuda-runtime-cu12==12.8.90; platform_system == 'Linux'"]
