"""The set of a donor's packages that moves: all that is bound to torch or CUDA, what that needs, and nothing else."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from planning import inputs_of
from rich.console import Console

from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import HostFacts, Package
from ddtree_deploy.plan.build import build_plan
from ddtree_deploy.plan.donor_set import donor_profile
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Plan
from ddtree_deploy.plan.render import render_plan
from ddtree_deploy.profiles.model import Source

CU12 = [
    Package("torch", "2.9.1+cu128", "cu128", requires=["nvidia-nccl-cu12==2.27.5", "triton==3.5.1", "sympy>=1.13"]),
    Package("torchvision", "0.24.1", "cu128", requires=["torch==2.9.1"]),
    Package("triton", "3.5.1"),
    Package("nvidia-nccl-cu12", "2.27.5", "cu12"),
    Package("nvidia-cuda-runtime-cu12", "12.8.90", "cu128"),
    Package("sgl-kernel", "0.3.21", "cu12", links=["cuda12", "torch"]),
    Package("sglang", "0.5.9", requires=["torch==2.9.1", "sgl-kernel==0.3.21"]),
    Package("sympy", "1.13.3"),
    Package("numpy", "2.3.5"),
]
CU13 = [
    Package(
        "torch",
        "2.11.0",
        "cu130",
        requires=[
            "nvidia-nccl-cu13==2.28.9; platform_system == 'Linux'",
            "cuda-toolkit[cudart]==13.0.2; platform_system == 'Linux'",
            "cuda-bindings>=13; platform_system == 'Linux'",
            "triton==3.6.0",
            "sympy>=1.13.3",
            "setuptools<82",
            "intel-openmp; platform_system == 'Windows'",
        ],
    ),
    Package("torchvision", "0.26.0", "cu130", requires=["torch==2.11.0", "numpy", "pillow>=5"]),
    Package("triton", "3.6.0"),
    Package("nvidia-nccl-cu13", "2.28.9", "cu13"),
    Package(
        "cuda-toolkit",
        "13.0.2",
        "cu130",
        requires=["nvidia-cuda-runtime==13.0.96; extra == 'cudart'", "nvidia-cublas==13.1; extra == 'cublas'"],
    ),
    Package("nvidia-cuda-runtime", "13.0.96", "cu130"),
    Package("nvidia-cublas", "13.1", "cu13"),
    Package("cuda-bindings", "13.2.0", requires=["cuda-pathfinder~=1.1"]),
    Package("cuda-pathfinder", "1.5.4"),
    Package("sglang-kernel", "0.4.2", "cu13", links=["cuda13", "torch"]),
    Package("sglang", "0.5.11", requires=["torch==2.11.0", "sglang-kernel==0.4.2", "pybase64"]),
    Package("pybase64", "1.4.3"),
    Package("pillow", "12.2.0"),
    Package("sympy", "1.14.0"),
    Package("setuptools", "81.0.0"),
    Package("numpy", "2.4.6"),
    Package("intel-openmp", "2025"),
    Package("xgrammar", "0.1"),
]


def inputs(base: list[Package], donor: list[Package], **changes: Any) -> PlanInputs:
    plain = inputs_of({"donor": {}, **changes})
    assert plain.donor is not None and plain.donor.base is not None and plain.facts.base is not None
    facts = replace(plain.facts, base=replace(plain.facts.base, packages=base))
    other = replace(plain.donor, base=replace(plain.donor.base, path="/opt/donor", packages=donor))
    profile = donor_profile(facts, other, "gpu2:/opt/donor")
    playbook = replace(plain.playbook, steps=[step for step in plain.playbook.steps if step.step != "patch"])
    return replace(
        plain,
        facts=facts,
        donor=other,
        profile=profile,
        playbook=playbook,
        source=Source("donor", "/opt/donor", "gpu2"),
    )


def planned(base: list[Package], donor: list[Package]) -> Plan:
    return build_plan(inputs(base, donor))


def reasons(plan: Plan) -> dict[str, str]:
    return {change.name: f"{change.change}: {change.reason}" for change in plan.packages}


def without(packages: list[Package], *names: str) -> list[Package]:
    return [package for package in packages if package.name not in names]


def test_from_cuda_12_to_13() -> None:
    plan = planned(CU12, CU13)
    assert not plan.errors
    assert reasons(plan) == {
        "torch": "replace: CUDA major changes cu128 -> cu130",
        "torchvision": "replace: CUDA major changes cu128 -> cu130",
        "triton": "replace: bound to torch's C++ ABI: moves with torch",
        "nvidia-nccl-cu13": "add: CUDA major changes cu128 -> cu130",
        "nvidia-cuda-runtime": "add: CUDA major changes cu128 -> cu130",
        "cuda-toolkit": "add: needed by torch 2.11.0",
        "cuda-bindings": "add: needed by torch 2.11.0",
        "cuda-pathfinder": "add: needed by torch 2.11.0",
        "setuptools": "add: needed by torch 2.11.0",
        "pillow": "add: needed by torchvision 0.26.0",
        "sglang-kernel": "add: takes the place of sgl-kernel: two names for one thing",
        "sglang": "replace: 0.5.9 wants torch==2.9.1, the release has torch 2.11.0",
        "pybase64": "add: needed by sglang 0.5.11",
        "nvidia-nccl-cu12": "remove: for CUDA 12, the release is cu130: two CUDA runtimes in one process",
        "nvidia-cuda-runtime-cu12": "remove: for CUDA 12, the release is cu130: two CUDA runtimes in one process",
        "sgl-kernel": "remove: two names for one thing: sglang-kernel takes its place",
    }
    assert plan.unchanged_packages == 2  # numpy and sympy are content with their versions


def test_and_back() -> None:
    plan = planned(CU13, CU12)
    assert not plan.errors
    found = reasons(plan)
    assert found["torch"] == "replace: CUDA major changes cu130 -> cu128"
    assert found["sgl-kernel"].startswith("add: takes the place of sglang-kernel")
    assert found["nvidia-nccl-cu12"] == "add: CUDA major changes cu130 -> cu128"
    assert found["nvidia-cublas"].startswith("remove: for CUDA 13")
    assert found["sglang"] == "replace: 0.5.11 wants torch==2.11.0, the release has torch 2.9.1+cu128"
    kept = {"numpy", "sympy", "setuptools", "pillow", "pybase64", "xgrammar", "cuda-pathfinder"}
    assert not kept & set(found)


def test_a_version_that_does_not_do_is_replaced() -> None:
    old = [*without(CU12, "sympy"), Package("sympy", "1.12"), Package("setuptools", "82.0")]
    found = reasons(planned(old, CU13))
    assert found["sympy"] == "replace: torch 2.11.0 needs sympy>=1.13.3"
    assert found["setuptools"] == "replace: torch 2.11.0 needs setuptools<82"


def test_files_copied_over_an_older_package_are_replaced() -> None:
    """torch's folder is of another version than its dist-info: what is locked is laid again."""
    base = [*without(CU13, "triton"), Package("triton", "3.6.0", disagrees="3.5.1")]
    found = reasons(planned(base, CU13))
    assert found == {"triton": "replace: its files are of 3.5.1, whatever its metadata says"}


