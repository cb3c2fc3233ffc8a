"""Every kind of broken environment, each with a clean twin. docs/abi.md lists them; a test compares the two."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from abi.fixtures import CP311, NO_AS_NEEDED, Venv, compile_object, fatbin

Build = Callable[[Venv], None]


@dataclass(frozen=True)
class Case:
    """``broken`` must be found as ``id`` with ``severity`` and nothing else; ``clean`` must find nothing."""

    name: str
    id: str
    severity: str
    when: str
    broken: Build
    clean: Build


CASES: list[Case] = []


def case(id: str, *, when: str = "import", severity: str = "error", clean: Build) -> Callable[[Build], Build]:
    """Registers a case named as its function; ``clean`` builds the twin."""

    def register(broken: Build) -> Build:
        CASES.append(Case(broken.__name__.replace("_", "-"), id, severity, when, broken, clean))
        return broken

    return register


# torch's C++ interface --------------------------------------------------------------------------------------------

CALLS = "namespace c10 { int device_count(); } int run() { return c10::device_count(); }"
DRIFTED = "namespace c10 { int device_count_v2(int); } int run() { return c10::device_count_v2(1); }"
AOTI = 'extern "C" long aoti_torch_abi_version(); long run() { return aoti_torch_abi_version(); }'
SCHEMA = "#include <string>\nnamespace torch { namespace jit { void parseSchema(const std::string&); } }\n"
DEFINES_SCHEMA = SCHEMA + "void torch::jit::parseSchema(const std::string& text) { (void)text; }"
CALLS_SCHEMA = SCHEMA + 'void run() { torch::jit::parseSchema("a"); }'
LEFT_OUT = "namespace at { struct Tensor; } void silu_and_mul_nvfp4_quant(at::Tensor&);\n"


def fitting_kernel(venv: Venv) -> None:
    venv.torch()
    venv.kernel("kernel", CALLS)


@case("undefined-torch-symbol", clean=fitting_kernel)
def kernel_for_another_torch(venv: Venv) -> None:
    venv.torch()
    venv.kernel("kernel", DRIFTED)


@case("undefined-torch-symbol", clean=fitting_kernel)
def torchaudio_newer_than_torch(venv: Venv) -> None:
    venv.torch()
    venv.kernel("torchaudio", AOTI)


def new_strings(venv: Venv) -> None:
    venv.torch(extra_source=DEFINES_SCHEMA)
    venv.kernel("strings", CALLS_SCHEMA)


@case("old-cxx-abi", clean=new_strings)
def old_string_abi(venv: Venv) -> None:
    venv.torch(extra_source=DEFINES_SCHEMA)
    venv.kernel("strings", CALLS_SCHEMA, "-D_GLIBCXX_USE_CXX11_ABI=0")


def complete_kernel(venv: Venv) -> None:
    venv.torch()
    venv.kernel("kernel", LEFT_OUT + "void silu_and_mul_nvfp4_quant(at::Tensor&) {}")


@case("undefined-symbol", clean=complete_kernel)
def kernel_left_out_of_its_own_build(venv: Venv) -> None:
    venv.torch()
    venv.kernel("kernel", LEFT_OUT + "void run(at::Tensor& t) { silu_and_mul_nvfp4_quant(t); }")


def _flash(venv: Venv, torch: str) -> None:
    venv.torch()
    info = venv.install("flash-attn", "2.8.3", [venv.write("flash_attn/__init__.py")])
    name = f"flash_attn-2.8.3%2Bcu12torch{torch}cxx11abiTRUE-cp311-cp311-linux_x86_64.whl"
    (info / "direct_url.json").write_text(f'{{"url": "https://example.org/{name}", "archive_info": {{}}}}')


@case("torch-tag-mismatch", clean=lambda venv: _flash(venv, "2.11"))
def wheel_for_another_torch_by_its_name(venv: Venv) -> None:
    _flash(venv, "2.7")


# CUDA -------------------------------------------------------------------------------------------------------------

CALLS_CUDA = 'extern "C" void cudaMalloc(); void run() { cudaMalloc(); }'


def right_cuda(venv: Venv) -> None:
    venv.torch(cuda="13.0")
    venv.kernel("kernel", CALLS_CUDA, str(venv.site / "nvidia/cuda/lib/libcudart.so.13"))


@case("cuda-major-mismatch", clean=right_cuda)
def cuda_12_wheel_beside_cuda_13_torch(venv: Venv) -> None:
    venv.torch(cuda="13.0")
    venv.kernel("kernel", CALLS_CUDA, str(venv.foreign("libcudart.so.12", "void cudaMalloc(void) {}")))


@case("cuda-major-mismatch", clean=right_cuda)
def cuda_13_wheel_beside_cuda_12_torch(venv: Venv) -> None:
    venv.torch("2.9.1", cuda="12.8")
    venv.kernel("kernel", CALLS_CUDA, str(venv.foreign("libcudart.so.13", "void cudaMalloc(void) {}")))


@case("two-cuda-runtimes", when="under-load", clean=right_cuda)
def second_cuda_runtime_in_the_process(venv: Venv) -> None:
    venv.torch(cuda="13.0")
    other = venv.foreign("libcudart.so.12", "void cudaMalloc(void) {}")
    venv.kernel("kernel", CALLS_CUDA, str(other))
    venv.host = replace(venv.host, libraries={**venv.host.libraries, "libcudart.so.12": str(other)})


def _vision(venv: Venv, version: str, requires: str) -> None:
    venv.torch()
    module = venv.object("torchvision/_C.so", "", str(venv.site / "torch/lib/libc10.so"))
    files = [venv.write("torchvision/__init__.py", "from torchvision import _C\n"), module]
    venv.install("torchvision", version, files, requires=[requires], tags=["cp311-cp311-manylinux_2_28_x86_64"])


@case("requirement-version", clean=lambda venv: _vision(venv, "0.26.0", "torch==2.11.0"))
def torchvision_for_another_torch(venv: Venv) -> None:
    _vision(venv, "0.24.1", "torch==2.9.1")


@case("abi-tag-mismatch", clean=lambda venv: _vision(venv, "0.26.0+cu130", "torch==2.11.0"))
def torchvision_of_another_cuda_build(venv: Venv) -> None:
    _vision(venv, "0.26.0+cu128", "torch==2.11.0")


def _nvrtc_user(venv: Venv, nvrtc: Path) -> None:
    venv.torch(cuda="12.8")
    source = 'extern "C" void nvrtcCreateProgram(); void run() { nvrtcCreateProgram(); }'
    venv.kernel("kernel", source, str(nvrtc), "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../nvidia/cuda_nvrtc/lib")


def _nvrtc(venv: Venv, builtins: str | None = "12.8") -> Path:
    text = 'const char* builtins_name = "libnvrtc-builtins.so.12.8"; void nvrtcCreateProgram(void) {}'
    path = venv.object("nvidia/cuda_nvrtc/lib/libnvrtc.so.12", text)
    files = [path]
    if builtins:
        files.append(venv.object(f"nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.{builtins}"))
    venv.install("nvidia-cuda-nvrtc-cu12", "12.8.93", files)
    return path


@case("missing-library", clean=lambda venv: _nvrtc_user(venv, _nvrtc(venv)))
def library_that_nobody_provides(venv: Venv) -> None:
    _nvrtc_user(venv, venv.foreign("libnvrtc.so.12", "void nvrtcCreateProgram(void) {}"))


@case("companion-missing", when="first-kernel", clean=lambda venv: _nvrtc_user(venv, _nvrtc(venv)))
def nvrtc_without_its_builtins(venv: Venv) -> None:
    _nvrtc_user(venv, _nvrtc(venv, builtins=None))


@case("companion-version", when="first-kernel", clean=lambda venv: _nvrtc_user(venv, _nvrtc(venv)))
def nvrtc_with_builtins_of_another_version(venv: Venv) -> None:
    _nvrtc_user(venv, _nvrtc(venv, builtins="12.4"))


CUDNN = ("graph", "ops", "cnn", "adv", "engines_precompiled", "engines_runtime_compiled", "heuristic")


def _cudnn(venv: Venv, parts: tuple[str, ...] = CUDNN, adv: str = "0x00090A02") -> None:
    venv.torch(cuda="12.8")
    lib = "nvidia/cudnn/lib"
    main = venv.object(f"{lib}/libcudnn.so.9", "void cudnnCreate(void) {}")
    constants = {"graph": ("graph", "0x00090A02"), "ops": ("ops_infer", "0x00090A02"), "adv": ("adv_infer", adv)}
    files = [main]
    for part in parts:
        symbol, value = constants.get(part, (part, "0"))
        files.append(venv.object(f"{lib}/libcudnn_{part}.so.9", f"const int cudnn_{symbol}_version = {value};"))
    venv.install("nvidia-cudnn-cu12", "9.10.2.21", files)
    source = 'extern "C" void cudnnCreate(); void run() { cudnnCreate(); }'
    venv.kernel("kernel", source, str(main), "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../nvidia/cudnn/lib")


@case("companion-missing", when="first-kernel", clean=_cudnn)
def cudnn_without_one_of_its_parts(venv: Venv) -> None:
    _cudnn(venv, tuple(part for part in CUDNN if part != "engines_precompiled"))


@case("companion-version", when="first-kernel", clean=_cudnn)
def cudnn_with_a_part_of_another_version(venv: Venv) -> None:
    _cudnn(venv, adv="0x00091300")


def _loader(venv: Venv, name: str) -> None:
    venv.torch()
    text = f'import ctypes\n\n\ndef _preload():\n    ctypes.CDLL("{name}")\n\n\n_preload()\n'
    venv.install("kernels-loader", "1.0", [venv.write("kernels_loader/__init__.py", text)], requires=["torch"])


@case("loader-names-other-cuda", clean=lambda venv: _loader(venv, "libcudart.so.13"))
def cuda_12_name_in_a_python_loader(venv: Venv) -> None:
    _loader(venv, "libcudart.so.12")


# driver and GPU ---------------------------------------------------------------------------------------------------

GPU = {"driver": "580.65.06", "driver_cuda": "13.0", "compute_capabilities": ["12.0"]}


def gpu_host(venv: Venv, **changes: object) -> None:
    venv.host = replace(venv.host, **{**GPU, **changes})  # type: ignore[arg-type]


def new_driver(venv: Venv) -> None:
    venv.torch()
    gpu_host(venv)


@case("driver-too-old", when="first-kernel", clean=new_driver)
def runtime_newer_than_the_driver(venv: Venv) -> None:
    venv.torch(cuda="13.0")
    gpu_host(venv, driver="570.86.15", driver_cuda="12.8")


def _gpu_code(venv: Venv, *architectures: tuple[int, str, int], cuda: str = "13.0", **changes: object) -> None:
    venv.torch(cuda=cuda)
    gpu_host(venv, **changes)
    data = venv.elsewhere / "code.fatbin"
    data.parent.mkdir(exist_ok=True)
    data.write_bytes(fatbin(*architectures))
    source = f'asm(".section .nv_fatbin, \\"a\\"\\n.align 8\\n.incbin \\"{data}\\"\\n.previous");\n'
    venv.kernel("kernel", source + CALLS)


@case("no-gpu-code", when="first-kernel", clean=lambda venv: _gpu_code(venv, (90, "sm", 0), (120, "sm", 0)))
def no_kernels_for_this_gpu(venv: Venv) -> None:
    _gpu_code(venv, (80, "sm", 0), (90, "sm", 0))


@case("no-gpu-code", when="first-kernel", clean=lambda venv: _gpu_code(venv, (90, "compute", 0)))
def only_architecture_specific_kernels(venv: Venv) -> None:
    _gpu_code(venv, (90, "sm", 0x100000), (90, "compute", 0x100000))


@case(
    "ptx-newer-than-driver",
    when="first-kernel",
    clean=lambda venv: _gpu_code(venv, (90, "compute", 0), cuda="12.8", driver_cuda="12.8"),
)
def ptx_that_the_driver_cannot_compile(venv: Venv) -> None:
    _gpu_code(venv, (90, "compute", 0), cuda="12.8", driver_cuda="12.4")


def _toolkit(venv: Venv, nvcc: str) -> None:
    venv.torch("2.9.1", cuda="12.8")
    gpu_host(venv, toolkits=[nvcc])
    venv.install("flashinfer-python", "0.6.8", [venv.write("flashinfer/__init__.py")])


@case("toolkit-too-old", severity="warning", when="first-kernel", clean=lambda venv: _toolkit(venv, "12.9"))
def nvcc_too_old_for_the_gpu(venv: Venv) -> None:
    _toolkit(venv, "12.8")


def _driver_user(venv: Venv, libcuda: bool) -> None:
    venv.torch()
    gpu_host(venv)
    library = venv.foreign("libcuda.so.1", "int cuInit(int flags) { return flags; }")
    venv.kernel("kernel", 'extern "C" int cuInit(int); int run() { return cuInit(0); }', str(library))
    if libcuda:
        venv.host = replace(venv.host, libraries={**venv.host.libraries, "libcuda.so.1": str(library)})


@case("driver-library-missing", severity="warning", clean=lambda venv: _driver_user(venv, True))
def driver_without_its_library(venv: Venv) -> None:
    _driver_user(venv, False)


def cpu_torch(venv: Venv) -> None:
    venv.torch(cuda=None)
    venv.kernel("kernel", CALLS)


@case("abi-tag-mismatch", clean=cpu_torch)
def cuda_kernels_beside_a_cpu_torch(venv: Venv) -> None:
    venv.torch(cuda=None)
    library = venv.foreign("libtorch_cuda.so", "void launch(void) {}")
    venv.kernel("kernel", 'extern "C" void launch(); void run() { launch(); }', str(library))


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


def void(_: object) -> None:
    """For clean twins of one expression."""


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
