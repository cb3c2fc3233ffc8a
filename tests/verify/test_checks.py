"""Each way in which a release fails to import is told apart from the others."""

from __future__ import annotations

import shutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from release_double import GOOD, fill, make_venv, site_packages

from ddtree_deploy.agent.protocol import Progress, silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.verify import probe
from ddtree_deploy.verify.checks import TITLES, op_verify, run_checks, torch_cuda
from ddtree_deploy.verify.model import CheckResult


@pytest.fixture
def release(tmp_path: Path) -> Iterator[Path]:
    yield make_venv(tmp_path / "root" / "releases" / "r1")


def results(release: Path, **options: Any) -> dict[str, CheckResult]:
    found = run_checks(release, **options)
    assert [result.id for result in found] == list(TITLES)
    return {result.id: result for result in found}


def statuses(found: dict[str, CheckResult]) -> dict[str, str]:
    return {name: result.status for name, result in found.items()}


ALL_OK = dict.fromkeys(TITLES, "ok")


def test_a_good_release(release: Path) -> None:
    seen: list[Progress] = []
    found = results(fill(release), progress=seen.append)
    assert statuses(found) == ALL_OK
    assert found["torch"].summary == "torch 2.11.0+cu130, CUDA 13.0, no GPU in sight"
    assert found["modules"].summary.count("sglang/srt/speculative/") == 2
    assert found["kernel"].summary == "sgl_kernel 0.4.2 loads (sm100)"
    assert all(result.output == [] for result in found.values())
    assert seen[-1].finished


def test_a_venv_without_an_engine_fails_cleanly(release: Path) -> None:
    found = results(release)
    assert set(statuses(found).values()) == {"failed"}
    assert {result.cause for result in found.values()} == {"missing-module"}
    assert "torch" in found["torch"].summary
    assert all(result.hint for result in found.values())


