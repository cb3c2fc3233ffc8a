"""cu128 to cu130 and back with compiled fixtures of the real pairs' shape: would the mix work?"""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from abi.fixtures import Venv, make_venv, plain_host
from abi.torch_cuda_cases import CALLS_CUDA

from ddtree_deploy.abi.audit import audit_environment
from ddtree_deploy.abi.preview import Mix, op_preview, planned_environment, preview, require_fit
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError, StepError

OLD_ONLY = "namespace c10 { int message_logger(char const*) { return 1; } }"
NEW_ONLY = "namespace c10 { int message_logger(int) { return 1; } }"
CALLS_OLD = 'namespace c10 { int message_logger(char const*); } int run() { return c10::message_logger(""); }'
CALLS_NEW = "namespace c10 { int message_logger(int); } int run() { return c10::message_logger(1); }"


def environment(root: Path, torch: str, cuda: str, extra: str, kernel: str, source: str) -> Venv:
    """A torch with its own kernels, as ``sgl-kernel`` for cu128 and ``sglang-kernel`` for cu130 are."""
    venv = make_venv(root)
    venv.torch(torch, cuda=cuda, extra_source=extra)
    runtime = next((venv.site / "nvidia/cuda/lib").glob("libcudart.so.*"))
    venv.kernel(kernel.replace("-", "_"), source + CALLS_CUDA.replace("run", "start"), str(runtime))
    return venv


@pytest.fixture
def cu128(tmp_path: Path) -> Venv:
    return environment(tmp_path / "a" / "base", "2.9.1", "12.8", OLD_ONLY, "old-kernel", CALLS_OLD)


@pytest.fixture
def cu130(tmp_path: Path) -> Venv:
    return environment(tmp_path / "b" / "donor", "2.11.0", "13.0", NEW_ONLY, "new-kernel", CALLS_NEW)


def errors(mix: Mix) -> set[str]:
    return {finding.id for finding in preview(mix, plain_host()).findings if finding.severity == "error"}


def test_both_environments_are_clean_by_themselves(cu128: Venv, cu130: Venv) -> None:
    assert errors(Mix(str(cu128.root))) == errors(Mix(str(cu130.root))) == set()


def test_kernels_alone_would_not_work_in_either_direction(cu128: Venv, cu130: Venv) -> None:
    forth = Mix(str(cu128.root), ["old-kernel"], str(cu130.root), ["new-kernel"])
    back = Mix(str(cu130.root), ["new-kernel"], str(cu128.root), ["old-kernel"])
    assert errors(forth) == errors(back) == {"cuda-major-mismatch", "undefined-torch-symbol"}


def test_torch_alone_would_not_work(cu128: Venv, cu130: Venv) -> None:
    mix = Mix(str(cu128.root), ["nvidia-cuda-runtime-cu12"], str(cu130.root), ["torch", "nvidia-cuda-runtime-cu13"])
    assert errors(mix) == {"cuda-major-mismatch", "undefined-torch-symbol"}


def test_all_that_is_bound_together_works(cu128: Venv, cu130: Venv) -> None:
    forth = Mix(
        str(cu128.root),
        ["old-kernel", "nvidia-cuda-runtime-cu12"],
        str(cu130.root),
        ["torch", "new-kernel", "nvidia-cuda-runtime-cu13"],
    )
    assert errors(forth) == set()
    planned = planned_environment(forth)
    assert planned.abi_tag == "cu130" and planned.prefix == str(cu128.root)
    assert {dist.name for dist in planned.distributions} == {"torch", "new-kernel", "nvidia-cuda-runtime-cu13"}


def test_the_preview_is_what_the_audit_finds_afterwards(cu128: Venv, cu130: Venv) -> None:
    mix = Mix(str(cu128.root), ["old-kernel"], str(cu130.root), ["new-kernel"])
    before = preview(mix, plain_host()).findings
    for name in ("old_kernel", "old_kernel-1.0.dist-info"):
        shutil.rmtree(cu128.site / name)
    for name in ("new_kernel", "new_kernel-1.0.dist-info"):
        shutil.copytree(cu130.site / name, cu128.site / name)
    assert audit_environment(str(cu128.root), plain_host()).findings == before


def test_nothing_is_written(cu128: Venv, cu130: Venv, tmp_path: Path) -> None:
    def state() -> dict[str, int]:
        return {str(path): path.lstat().st_mtime_ns for path in tmp_path.rglob("*") if "cache" not in path.parts}

    before = state()
    params = {"base": str(cu128.root), "remove": ["old_kernel"], "source": str(cu130.root), "take": ["New.Kernel"]}
    report = op_preview({**params, "root": str(tmp_path / "cache"), "environment": {}}, silent)
    assert report["counts"]["error"] >= 1
    assert state() == before


def test_a_mix_that_would_fail_stops_with_its_findings(cu128: Venv, cu130: Venv) -> None:
    mix = Mix(str(cu128.root), ["old-kernel"], str(cu130.root), ["new-kernel"])
    with pytest.raises(StepError) as error:
        require_fit(mix, plain_host())
    assert error.value.id == "mix-would-fail" and "libcudart.so.13" in error.value.message
    assert {finding["id"] for finding in error.value.details["findings"]} >= {"undefined-torch-symbol"}
    require_fit(Mix(str(cu128.root)), plain_host())


def test_a_source_that_lacks_a_package_is_said_by_name(cu128: Venv, cu130: Venv) -> None:
    with pytest.raises(InputError) as error:
        preview(Mix(str(cu128.root), [], str(cu130.root), ["absent-package"]), plain_host())
    assert error.value.id == "source-lacks" and "absent-package" in error.value.message


def test_packages_without_a_record_are_taken_and_removed_by_their_folder(cu128: Venv, cu130: Venv) -> None:
    (cu128.site / "old_kernel-1.0.dist-info/RECORD").unlink()
    (cu130.site / "new_kernel-1.0.dist-info/RECORD").unlink()
    planned = planned_environment(Mix(str(cu128.root), ["old-kernel"], str(cu130.root), ["new-kernel"]))
    names = {Path(path).relative_to(cu128.site).parts[0] for path in planned.tree.files}
    assert "new_kernel" in names and "old_kernel" not in names


def test_host_limits_count_for_the_preview(cu128: Venv, cu130: Venv) -> None:
    take = ["torch", "new-kernel", "nvidia-cuda-runtime-cu13"]
    mix = Mix(str(cu128.root), ["old-kernel", "nvidia-cuda-runtime-cu12"], str(cu130.root), take)
    host = replace(plain_host(), driver="570.86", driver_cuda="12.8")
    assert [f.id for f in preview(mix, host).findings if f.severity == "error"] == ["driver-too-old"]
