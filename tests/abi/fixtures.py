"""Builds small real environments: folders with dist-info, Python files and shared objects compiled with gcc."""

from __future__ import annotations

import atexit
import base64
import functools
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from ddtree_deploy.abi.elf import ElfFile
from ddtree_deploy.abi.host import HostLimits, probe_host

TORCH_SOURCE = """
namespace c10 { void torch_check(int value) { (void)value; } int device_count() { return 0; } }
namespace at { int empty(int size) { return size; } }
"""
CP311 = "cpython-311-x86_64-linux-gnu.so"
TORCH_TAGS = ["cp311-cp311-manylinux_2_28_x86_64"]
NO_AS_NEEDED = "-Wl,--no-as-needed"


def compile_object(path: Path, source: str, *arguments: str, language: str = "c", soname: str | None = "") -> Path:
    """A shared object at ``path``; ``soname`` "" means the file's own name, None means that it has none.

    Each is compiled once in a session.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name if soname == "" else soname
    options = [f"-Wl,-soname,{name}"] if name else []
    compiler = "g++" if language == "c++" else "gcc"
    command = [compiler, "-x", language, "-shared", "-fPIC", "-O0", "-", "-x", "none", *options, *arguments]
    key = hashlib.sha256(repr([source, *(_named_in_output(word) for word in command)]).encode()).hexdigest()
    kept = Path(os.environ["DDTREE_TESTS_CACHE"]) / key
    if not kept.exists():
        new = kept.with_name(f"{key}.{os.getpid()}")
        done = subprocess.run([*command, "-o", str(new)], input=source, text=True, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        new.replace(kept)
    shutil.copy(kept, path)
    return path


def _named_in_output(word: str) -> object:
    """What an argument of the linker leaves in its output: of a library its soname, wherever it lies."""
    if not word.startswith("/") or not Path(word).is_file():
        return word
    with ElfFile(word) as library:
        return hashlib.sha256(Path(word).read_bytes()).hexdigest(), library.info().soname or word


def sha256(path: Path) -> str:
    """The hash of a file in RECORD's form."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    return f"sha256={digest}"


def fatbin(*architectures: tuple[int, str, int], size: int = 70_000) -> bytes:
    """A fat binary with an entry each: (90, "sm" or "compute", flags); ``size`` bytes of empty code in all."""
    entries = b""
    for number, kind, flags in architectures:
        payload = size // len(architectures) // 8 * 8
        header = struct.pack("<HHIQ", 1 if kind == "compute" else 2, 0x101, 64, payload)
        header += struct.pack("<IIIIIIQ", payload, 0, 0, number, 64, 0, flags).ljust(48, b"\0")
        # Offsets that count: 28 the architecture, 40 the flags.
        header = header[:28] + struct.pack("<III", number, 64, 0) + struct.pack("<Q", flags)
        entries += header.ljust(64, b"\0") + bytes(payload)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


@functools.cache
def _built_torch(cuda: str | None, extra_source: str) -> Path:
    """Torch's libraries, compiled once for each kind and copied into every environment that wants one."""
    site = Path(tempfile.mkdtemp(prefix="abi-torch-"))
    atexit.register(shutil.rmtree, site, ignore_errors=True)
    lib = site / "torch/lib"
    rpath = ["-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../../nvidia/cuda/lib"]
    needed = []
    if cuda:
        runtime = site / f"nvidia/cuda/lib/libcudart.so.{cuda.split('.')[0]}"
        needed = [NO_AS_NEEDED, str(compile_object(runtime, "void cudaMalloc(void) {}"))]
    c10 = compile_object(lib / "libc10.so", TORCH_SOURCE + extra_source, *rpath, *needed, language="c++")
    cpu = compile_object(lib / "libtorch_cpu.so", "", *rpath, NO_AS_NEEDED, str(c10))
    link = [*rpath, NO_AS_NEEDED, str(c10), str(cpu)]
    for part in ("", "_python"):
        compile_object(lib / f"libtorch{part}.so", "", *link)
    link[0] = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib"
    compile_object(site / f"torch/_C.{CP311}", "void PyInit__C(void) {}", *link, soname=None)
    return site


