"""Libraries and symbols: each case finds exactly its id, and its clean twin finds nothing."""

from pathlib import Path

import pytest
from abi.fixtures import Venv

from ddtree_deploy.abi.audit import audit_environment, op_audit
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError

CALLS_TORCH = "namespace c10 { int device_count(); } int run() { return c10::device_count(); }"
CALLS_DRIFTED = "namespace c10 { int device_count_v2(int); } int run() { return c10::device_count_v2(1); }"
SCHEMA = "#include <string>\nnamespace torch { namespace jit { void parseSchema(const std::string&); } }\n"
CALLS_SCHEMA = SCHEMA + 'void run() { torch::jit::parseSchema("a"); }'
OLD_ABI = "-D_GLIBCXX_USE_CXX11_ABI=0"


def problems(venv: Venv) -> list[Finding]:
    """Findings that matter: a missing driver is a note on any machine without a GPU."""
    report = audit_environment(str(venv.root), venv.host)
    return [finding for finding in report.findings if finding.severity != "note"]


def ids(venv: Venv) -> list[str]:
    return [finding.id for finding in problems(venv)]


def test_a_kernel_built_for_this_torch_is_clean(venv: Venv) -> None:
    venv.torch()
    venv.kernel("kernels_ok", CALLS_TORCH)
    assert ids(venv) == []


def test_a_kernel_built_for_another_torch(venv: Venv) -> None:
    venv.torch()
    venv.kernel("drifted", CALLS_DRIFTED)
    (finding,) = problems(venv)
    assert (finding.id, finding.severity, finding.when) == ("undefined-torch-symbol", "error", "import")
    assert finding.symbols == ["c10::device_count_v2(int)"]
    assert finding.files == ["lib/python3.11/site-packages/drifted/_ops.abi3.so"]
    assert finding.packages == ["drifted 1.0", "torch 2.11.0+cu130"]


def test_a_kernel_with_the_old_string_abi(venv: Venv) -> None:
    venv.torch(extra_source=SCHEMA + "void torch::jit::parseSchema(const std::string& text) { (void)text; }")
    venv.kernel("old_strings", CALLS_SCHEMA, OLD_ABI)
    assert ids(venv) == ["old-cxx-abi"]


def test_a_kernel_with_the_new_string_abi_is_clean(venv: Venv) -> None:
    venv.torch(extra_source=SCHEMA + "void torch::jit::parseSchema(const std::string& text) { (void)text; }")
    venv.kernel("new_strings", CALLS_SCHEMA)
    assert ids(venv) == []


def test_a_kernel_that_was_left_out_of_its_own_build(venv: Venv) -> None:
    venv.torch()
    source = "namespace at { struct Tensor; } void silu_and_mul_nvfp4_quant(at::Tensor&); "
    venv.kernel("left_out", source + "void run(at::Tensor& t) { silu_and_mul_nvfp4_quant(t); }")
    (finding,) = problems(venv)
    assert finding.id == "undefined-symbol"
    assert finding.symbols == ["silu_and_mul_nvfp4_quant(at::Tensor&)"]


def test_a_weak_reference_may_stay_undefined(venv: Venv) -> None:
    venv.torch()
    venv.kernel(
        "weak", "extern void optional_part() __attribute__((weak)); void run() { if (optional_part) optional_part(); }"
    )
    assert ids(venv) == []


def test_a_cuda_12_wheel_beside_a_cuda_13_torch(venv: Venv, tmp_path: Path) -> None:
    venv.torch(cuda="13.0")
    other = Venv(tmp_path / "other").object("libcudart.so.12", "void cudaMalloc(void) {}")
    venv.kernel("for_cuda12", 'extern "C" void cudaMalloc(); void run() { cudaMalloc(); }', str(other))
    (finding,) = problems(venv)
    assert finding.id == "cuda-major-mismatch"
    assert "libcudart.so.12" in finding.message and "cu130" in finding.title


def test_a_kernel_for_torchs_cuda_is_clean(venv: Venv) -> None:
    venv.torch(cuda="13.0")
    runtime = venv.site / "nvidia/cuda/lib/libcudart.so.13"
    venv.kernel("for_cuda13", 'extern "C" void cudaMalloc(); void run() { cudaMalloc(); }', str(runtime))
    assert ids(venv) == []


def test_a_system_library_that_the_host_lacks_names_its_debian_package(venv: Venv, tmp_path: Path) -> None:
    venv.host = venv.host.__class__(
        **{**venv.host.__dict__, "libraries": {}, "folders": ["/lib/x86_64-linux-gnu-absent"]}
    )
    venv.host = venv.host.__class__(
        **{**venv.host.__dict__, "libraries": {"libc.so.6": "/lib/x86_64-linux-gnu/libc.so.6"}}
    )
    numa = Venv(tmp_path / "other").object("libnuma.so.1", "int numa_available(void) { return 0; }")
    init = venv.write("uses_numa/__init__.py", "from uses_numa import _n\n")
    source = "int numa_available(void); int run(void) { return numa_available(); }"
    module = venv.object("uses_numa/_n.abi3.so", source, str(numa), soname=None)
    venv.install("uses-numa", "1.0", [init, module])
    (finding,) = problems(venv)
    assert finding.id == "missing-library"
    assert finding.fix == "apt-get install libnuma1"


def test_the_operation_of_the_agent_refuses_a_path_that_is_no_environment(tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        op_audit({"path": str(tmp_path / "absent")}, silent)
    assert error.value.id == "no-environment"
    with pytest.raises(InputError) as error:
        op_audit({"path": str(tmp_path)}, silent)
    assert error.value.id == "no-environment"


def test_the_operation_of_the_agent_returns_a_report(venv: Venv) -> None:
    venv.torch()
    venv.kernel("drifted", CALLS_DRIFTED)
    report = op_audit({"path": str(venv.root), "environment": {}}, silent)
    assert report["counts"]["error"] == 1 and report["abi_tag"] == "cu130"
    assert [f["id"] for f in report["findings"] if f["severity"] == "error"] == ["undefined-torch-symbol"]
