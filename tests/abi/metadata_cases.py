"""Broken environments: the interpreter, metadata, requirements and known pairs."""

from __future__ import annotations

from pathlib import Path

from abi.case import Cases, void
from abi.fixtures import CP311, Venv, compile_object
from abi.torch_cuda_cases import gpu_host

CASES = Cases()
case = CASES.case


# the interpreter --------------------------------------------------------------------------------------------------


def _interpreter(venv: Venv, target: Path) -> None:
    (venv.root / "bin").mkdir()
    (venv.root / "bin/python").symlink_to(target)
    venv.install("plain", "1.0", [venv.write("plain/__init__.py")])


def _python(venv: Venv, name: str = "python3.11", exists: bool = True) -> None:
    path = venv.elsewhere / "bin" / name
    path.parent.mkdir(parents=True)
    if exists:
        compile_object(path, "void Py_Initialize(void) {}")
    _interpreter(venv, path)


@case("interpreter-missing", when="install", clean=_python)
def interpreter_that_was_removed(venv: Venv) -> None:
    _python(venv, exists=False)


@case("interpreter-mismatch", clean=_python)
def interpreter_of_another_version(venv: Venv) -> None:
    _python(venv, "python3.12")


def _python_symbol(venv: Venv, name: str) -> None:
    _python(venv)
    venv.module("native", f"void {name}(void); void run(void) {{ {name}(); }}")


@case("undefined-python-symbol", clean=lambda venv: _python_symbol(venv, "Py_Initialize"))
def module_that_uses_another_pythons_interface(venv: Venv) -> None:
    _python_symbol(venv, "_PyThreadState_UncheckedGet")


# metadata ---------------------------------------------------------------------------------------------------------


def plain_package(venv: Venv) -> None:
    venv.install("plain", "1.0", [venv.write("plain/__init__.py")])


@case("metadata-mismatch", when="install", clean=plain_package)
def version_that_contradicts_the_folder(venv: Venv) -> None:
    venv.install("plain", "1.0", [venv.write("plain/__init__.py")], headers="Name: plain\nVersion: 2.0")


@case("metadata-mismatch", when="install", clean=plain_package)
def name_that_contradicts_the_folder(venv: Venv) -> None:
    venv.install("plain", "1.0", [venv.write("plain/__init__.py")], headers="Name: other\nVersion: 1.0")


@case("metadata-mismatch", clean=lambda venv: void(venv.torch()))
def torch_mixed_of_two_versions(venv: Venv) -> None:
    venv.torch()
    text = (venv.site / "torch/version.py").read_text()
    (venv.site / "torch/version.py").write_text(text.replace("2.11.0+cu130", "2.9.1+cu130"))


def _python_tag(venv: Venv, tag: str) -> None:
    venv.install("compiled", "1.0", [venv.write("compiled/__init__.py")], tags=[tag])


@case("wheel-tag", clean=lambda venv: _python_tag(venv, "cp311-cp311-manylinux_2_28_x86_64"))
def wheel_for_another_python(venv: Venv) -> None:
    _python_tag(venv, "cp310-cp310-manylinux_2_28_x86_64")


@case("wheel-tag", clean=lambda venv: _python_tag(venv, "cp310-abi3-manylinux_2_28_x86_64"))
def wheel_for_another_machine(venv: Venv) -> None:
    _python_tag(venv, "cp310-abi3-manylinux_2_28_aarch64")


@case("wheel-tag", clean=lambda venv: _python_tag(venv, "py3-none-manylinux2014_x86_64"))
def wheel_for_musl(venv: Venv) -> None:
    _python_tag(venv, "cp311-cp311-musllinux_1_2_x86_64")


def _extension(venv: Venv, suffix: str) -> None:
    init = venv.write("native/__init__.py", "from native import _core\n")
    module = venv.object(f"native/_core.{suffix}", "void PyInit__core(void) {}", soname=None)
    venv.install("native", "1.0", [init, module])


@case("extension-python", clean=lambda venv: _extension(venv, CP311))
def extension_module_for_another_python(venv: Venv) -> None:
    _extension(venv, CP311.replace("311", "310"))


def _installed_twice(venv: Venv, versions: tuple[str, ...]) -> None:
    for version in versions:
        venv.install("native", version, [venv.object("native/lib.so", "void run(void) {}")])


@case("duplicate-distribution", when="install", clean=lambda venv: _installed_twice(venv, ("1.0",)))
def distribution_installed_twice(venv: Venv) -> None:
    _installed_twice(venv, ("1.0", "2.0"))