@dataclass
class Venv:
    """A folder laid out as a venv of Python 3.11, made for a test. ``host`` is what its host is said to allow."""

    root: Path
    host: HostLimits = field(default_factory=lambda: plain_host())

    @property
    def site(self) -> Path:
        return self.root / "lib/python3.11/site-packages"

    @property
    def elsewhere(self) -> Path:
        """A folder outside of the environment, for libraries to link to that will not be there."""
        return self.root.parent / "elsewhere"

    def write(self, name: str, text: str = "") -> Path:
        path = self.site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def object(self, name: str, source: str = "", *arguments: str, **options: str | None) -> Path:
        """Compile a shared object into site-packages."""
        return compile_object(self.site / name, source, *arguments, **options)  # type: ignore[arg-type]

    def foreign(self, name: str, source: str = "") -> Path:
        """Compile a library outside of the environment."""
        return compile_object(self.elsewhere / name, source)

    def install(
        self,
        name: str,
        version: str = "1.0",
        files: list[Path] | None = None,
        *,
        requires: list[str] | None = None,
        tags: list[str] | None = None,
        headers: str = "",
    ) -> Path:
        """Write the dist-info that a wheel with these files has; ``headers`` replace Name and Version."""
        info = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        lines = [headers or f"Name: {name}\nVersion: {version}", *(f"Requires-Dist: {text}" for text in requires or [])]
        (info / "METADATA").write_text("Metadata-Version: 2.1\n" + "\n".join(lines) + "\n\nText.\n")
        wheel = ["Wheel-Version: 1.0", *(f"Tag: {tag}" for tag in tags or ["py3-none-any"])]
        (info / "WHEEL").write_text("\n".join(wheel) + "\n")
        (info / "INSTALLER").write_text("pip\n")
        owned = [*(files or []), info / "METADATA", info / "WHEEL", info / "INSTALLER"]
        rows = [f"{path.relative_to(self.site).as_posix()},{sha256(path)},{path.stat().st_size}" for path in owned]
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n")
        return info

    def torch(self, version: str = "2.11.0", cuda: str | None = "13.0", extra_source: str = "") -> list[Path]:
        """A torch whose libraries are tiny; with ``cuda`` it has the runtime's library of that major beside it."""
        shutil.copytree(_built_torch(cuda, extra_source), self.site, dirs_exist_ok=True)
        local = f"cu{cuda.replace('.', '')}" if cuda else "cpu"
        text = f"from typing import Optional\n__version__ = '{version}+{local}'\ncuda: Optional[str] = {cuda!r}\n"
        files = [self.write("torch/__init__.py", "from torch._C import *\n"), self.write("torch/version.py", text)]
        files += sorted((self.site / "torch").rglob("*.so"))
        if cuda:
            major = cuda.split(".")[0]
            runtime = self.site / f"nvidia/cuda/lib/libcudart.so.{major}"
            self.install(f"nvidia-cuda-runtime-cu{major}", f"{cuda}.0", [runtime])
        self.install("torch", version, files, tags=TORCH_TAGS)
        return files

    def module(self, name: str, source: str = "", *arguments: str, imports: str | None = None, **options: str) -> Path:
        """A package with one compiled module ``_ops`` that its ``__init__`` imports."""
        init = self.write(f"{name}/__init__.py", f"from {name} import _ops\n" if imports is None else imports)
        path = self.object(f"{name}/_ops.abi3.so", source, *arguments, soname=None, **options)
        self.install(name, "1.0", [init, path], tags=["cp310-abi3-manylinux2014_x86_64"])
        return path

    def kernel(self, name: str, source: str, *arguments: str) -> Path:
        """As ``module``, linked to torch's libraries and without RPATH, as kernel wheels are."""
        libraries = [str(self.site / f"torch/lib/{library}") for library in ("libc10.so", "libtorch_cpu.so")]
        link = [NO_AS_NEEDED, *libraries, "-Wl,--allow-shlib-undefined", *arguments]
        return self.module(name, source, *link, language="c++", imports=f"import torch\nfrom {name} import _ops\n")


def plain_host(**changes: object) -> HostLimits:
    """The C library of this machine, without driver, GPUs or LD_LIBRARY_PATH, and without CUDA's libraries."""
    probed = _probed_host()
    libraries = {name: path for name, path in probed.libraries.items() if "cuda" not in path}
    bare = replace(probed, driver=None, driver_cuda=None, compute_capabilities=[], toolkits=[], libraries=libraries)
    return replace(bare, **changes)  # type: ignore[arg-type]


@functools.cache
def _probed_host() -> HostLimits:
    return probe_host("")


def make_venv(root: Path) -> Venv:
    (root / "lib/python3.11/site-packages").mkdir(parents=True)
    (root / "pyvenv.cfg").write_text("home = /nonexistent/bin\nversion = 3.11.2\n")
    return Venv(root)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    return make_venv(tmp_path / "venv")
