"""Builds small real environments: folders with dist-info, Python files and shared objects compiled with gcc."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ddtree_deploy.abi.host import HostLimits, probe_host

TORCH_SOURCE = """
namespace c10 { void torch_check(int value) { (void)value; } int device_count() { return 0; } }
namespace at { int empty(int size) { return size; } }
"""
NEW_STRING_SOURCE = """
#include <string>
namespace torch { namespace jit { void parseSchema(const std::string& text) { (void)text; } } }
"""


def compile_object(path: Path, source: str, *arguments: str, language: str = "c", soname: str | None = "") -> Path:
    """A shared object at ``path``; ``soname`` "" means the file's own name, None means that it has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name if soname == "" else soname
    options = [f"-Wl,-soname,{name}"] if name else []
    compiler = "g++" if language == "c++" else "gcc"
    command = [
        compiler,
        "-x",
        language,
        "-shared",
        "-fPIC",
        "-O0",
        "-o",
        str(path),
        "-",
        "-x",
        "none",
        *options,
        *arguments,
    ]
    subprocess.run(command, input=source, text=True, check=True, capture_output=True)
    return path


def sha256(path: Path) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


@dataclass
class Venv:
    """A folder laid out as a venv of Python 3.11, made for a test. ``host`` is what its host is said to allow."""

    root: Path
    host: HostLimits = field(default_factory=lambda: plain_host())

    @property
    def site(self) -> Path:
        return self.root / "lib/python3.11/site-packages"

    def write(self, name: str, text: str = "") -> Path:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def object(self, name: str, source: str = "", *arguments: str, **options: str | None) -> Path:
        """Compile a shared object into site-packages; ``-L`` and ``-l`` are the caller's."""
        return compile_object(self.site / name, source, *arguments, **options)  # type: ignore[arg-type]

    def install(
        self,
        name: str,
        version: str,
        files: list[Path] | None = None,
        *,
        requires: list[str] | None = None,
        tags: list[str] | None = None,
        metadata_version: str | None = None,
        metadata_name: str | None = None,
    ) -> Path:
        """Write the dist-info that a wheel with these files has."""
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        lines = [f"Name: {metadata_name or name}", f"Version: {metadata_version or version}"]
        lines += [f"Requires-Dist: {text}" for text in requires or []]
        (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n\nText.\n")
        wheel = ["Wheel-Version: 1.0", *(f"Tag: {tag}" for tag in tags or ["py3-none-any"])]
        (info / "WHEEL").write_text("\n".join(wheel) + "\n")
        (info / "INSTALLER").write_text("pip\n")
        rows = []
        for path in [*(files or []), info / "METADATA", info / "WHEEL", info / "INSTALLER"]:
            rows.append(f"{path.relative_to(self.site).as_posix()},{sha256(path)},{path.stat().st_size}")
        rows.append(f"{info.name}/RECORD,,")
        (info / "RECORD").write_text("\n".join(rows) + "\n")
        return info

    def torch(self, version: str = "2.11.0", cuda: str | None = "13.0", extra_source: str = "") -> list[Path]:
        """A torch whose libraries are tiny; with ``cuda`` it has the runtime's library of that major beside it."""
        lib = self.site / "torch/lib"
        local = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
        text = f"__version__ = '{version}+{local}'\ncuda: Optional[str] = {cuda!r}\n"
        files = [self.write("torch/__init__.py", "from torch._C import *\n"), self.write("torch/version.py", text)]
        rpath = ["-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cuda/lib"]
        needed = []
        if cuda:
            major = cuda.split(".")[0]
            runtime = self.object(f"nvidia/cuda/lib/libcudart.so.{major}", "void cudaMalloc(void) {}")
            self.install(f"nvidia-cuda-runtime-cu{major}", f"{cuda}.0", [runtime])
            needed = ["-Wl,--no-as-needed", str(runtime)]
        source = TORCH_SOURCE + extra_source
        c10 = compile_object(lib / "libc10.so", source, *rpath, *needed, language="c++")
        cpu = compile_object(lib / "libtorch_cpu.so", "", *rpath, "-Wl,--no-as-needed", str(c10))
        link = [*rpath, "-Wl,--no-as-needed", str(c10), str(cpu)]
        libraries = [c10, cpu, *(compile_object(lib / f"libtorch{part}.so", "", *link) for part in ("", "_python"))]
        c_module = self.object(
            "torch/_C.cpython-311-x86_64-linux-gnu.so", "void PyInit__C(void) {}", *link, soname=None
        )
        files += [*libraries, c_module]
        self.install("torch", version, files, tags=["cp311-cp311-manylinux_2_28_x86_64"])
        return files

    def kernel(self, name: str, source: str, *arguments: str, libraries: tuple[str, ...] = ("libc10.so",)) -> Path:
        """A package with one compiled module that needs torch's libraries and carries no RPATH, as kernel wheels do."""
        init = self.write(f"{name}/__init__.py", f"import torch\nfrom {name} import _ops\n")
        lib = self.site / "torch/lib"
        link = ["-Wl,--no-as-needed", *(str(lib / library) for library in libraries), "-Wl,--allow-shlib-undefined"]
        path = self.object(f"{name}/_ops.abi3.so", source, *link, *arguments, language="c++", soname=None)
        self.install(name, "1.0", [init, path], tags=["cp310-abi3-manylinux2014_x86_64"])
        return path


def plain_host(**changes: object) -> HostLimits:
    """The C library of this machine, without driver, GPUs or LD_LIBRARY_PATH."""
    probed = probe_host("")
    bare = replace(probed, driver=None, driver_cuda=None, compute_capabilities=[], toolkits=[])
    return replace(bare, **changes)  # type: ignore[arg-type]


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    root = tmp_path / "venv"
    (root / "lib/python3.11/site-packages").mkdir(parents=True)
    (root / "pyvenv.cfg").write_text("home = /nonexistent/bin\nversion = 3.11.2\n")
    return Venv(root)
