"""Small environments of the shape of torch 2.9.1 for CUDA 12.8 and torch 2.11.0 for CUDA 13.0: the right sonames, links
and symbols, and next to no code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import venvs
from abi.fixtures import compile_object

NO_AS_NEEDED = "-Wl,--no-as-needed"


@dataclass(frozen=True)
class Stack:
    """What differs between the two. ``symbol``: a function of libc10 that only this torch has."""

    torch: str
    cuda: str
    runtime: tuple[str, str, str]  # distribution, version, folder of its library
    kernel: tuple[str, str]
    vision: str
    engine: str
    symbol: str

    @property
    def major(self) -> str:
        return self.cuda.split(".")[0]


CU128 = Stack(
    "2.9.1",
    "12.8",
    ("nvidia-cuda-runtime-cu12", "12.8.90", "nvidia/cuda_runtime/lib"),
    ("sgl-kernel", "0.3.21"),
    "0.24.1",
    "0.5.6",
    "check_old",
)
CU130 = Stack(
    "2.11.0",
    "13.0",
    ("nvidia-cuda-runtime", "13.0.96", "nvidia/cu13/lib"),
    ("sglang-kernel", "0.4.2"),
    "0.26.0",
    "0.5.11",
    "check_new",
)


def make_stack(path: Path, stack: Stack) -> Path:
    """A venv with torch, CUDA's runtime, torchvision, the kernels, an engine, an extension of somebody's own, and a
    package that has nothing to do with any of it."""
    venv = venvs.make_venv(path)
    site = venv / venvs.SITE
    name, version, folder = stack.runtime
    runtime = f"{folder}/libcudart.so.{stack.major}"
    _compile(site / runtime, "void cudaMalloc(void) {}")
    _install(site, name, version, [runtime])

    lib = site / "torch" / "lib"
    rpath = f"-Wl,-rpath,$ORIGIN:$ORIGIN/../../{folder}"
    source = f"namespace c10 {{ void {stack.symbol}(int value) {{ (void)value; }} void common(int v) {{ (void)v; }} }}"
    c10 = _compile(lib / "libc10.so", source, rpath, NO_AS_NEEDED, str(site / runtime))
    cpu = _compile(lib / "libtorch_cpu.so", "", rpath, NO_AS_NEEDED, str(c10))
    _compile(lib / "libtorch.so", "", rpath, NO_AS_NEEDED, str(c10), str(cpu))
    local = "cu" + stack.cuda.replace(".", "")
    text = f"__version__ = '{stack.torch}+{local}'\ncuda = '{stack.cuda}'\n"
    files = {"torch/__init__.py": "", "torch/version.py": text, "torchgen/__init__.py": "", "functorch/__init__.py": ""}
    names = [f"torch/lib/{library}.so" for library in ("libc10", "libtorch_cpu", "libtorch")]
    requires = [f"{name}=={version}; platform_system == 'Linux'"]
    _install(site, "torch", stack.torch, [*names, *_write(site, files)], requires)

    wants = f"namespace c10 {{ void {stack.symbol}(int); }}\n"
    wants += f'extern "C" void PyInit_ops(void) {{ c10::{stack.symbol}(1); }}'
    for package, module, package_version in (
        (stack.kernel[0], "sgl_kernel", stack.kernel[1]),
        ("torchvision", "torchvision", stack.vision),
        ("my-ops", "my_ops", "1.0"),
    ):
        library = f"{module}/ops.abi3.so"
        cuda = [] if module == "my_ops" else [str(site / runtime)]
        _compile(site / library, wants, NO_AS_NEEDED, str(c10), *cuda, soname=False)
        sources = _write(site, {f"{module}/__init__.py": f"import torch\nfrom {module} import ops\n"})
        requires = [f"torch=={stack.torch}"] if package == "torchvision" else []
        _install(site, package, package_version, [library, *sources], requires)
    requires = [f"torch=={stack.torch}", f"{stack.kernel[0]}=={stack.kernel[1]}"]
    imports = "".join(f"import {module}\n" for module in ("torch", "torchvision", "sgl_kernel", "my_ops"))
    _install(site, "sglang", stack.engine, _write(site, {"sglang/__init__.py": imports}), requires)
    _install(site, "plain", stack.torch, _write(site, {"plain/__init__.py": f"V = '{stack.torch}'\n"}))
    return venv


def _compile(path: Path, source: str, *arguments: str, soname: bool = True) -> Path:
    return compile_object(path, source, *arguments, language="c++", soname="" if soname else None)


def _write(site: Path, files: dict[str, str]) -> list[str]:
    for name, text in files.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return list(files)


def _install(site: Path, name: str, version: str, files: list[str], requires: list[str] | None = None) -> None:
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    headers = "".join(f"Requires-Dist: {text}\n" for text in requires or [])
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{headers}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
        f"{info}/INSTALLER": "pip\n",
    }
    rows = []
    for path in [*files, *_write(site, texts)]:
        data = (site / path).read_bytes()
        rows.append(f"{path},{venvs.record_hash(data)},{len(data)}\n")
    (site / info / "RECORD").write_text("".join(rows) + f"{info}/RECORD,,\n")
