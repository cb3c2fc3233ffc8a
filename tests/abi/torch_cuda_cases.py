"""Broken environments: torch's C++ interface, CUDA, driver and GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from abi.case import Cases
from abi.fixtures import Venv, fatbin

CASES = Cases()
case = CASES.case


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


def _own_kernels(venv: Venv, nvcc: str) -> None:
    venv.torch("2.11.0", cuda="13.0")
    gpu_host(venv, toolkits=[nvcc])
    venv.install("sglang", "0.5.11", [venv.write("sglang/__init__.py")])


@case("toolkit-too-old", severity="warning", when="first-kernel", clean=lambda venv: _own_kernels(venv, "12.9"))
def nvcc_too_old_for_kernels_that_sglang_compiles(venv: Venv) -> None:
    """Also where the runtime is new enough for all that is prebuilt."""
    _own_kernels(venv, "12.4")


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