@pytest.mark.parametrize(
    ("changes", "check", "cause", "text"),
    [
        ({"torchvision/__init__.py": "import pybase64"}, "torchvision", "missing-module", "pybase64"),
        (
            {"sgl_kernel/__init__.py": "raise ImportError('common_ops.so: undefined symbol: _ZN2at')"},
            "kernel",
            "import-error",
            "undefined symbol",
        ),
        ({"sglang/srt/managers/scheduler.py": "import pybase64"}, "server", "missing-module", "pybase64"),
        ({"torchvision/__init__.py": "raise SystemExit(3)"}, "torchvision", "import-error", "SystemExit"),
        (
            {"sgl_kernel/__init__.py": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"},
            "kernel",
            "crash",
            "SIGSEGV",
        ),
        ({"torchvision/__init__.py": "import os; os._exit(9)"}, "torchvision", "crash", "exit code 9"),
        ({"torchvision/__init__.py": "import ctypes; ctypes.string_at(0)"}, "torchvision", "crash", "SIGSEGV"),
        ({"sglang/srt/speculative/ddtree_utils.py": None}, "modules", "missing-module", "ddtree_utils"),
        (
            {
                "sglang/srt/speculative/spec_info.py": (
                    "class SpeculativeAlgorithm:\n    from_string = staticmethod(int)\n"
                )
            },
            "algorithm",
            "wrong-value",
            "does not know DDTREE",
        ),
        (
            {
                "sglang/srt/speculative/spec_info.py": (
                    "class A:\n    is_dflash = lambda self: False\n"
                    "class SpeculativeAlgorithm:\n    from_string = staticmethod(lambda name: A())\n"
                )
            },
            "algorithm",
            "wrong-value",
            "is_dflash() False, is_ddtree() missing",
        ),
    ],
)
def test_one_broken_thing(release: Path, changes: dict[str, str | None], check: str, cause: str, text: str) -> None:
    found = results(fill(release, changes))
    assert statuses(found) == {**ALL_OK, check: "failed"}
    assert found[check].cause == cause
    assert text in found[check].summary
    assert found[check].hint


def test_a_wrong_answer_of_an_operator(release: Path) -> None:
    torchvision = (
        "__version__ = '0'\nclass ops:\n    nms = staticmethod(lambda *_: __import__('array').array('i', [0, 1]))\n"
    )
    found = results(fill(release, {"torchvision/__init__.py": torchvision}))
    assert (found["torchvision"].status, found["torchvision"].cause) == ("failed", "wrong-value")


def test_a_hang_is_ended_and_says_where(release: Path) -> None:
    fill(release, {"torchvision/__init__.py": "import time\ntime.sleep(600)\n"})
    for limit_s in (1.0, 4.0, 16.0):  # the others may need longer than the shortest on a busy machine
        found = results(release, limit_s=limit_s)
        if statuses(found) == {**ALL_OK, "torchvision": "failed"}:
            break
    assert statuses(found) == {**ALL_OK, "torchvision": "failed"}
    assert found["torchvision"].cause == "hang"
    assert any("torchvision/__init__.py" in line.text for line in found["torchvision"].output)


def test_a_module_from_outside_of_the_release(release: Path, tmp_path: Path) -> None:
    fill(release)
    outside = tmp_path / "elsewhere"
    shutil.move(str(site_packages(release) / "torchvision"), str(outside / "torchvision"))
    (site_packages(release) / "editable.pth").write_text(f"{outside}\n")
    found = results(release)
    assert statuses(found) == {**ALL_OK, "torchvision": "failed"}
    assert found["torchvision"].cause == "outside-release"
    assert str(outside) in found["torchvision"].summary


def test_nothing_leaks_in_from_the_caller(release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(release)
    (tmp_path / "leak").mkdir()
    (tmp_path / "leak" / "torchvision.py").write_text("raise ImportError('leaked')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "leak"))
    monkeypatch.setenv("LD_PRELOAD", "/nowhere.so")
    monkeypatch.chdir(tmp_path / "leak")
    assert statuses(results(release)) == ALL_OK


def test_the_environment_is_the_services(release: Path) -> None:
    torch = (
        "import os\nfrom torch import version\n__version__ = os.environ['FROM_PROFILE'] + os.environ['MINE']\n"
        "class cuda:\n    device_count = staticmethod(lambda: 0)\ntensor = list\n"
    )
    fill(release, {"torch/__init__.py": torch}, {"environment": {"FROM_PROFILE": "{release}/lib;", "MINE": "profile"}})
    assert f"{release}/lib;profile" in results(release)["torch"].summary
    assert f"{release}/lib;override" in results(release, environment={"MINE": "override"})["torch"].summary


def test_python_that_cannot_run(release: Path) -> None:
    fill(release)
    python = release / "bin" / "python"
    python.unlink()
    found = results(release)
    assert {result.cause for result in found.values()} == {"python-missing"}
    python.write_text("#!/nowhere/python\n")
    python.chmod(0o755)
    assert {result.cause for result in results(release).values()} == {"python-missing"}
    python.write_text("#!/bin/sh\necho no libpython >&2\nexit 127\n")
    found = results(release)
    assert {result.cause for result in found.values()} == {"python-missing"}
    assert found["torch"].output[0].text == "no libpython"


def test_output_is_given_to_its_check_and_classed(release: Path) -> None:
    noisy = "import sys\nprint('Failed: SM 12.x requires CUDA >= 12.9.', file=sys.stderr)\nprint('odd')\n"
    fill(release, {"sgl_kernel/sm100/common_ops.py": noisy})
    found = results(release)
    assert statuses(found) == ALL_OK
    assert [(line.kind, line.text) for line in found["kernel"].output] == [
        ("noise", "Failed: SM 12.x requires CUDA >= 12.9."),
        ("unknown", "odd"),
    ]
    (site_packages(release) / "torch" / "version.py").write_text("cuda = '12.8'\n")
    found = results(release)
    assert statuses(found) == {**ALL_OK, "kernel": "warning"}
    assert found["kernel"].output[0].kind == "warning"


TOOLS = {"nvcc": "nvcc", "C++ compiler": "c++", "C compiler": "gcc", "ninja": "ninja"}
A_GPU = """
        class cuda:
            device_count = staticmethod(lambda: 1)
            get_device_name = staticmethod(lambda index: "a double of a GPU")
            OutOfMemoryError = MemoryError
        class ones(int):
            __new__ = lambda kind, count, device: int.__new__(kind, count)
            sum = lambda self: self
            item = lambda self: float(self)
"""


@pytest.mark.parametrize("missing", [*TOOLS, ""])
def test_nothing_to_compile_the_engines_kernels_with(release: Path, tmp_path: Path, missing: str) -> None:
    for what, tool in TOOLS.items():
        path = tmp_path / ("elsewhere" if what == missing else "bin") / tool
        path.parent.mkdir(exist_ok=True)
        path.touch(0o755)
    (tmp_path / "lib64").mkdir()
    (tmp_path / "lib64" / "libcudart.so").touch()
    environment = {"PATH": str(tmp_path / "bin"), "CUDA_HOME": str(tmp_path)}
    assert statuses(results(fill(release), environment=environment)) == ALL_OK  # without a GPU nothing is compiled
    found = results(fill(release, {"torch/__init__.py": GOOD["torch/__init__.py"] + A_GPU}), environment=environment)
    assert found["torch"].status == "ok"
    summary = found["kernel"].summary
    assert [what for what in TOOLS if f"no {what}" in summary] == ([missing] if missing else [])
    assert found["kernel"].status == ("warning" if " no " in summary else "ok")


@pytest.mark.parametrize(
    ("environment", "tools", "missing"),
    [
        ({}, ["bin/nvcc", "bin/gcc", "lib64/libcudart.so"], []),
        ({}, ["cuda/bin/nvcc", "bin/gcc", "cuda/lib64/libcudart.so"], []),
        ({"CUDA_HOME": ""}, ["cuda/bin/nvcc", "bin/gcc", "cuda/lib64/libcudart.so"], []),
        ({"CUDA_PATH": "{}/cuda"}, ["bin/nvcc", "cuda/bin/nvcc", "bin/gcc", "cuda/lib64/libcudart.so"], []),
        ({"CUDA_HOME": "{}/other"}, ["bin/nvcc", "cuda/bin/nvcc", "bin/gcc", "lib64/libcudart.so"], ["nvcc"]),
        ({}, ["bin/nvcc", "cuda/bin/nvcc", "bin/gcc", "cuda/lib64/libcudart.so"], ["libcudart.so"]),
        ({"LIBRARY_PATH": "{}/a:{}/b"}, ["bin/nvcc", "bin/gcc", "b/libcudart.so"], []),
        ({}, ["bin/nvcc", "bin/clang", "lib64/libcudart.so"], ["gcc"]),
        ({"NVCC_CCBIN": "clang"}, ["bin/nvcc", "bin/clang", "lib64/libcudart.so"], []),
        ({"CC": "{}/cc"}, ["bin/nvcc", "bin/gcc", "lib64/libcudart.so"], ["C compiler"]),
        ({"CC": ""}, ["bin/nvcc", "bin/gcc", "lib64/libcudart.so"], ["C compiler"]),
        ({"CXX": "{}/bin/c++ -m64"}, ["bin/nvcc", "bin/gcc", "lib64/libcudart.so"], []),
        ({"CXX": ""}, ["bin/nvcc", "bin/gcc", "lib64/libcudart.so"], ["C++ compiler"]),
    ],
)
def test_compilers_are_looked_for_where_the_engine_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], tools: list[str], missing: list[str]
) -> None:
    for name in ("CUDA_HOME", "CUDA_PATH", "LIBRARY_PATH", "CC", "CXX", "NVCC_CCBIN"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"PATH": "{}/bin", **environment}.items():
        monkeypatch.setenv(name, value.replace("{}", str(tmp_path)))
    monkeypatch.setattr(probe, "USUAL_CUDA", str(tmp_path / "cuda"))
    monkeypatch.setattr(probe, "LIBRARY_FOLDERS", ())
    monkeypatch.setattr(probe.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    for tool in ("bin/c++", "bin/ninja", "Python.h", *tools):
        path = tmp_path / tool
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
    assert probe.compilers_missing() == missing


def test_pythons_header_is_among_what_is_compiled_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe.sysconfig, "get_paths", lambda scheme: {"include": str(tmp_path)})
    assert "Python.h" in probe.compilers_missing()
    (tmp_path / "Python.h").touch()
    assert "Python.h" not in probe.compilers_missing()


@pytest.mark.parametrize(("tag", "status"), [("cu130", "ok"), ("cu128", "failed"), ("cpu", "ok")])
def test_torch_of_another_cuda_than_the_profiles(release: Path, tag: str, status: str) -> None:
    found = results(fill(release, record={"abi_tag": tag}))
    assert statuses(found) == {**ALL_OK, "torch": status}
    if status == "failed":
        assert found["torch"].cause == "wrong-value"
        assert "CUDA 13.0" in found["torch"].summary and "cu128" in found["torch"].summary


@pytest.mark.parametrize(
    ("devices", "visible", "fails"), [(True, None, True), (True, "", False), (False, None, False), (True, "0", True)]
)
def test_gpus_that_torch_does_not_see(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: bool, visible: str | None, fails: bool
) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 12080).\nPlease update")

    double = types.SimpleNamespace(
        __version__="2.11.0",
        __file__=str(tmp_path / "torch.py"),
        version=types.SimpleNamespace(cuda="13.0"),
        cuda=types.SimpleNamespace(device_count=lambda: 0, init=init),
    )
    if devices:
        (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(probe, "DEVICES", tmp_path)
    monkeypatch.setattr(probe, "RELEASE", str(tmp_path))
    monkeypatch.setattr(probe, "load", lambda name: double)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    result = probe.run("torch")
    assert (result["status"] == "failed") is fails
    if fails:
        assert "driver on your system is too old" in result["summary"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("cuda: Optional[str] = '13.0'", "13.0"), ("cuda = '12.8'\nhip = None", "12.8"), ("cuda = None", None)],
)
def test_torch_cuda(release: Path, text: str, expected: str | None) -> None:
    fill(release, {"torch/version.py": text})
    assert torch_cuda(release) == expected


def test_the_operation(release: Path) -> None:
    root = release.parent.parent
    (root / "current").symlink_to("releases/r1")
    fill(release)
    report = op_verify({"root": str(root)}, silent)
    assert (report["ok"], report["release"], report["path"]) == (True, "r1", str(release))
    fill(release, {"sglang/srt/speculative/ddtree_utils.py": None})
    report = op_verify({"root": str(root), "release": "r1"}, silent)
    assert report["ok"] is False


@pytest.mark.parametrize(
    ("params", "id"),
    [({}, "no-current-release"), ({"release": "r9"}, "release-missing")],
)
def test_bad_params(tmp_path: Path, params: dict[str, Any], id: str) -> None:
    with pytest.raises(InputError) as caught:
        op_verify({"root": str(tmp_path), **params}, silent)
    assert caught.value.id == id