def test_nothing_moves_between_equals() -> None:
    plan = planned(CU13, CU13)
    assert plan.packages == [] and plan.unchanged_packages == len(CU13)


def test_only_torch_moves_where_the_major_stays() -> None:
    newer = [
        replace(package, version="2.11.1", requires=package.requires) if package.name == "torch" else package
        for package in without(CU13, "sglang", "sglang-kernel", "torchvision")
    ]
    base = [*without(CU13, "sglang", "sglang-kernel", "torchvision"), Package("sglang", "0.5.11")]
    assert reasons(planned(base, newer)) == {
        "torch": "replace: torch comes from the donor",
        "triton": "replace: bound to torch's C++ ABI: moves with torch",
    }


def test_extensions_are_known_by_what_they_link_to() -> None:
    """An extension of one's own, under any name: the donor's build of it moves, and one it has not cannot stay."""
    mine = Package("my-ops", "1.0", links=["torch"])
    cupy = Package("cupy", "13.0", links=["cuda12"])
    both = Package("both", "1.0", links=["cuda12", "cuda13"])
    plan = planned([*CU12, mine, cupy, both], [*CU13, mine])
    found = reasons(plan)
    assert found["my-ops"] == "replace: its shared objects link to torch's libraries: moves with torch"
    assert found["cupy"] == "remove: its shared objects link to libraries of CUDA 12, the release is cu130"
    assert "both" not in found
    assert [problem.id for problem in plan.problems] == ["bound-package-removed"]
    plan = planned([*CU12, mine], CU13)
    assert reasons(plan)["my-ops"].startswith("remove: its shared objects link to the libraries of torch 2.9.1+cu128")


def test_a_base_without_engine_gets_the_donor_s() -> None:
    found = reasons(planned(without(CU12, "sglang", "sgl-kernel"), CU13))
    assert found["sglang"] == "add: the base venv has no engine"
    assert (
        found["sglang-kernel"] == "add: CUDA major changes cu128 -> cu130"
        or "needed by sglang" in found["sglang-kernel"]
    )
    assert found["pybase64"] == "add: needed by sglang 0.5.11"


def test_an_engine_for_the_donor_s_kernels_stays() -> None:
    base = [*without(CU12, "sglang"), Package("sglang", "0.5.11", requires=["sglang-kernel==0.4.2"])]
    plan = planned(base, CU13)
    assert "sglang" not in reasons(plan) and not plan.errors


def test_copied_libraries_without_metadata_stand_for_all_of_them() -> None:
    bare = Package("nvidia", "13", "cu13", record=False, bare=True)
    donor = [*without(CU13, "nvidia-nccl-cu13", "nvidia-cuda-runtime", "nvidia-cublas"), bare]
    found = reasons(planned(CU12, donor))
    assert found["nvidia"] == "add: CUDA major changes cu128 -> cu130"
    assert found["nvidia-nccl-cu12"].startswith("remove: for CUDA 12")
    leftovers = replace(bare, version="12", abi_tag="cu12")
    assert "nvidia" not in reasons(planned(CU12, [*CU13, leftovers]))


