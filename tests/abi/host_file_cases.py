"""Broken environments: the host's runtime, and files."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

from abi.case import Cases, void
from abi.fixtures import NO_AS_NEEDED, Venv, compile_object

CASES = Cases()
case = CASES.case


# the host's runtime -----------------------------------------------------------------------------------------------

THREADS = "#include <pthread.h>\nint run(void) { return pthread_create(0, 0, 0, 0); }"  # GLIBC_2.34
CHARCONV = (
    "#include <charconv>\nint run(char* a, double b) { return std::to_chars(a, a + 9, b).ptr != a; }"  # GLIBCXX_3.4.29
)


@case("symbol-version-missing", clean=lambda venv: void(venv.module("threads", THREADS)))
def glibc_too_old(venv: Venv) -> None:
    venv.module("threads", THREADS)
    venv.host = replace(venv.host, glibc="2.31")


@case("symbol-version-missing", clean=lambda venv: void(venv.module("chars", CHARCONV, language="c++")))
def libstdcxx_too_old(venv: Venv) -> None:
    venv.module("chars", CHARCONV, language="c++")
    venv.host = replace(venv.host, glibcxx="3.4.28")


def _versioned(venv: Venv, has: str) -> None:
    def library(folder: Path, version: str) -> Path:
        script = venv.elsewhere / f"{version}.map"
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"{version} {{ global: work; }};")
        return compile_object(folder / "libwork.so.1", "void work(void) {}", f"-Wl,--version-script={script}")

    wanted = library(venv.elsewhere, "WORK_2")
    library(venv.site / "user/lib", has)
    runpath = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/lib"
    venv.module("user", "void work(void); void run(void) { work(); }", str(wanted), runpath)


@case("symbol-version-missing", clean=lambda venv: _versioned(venv, "WORK_2"))
def bundled_library_too_old(venv: Venv) -> None:
    _versioned(venv, "WORK_1")


def _needs_numa(venv: Venv, there: bool) -> None:
    numa = venv.foreign("libnuma.so.1", "int numa_available(void) { return 0; }")
    venv.module("numa_user", "int numa_available(void); int run(void) { return numa_available(); }", str(numa))
    libraries = {name: path for name, path in venv.host.libraries.items() if name != "libnuma.so.1"}
    venv.host = replace(venv.host, folders=[], libraries={**libraries, **({numa.name: str(numa)} if there else {})})


@case("missing-library", clean=lambda venv: _needs_numa(venv, True))
def system_library_missing(venv: Venv) -> None:
    _needs_numa(venv, False)


def _library_path(venv: Venv, rpath: str) -> None:
    ours = venv.object("nvidia/cublas/lib/libcublasLt.so.12", "int cublasLtVersion(void) { return 1; }")
    user = venv.object(
        "nvidia/cublas/lib/libcublas.so.12",
        "void cublas(void) {}",
        NO_AS_NEEDED,
        str(ours),
        f"-Wl,{rpath},-rpath,$ORIGIN",
    )
    venv.install("nvidia-cublas-cu12", "12.8.4.1", [ours, user])
    venv.foreign("libcublasLt.so.12", "int cublasLtVersion(void) { return 2; }\nint more(void) { return 3; }")
    venv.host = replace(venv.host, ld_library_path=[str(venv.elsewhere)])


@case(
    "library-path-override",
    severity="warning",
    when="under-load",
    clean=lambda venv: _library_path(venv, "--disable-new-dtags"),  # DT_RPATH comes before LD_LIBRARY_PATH
)
def ld_library_path_over_runpath(venv: Venv) -> None:
    _library_path(venv, "--enable-new-dtags")


# files ------------------------------------------------------------------------------------------------------------


def sound_module(venv: Venv) -> None:
    venv.module("sound", "void run(void) {}")


@case("broken-shared-object", clean=sound_module)
def truncated_shared_object(venv: Venv) -> None:
    path = venv.module("sound", "void run(void) {}")
    os.truncate(path, path.stat().st_size // 2)
    _record(venv, "sound", path)


@case("broken-shared-object", clean=sound_module)
def emptied_shared_object(venv: Venv) -> None:
    path = venv.module("sound", "void run(void) {}")
    path.write_bytes(b"")
    _forget_size(venv, "sound")


@case("broken-shared-object", clean=sound_module)
def git_lfs_pointer(venv: Venv) -> None:
    path = venv.module("sound", "void run(void) {}")
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
    _forget_size(venv, "sound")


@case("broken-shared-object", clean=sound_module)
def link_that_leads_nowhere(venv: Venv) -> None:
    path = venv.module("sound", "void run(void) {}")
    path.unlink()
    path.symlink_to(venv.elsewhere / "cache/_ops.abi3.so")


@case("wrong-machine", clean=sound_module)
def module_for_another_machine(venv: Venv) -> None:
    path = venv.module("sound", "void run(void) {}")
    data = bytearray(path.read_bytes())
    data[18:20] = struct.pack("<H", 183)  # EM_AARCH64
    path.write_bytes(data)
    _record(venv, "sound", path)


def _record(venv: Venv, name: str, path: Path) -> None:
    """Make RECORD agree with the file, as if the wheel itself were broken."""
    venv.install(name, "1.0", [venv.site / name / "__init__.py", path], tags=["cp310-abi3-manylinux2014_x86_64"])


def _forget_size(venv: Venv, name: str) -> None:
    record = venv.site / f"{name}-1.0.dist-info/RECORD"
    record.write_text("\n".join(line.split(",")[0] + ",," for line in record.read_text().splitlines()) + "\n")


def _two_owners(venv: Venv, second: str) -> None:
    library = venv.object("nvidia/nccl/lib/libnccl.so.2", "int version(void) { return 12; }")
    venv.install("nvidia-nccl-cu12", "2.27.5", [library])
    library = venv.object("nvidia/nccl/lib/libnccl.so.2", second)
    venv.install("nvidia-nccl-cu13", "2.28.9", [library])


@case("record-overlap", clean=lambda venv: _two_owners(venv, "int version(void) { return 12; }"))
def two_wheels_own_one_library(venv: Venv) -> None:
    _two_owners(venv, "int version(void) { return 13; }\nint more(void) { return 0; }")


@case("record-missing-file", clean=sound_module)
def shared_file_deleted_with_another_package(venv: Venv) -> None:
    venv.module("sound", "void run(void) {}").unlink()


@case("record-changed-file", severity="warning", when="under-load", clean=sound_module)
def library_replaced_by_hand(venv: Venv) -> None:
    path = venv.module("sound", "void run(void) {}")
    compile_object(path, "void run(void) {}\nchar more[9999] = {1};", soname=None)


def _copies(venv: Venv, second: str) -> None:
    for package, source in (("one", "void work(void) {}\nvoid extra(void) {}"), ("two", second)):
        library = venv.object(f"{package}/lib/libwork.so.1", source)
        call = "extra" if package == "one" else "work"
        code = f"void {call}(void); void run(void) {{ {call}(); }}"
        venv.module(package, code, str(library), "-Wl,--enable-new-dtags,-rpath,$ORIGIN/lib")


@case(
    "two-copies",
    severity="warning",
    clean=lambda venv: _copies(venv, "void work(void) {}\nvoid extra(void) {}\nint x;"),
)
def two_copies_of_one_library(venv: Venv) -> None:
    _copies(venv, "void work(void) {}")


def _for_numpy(venv: Venv, core: str) -> None:
    venv.install("numpy", "2.1.0", [venv.write("numpy/__init__.py")])
    venv.module("arrays", f'const char name[] = "numpy.{core}._multiarray_umath";\nvoid run(void) {{}}')


@case("numpy-abi", clean=lambda venv: _for_numpy(venv, "_core"))
def module_compiled_for_numpy_1(venv: Venv) -> None:
    _for_numpy(venv, "core")