@case("interrupted-install", severity="warning", when="install", clean=plain_package)
def leftovers_of_an_interrupted_install(venv: Venv) -> None:
    plain_package(venv)
    venv.write("~lain/__init__.py")
    venv.write("~lain-0.9.dist-info/METADATA", "Name: plain\nVersion: 0.9\n\n")


# requirements -----------------------------------------------------------------------------------------------------


def _requires(venv: Venv, requirement: str, installed: str | None = None, name: str = "needed") -> None:
    venv.install("needy", "1.0", [venv.write("needy/__init__.py")], requires=[requirement])
    if installed:
        venv.install(name, installed, [venv.write(f"{name.replace('-', '_')}/__init__.py")])


@case("requirement-missing", clean=lambda venv: _requires(venv, "needed>=1", "1.2"))
def requirement_not_installed(venv: Venv) -> None:
    _requires(venv, "needed>=1")


@case("requirement-missing", clean=lambda venv: _requires(venv, "needed; sys_platform == 'win32'"))
def requirement_that_a_marker_asks_for(venv: Venv) -> None:
    _requires(venv, "needed; sys_platform == 'linux' and python_version >= '3.11'")


def _extras(venv: Venv, extra: str) -> None:
    venv.install("needy", "1.0", requires=[f"needed[{extra}]"])
    venv.install("needed", "1.0", requires=["absent; extra == 'fast'"], headers="Name: needed\nVersion: 1.0")


@case("requirement-missing", clean=lambda venv: _extras(venv, "slow"))
def requirement_of_an_extra(venv: Venv) -> None:
    _extras(venv, "fast")


HUB = "huggingface-hub<1.0,>=0.34"


@case("requirement-version", clean=lambda venv: _requires(venv, HUB, "0.36.0", "huggingface-hub"))
def requirement_of_another_major(venv: Venv) -> None:
    _requires(venv, HUB, "1.2.0", "huggingface-hub")


@case(
    "requirement-version",
    severity="warning",
    when="under-load",
    clean=lambda venv: _requires(venv, "needed<1.5", "1.4"),
)
def requirement_of_another_minor(venv: Venv) -> None:
    _requires(venv, "needed<1.5", "1.6")


def _engine(venv: Venv, imports: str) -> None:
    files = [
        venv.write("sglang/__init__.py"),
        venv.write("sglang/launch_server.py", "import json\nfrom sglang import srt\n"),
        venv.write("sglang/srt/__init__.py", imports),
    ]
    venv.install("sglang", "0.5.11", files)


@case(
    "module-missing",
    clean=lambda venv: _engine(venv, "try:\n    import pybase64\nexcept ImportError:\n    pybase64 = None\n"),
)
def module_that_the_engine_imports(venv: Venv) -> None:
    _engine(venv, "import os\nimport pybase64\n")


# known pairs ------------------------------------------------------------------------------------------------------


def _versions(venv: Venv, *pairs: tuple[str, str]) -> None:
    for name, version in pairs:
        venv.install(name, version, [venv.write(f"{name.replace('-', '_')}_files.py")])


@case(
    "known-bad",
    clean=lambda venv: _versions(venv, ("sglang", "0.5.7"), ("torch", "2.9.1"), ("nvidia-cudnn-cu12", "9.16.0.29")),
)
def sglang_with_torch_2_9_1_and_old_cudnn(venv: Venv) -> None:
    _versions(venv, ("sglang", "0.5.7"), ("torch", "2.9.1"), ("nvidia-cudnn-cu12", "9.10.2.21"))


@case("known-bad", clean=lambda venv: _versions(venv, ("transformers", "5.6.0"), ("kernels", "0.12.3")))
def transformers_with_new_kernels(venv: Venv) -> None:
    _versions(venv, ("transformers", "5.6.0"), ("kernels", "0.15.1"))


def _triton(venv: Venv, version: str) -> None:
    gpu_host(venv, compute_capabilities=["12.1"])
    _versions(venv, ("triton", version))


@case("known-bad", when="first-kernel", clean=lambda venv: _triton(venv, "3.6.0"))
def triton_without_ptxas_for_blackwell(venv: Venv) -> None:
    _triton(venv, "3.5.0")


@case(
    "known-bad",
    clean=lambda venv: _versions(venv, ("flashinfer-python", "0.6.8"), ("flashinfer-cubin", "0.6.8")),
)
def flashinfer_and_its_cubins_differ(venv: Venv) -> None:
    _versions(venv, ("flashinfer-python", "0.6.8"), ("flashinfer-cubin", "0.6.7"))