def test_donors_that_are_none() -> None:
    with pytest.raises(InputError) as caught:
        planned(CU12, without(CU13, "torch"))
    assert caught.value.id == "donor-without-torch"
    plain = inputs_of({"donor": {"base": {"exists": False, "problem": "there is no such folder"}}})
    assert plain.donor is not None
    with pytest.raises(InputError, match="no such folder") as caught:
        donor_profile(plain.facts, plain.donor, "gpu2:/x")
    assert caught.value.id == "donor-missing"


def test_another_python_or_machine_is_refused() -> None:
    def ids(change: dict[str, Any]) -> list[str]:
        given = inputs(CU12, CU13)
        assert given.donor is not None and given.donor.base is not None
        donor: HostFacts = replace(given.donor, machine=change.get("machine", "x86_64"))
        donor = replace(donor, base=replace(donor.base, python=change.get("python", "3.11.2")))
        return [problem.id for problem in build_plan(replace(given, donor=donor)).errors]

    assert ids({}) == []
    assert ids({"python": "3.12.3"}) == ["donor-python"]
    assert ids({"machine": "aarch64"}) == ["donor-machine"]


def test_the_release_is_another_when_the_donor_is() -> None:
    one = build_plan(inputs(CU12, CU13))
    two = build_plan(inputs(CU12, [*without(CU13, "triton"), Package("triton", "3.6.1")]))
    assert one.release_id != two.release_id and one.release_id.startswith("donor-")


class TestMixing:
    """A profile's packages from a donor, and what it lacks from an index or a wheelhouse."""

    DONOR = (Package("torch", "2.11.0", "cu13"), Package("sglang", "1.0"), Package("pybase64", "1.0"))

    def plan(self, source: Source, donor: list[Package] | None = None, **more: Any) -> Plan:
        plain = inputs_of({"donor": {"base": {"path": "/opt/donor"}}, **more})
        assert plain.donor is not None and plain.donor.base is not None
        other = replace(plain.donor, base=replace(plain.donor.base, packages=donor or list(self.DONOR)))
        return build_plan(replace(plain, donor=other, source=source))

    def test_the_donor_first_the_index_for_the_rest(self) -> None:
        plan = self.plan(Source("donor", "/opt/donor", "gpu2", rest=Source("index")))
        assert not plan.errors
        sources = {change.name: change.source for change in plan.packages}
        assert sources == {"torch": "gpu2:/opt/donor", "sglang": "gpu2:/opt/donor", "pybase64": "index"}
        overlay = next(action for action in plan.actions if action.step == "overlay")
        assert [entry["name"] for entry in overlay.params["install"]] == ["sglang", "torch"]
        assert [entry["name"] for entry in overlay.params["rest"]["install"]] == ["pybase64"]
        assert "2 packages from the donor, install 1 package from the index" in overlay.summary

    def test_the_plan_says_which_comes_from_where(self) -> None:
        console = Console(file=io.StringIO(), width=200)
        render_plan(console, self.plan(Source("donor", "/opt/donor", "gpu2", rest=Source("index"))))
        render_plan(console, planned(CU12, CU13))
        text = console.file.getvalue()  # type: ignore[attr-defined]
        assert "+ pybase64 1.4.3  new requirement of sglang (from index)" in text
        assert "CUDA major changes cu128 -> cu130 (from gpu2:/opt/donor)" in text
        assert "── from gpu2:/opt/donor\n" in text

    def test_without_the_rest_it_is_an_error_that_names_it(self) -> None:
        plan = self.plan(Source("donor", "/opt/donor", "gpu2"))
        (problem,) = plan.errors
        assert problem.id == "donor-lacks" and "pybase64 1.4.3 (it has 1.0)" in problem.message
        assert "--source index" in (problem.hint or "")

    def test_a_wheelhouse_that_lacks_it_too(self) -> None:
        plan = self.plan(Source("donor", "/opt/donor", None, rest=Source("wheelhouse", "/wheels")))
        assert [problem.id for problem in plan.errors] == ["wheel-missing"]

    def test_another_build_or_files_of_another_version_are_not_it(self) -> None:
        other = [replace(self.DONOR[0], abi_tag="cu12"), self.DONOR[1], Package("pybase64", "1.4.3", disagrees="1.4.0")]
        plan = self.plan(Source("donor", "/opt/donor", "gpu2"), other)
        (problem,) = plan.errors
        assert "torch built for cu130 (it has cu12)" in problem.message
        assert "pybase64 1.4.3 (its metadata says so, but its files are of 1.4.0)" in problem.message

    def test_the_rest_is_part_of_the_release_s_identity(self) -> None:
        donor = [*self.DONOR[:2], Package("pybase64", "1.4.3")]
        alone = self.plan(Source("donor", "/opt/donor", "gpu2"), donor)
        mixed = self.plan(Source("donor", "/opt/donor", "gpu2", rest=Source("index")), donor)
        assert alone.release_id != mixed.release_id
