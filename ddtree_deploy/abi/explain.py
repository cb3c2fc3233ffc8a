"""What each finding means, for ``--explain ID`` and for SARIF's rule texts."""

from __future__ import annotations

from typing import Dict, NamedTuple

from ddtree_deploy.errors import InputError


class Explanation(NamedTuple):
    """``title`` is a line; ``text`` says what it is and how it is found; ``example`` is what one sees."""

    title: str
    text: str
    example: str


EXPLANATIONS: Dict[str, Explanation] = {
    "undefined-torch-symbol": Explanation(
        "A compiled module was built for another torch",
        "The module wants names of torch's C++ libraries (c10, at, torch) that the installed torch does not define. "
        "Torch's C++ interface changes with every release, and kernel wheels rarely declare which one they need. "
        "Found by comparing the undefined symbols of .dynsym with what libc10, libtorch_cpu, libtorch_cuda and the "
        "rest of the module's libraries define.",
        "ImportError: common_ops.abi3.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
    ),
    "old-cxx-abi": Explanation(
        "A compiled module was built with the old C++ string ABI",
        "libstdc++ has had two std::string since GCC 5. Torch from PyPI uses the new one since 2.6; a module built "
        "with _GLIBCXX_USE_CXX11_ABI=0 asks for functions on the old one, whose names contain Ss instead of "
        "__cxx1112basic_string.",
        "undefined symbol: _ZN5torch3jit11parseSchemaERKSs",
    ),
    "undefined-python-symbol": Explanation(
        "A compiled module was built for another Python",
        "The module uses functions of Python's C interface that this interpreter does not export: it was built for a "
        "newer or older minor version. Found by reading the interpreter's own dynamic symbols.",
        "ImportError: undefined symbol: _PyThreadState_UncheckedGet",
    ),
    "undefined-symbol": Explanation(
        "Nothing defines a symbol that a module needs",
        "A strong undefined symbol that no file in the module's whole library closure defines. Mostly a kernel that "
        "was left out of a build, or a library of another version.",
        "undefined symbol: _Z25silu_and_mul_nvfp4_quantRN2at6TensorE",
    ),
    "missing-library": Explanation(
        "A library that a module needs is not there",
        "DT_NEEDED names a library that neither the module's search paths (DT_RPATH, DT_RUNPATH, LD_LIBRARY_PATH), nor "
        "what torch has loaded, nor ldconfig's cache provides. The fix names the wheel or the Debian package.",
        "ImportError: libnuma.so.1: cannot open shared object file: No such file or directory",
    ),
    "cuda-major-mismatch": Explanation(
        "A module was built for another CUDA major than torch",
        "Libraries of CUDA 12 and 13 have different names (libcudart.so.12, libcudart.so.13). Torch brings those of "
        "its own major only; a module for the other one finds none.",
        "ImportError: libcudart.so.13: cannot open shared object file (torch 2.9.1+cu128)",
    ),
    "two-cuda-runtimes": Explanation(
        "Two CUDA runtimes in one process",
        "A module and torch load libcudart of different majors, and both are found. Each keeps its own state: handles "
        "of one are invalid in the other.",
        "CUDA error: invalid resource handle, or SIGFPE in a kernel launch",
    ),
    "symbol-version-missing": Explanation(
        "The host's runtime library is too old",
        "A file asks for a symbol version (GLIBC_2.38, GLIBCXX_3.4.32) that the library which it gets does not define. "
        "The linker checks that before anything else runs.",
        "/lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.38' not found",
    ),
    "library-path-override": Explanation(
        "LD_LIBRARY_PATH replaces libraries of the environment",
        "Most wheels find each other by DT_RUNPATH, which is searched after LD_LIBRARY_PATH. A toolkit in that "
        "variable silently replaces cuBLAS, cuDNN or nvJitLink by another release. DT_RPATH comes before "
        "it: torch's own libraries are safe, NVIDIA's are not.",
        "undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12",
    ),
    "companion-missing": Explanation(
        "A library that is opened at run time is not there",
        "Some libraries open others by name when they are first needed (libnvrtc opens libnvrtc-builtins, cuDNN its "
        "seven parts, torch its linalg library). Nothing in the file's headers says so; a table of such names does.",
        "nvrtc: error: failed to open libnvrtc-builtins.so.13.0",
    ),
    "companion-version": Explanation(
        "Parts of one library are of different versions",
        "The parts that a library opens later carry another version than the library: two installs were mixed. Found "
        "in the version that cuDNN's parts carry as data, and in the name of NVRTC's builtins.",
        "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH",
    ),
    "broken-shared-object": Explanation(
        "A file named .so is not a usable shared object",
        "The file is empty, cut off, a Git LFS pointer, a dangling link, a pipe, a device or otherwise no ELF file: an "
        "interrupted download or copy, a full disk, a cache that was cleaned.",
        "ImportError: file too short; invalid ELF header",
    ),
    "link-outside": Explanation(
        "A linked folder outside of the environment was not looked at",
        "A link among the packages leads to a folder elsewhere that is no installed package. The audit stays inside: "
        "such a link can lead to a whole disk. Linked packages, links inside the environment and links to single "
        "files are followed.",
        "nothing by itself",
    ),
    "wrong-machine": Explanation(
        "A module is built for another machine",
        "The ELF header names another architecture than the host's: the environment was copied or installed elsewhere.",
        "cannot open shared object file: No such file or directory (for a file that is there)",
    ),
    "record-overlap": Explanation(
        "Two distributions own the same files",
        "Both RECORDs claim a path, with different contents. The one installed last has overwritten the other, and "
        "removing either deletes files of both (sgl-kernel and sglang-kernel; nvidia-nccl-cu12 and -cu13).",
        "works until another package is installed",
    ),
    "record-missing-file": Explanation(
        "Files of an installed distribution are gone",
        "RECORD lists modules or shared objects that are not on disk: deleted with another distribution that owned the "
        "same paths, or by hand.",
        "ModuleNotFoundError for a package that pip says is installed",
    ),
    "record-changed-file": Explanation(
        "A shared object is not the one that was installed",
        "Its size differs from RECORD, and no other distribution claims it. It may be an own build; its version is not "
        "what the metadata says.",
        "the fix of version X is not there although version X is installed",
    ),
    "metadata-mismatch": Explanation(
        "Metadata contradicts itself",
        "The folder's name, METADATA and (for torch) version.py disagree about name or version: installs are mixed.",
        "pip says torch 2.11.0, torch.__version__ says 2.9.1+cu128",
    ),
    "duplicate-distribution": Explanation(
        "A distribution is installed twice",
        "Two metadata folders of one name. Which one tools read depends on the order of the folder.",
        "importlib.metadata.version('torch') differs from torch.__version__",
    ),
    "wheel-tag": Explanation(
        "A wheel for another Python or platform",
        "The tags in WHEEL (PEP 425) or Requires-Python do not fit this environment's interpreter or the host.",
        "ModuleNotFoundError: No module named 'pkg._C' (the file is _C.cpython-310-x86_64-linux-gnu.so)",
    ),
    "extension-python": Explanation(
        "An extension module named for another Python",
        "The file carries the suffix of another Python (cpython-310 in a 3.11 environment), so that import does not "
        "look at it. A note where nothing imports it by name: some packages load such files by path.",
        "ModuleNotFoundError: No module named 'pkg._C'",
    ),
    "abi-tag-mismatch": Explanation(
        "A package states another CUDA build than torch",
        "A local version or version.py says +cu128 where torch says cu130.",
        "RuntimeError: operator torchvision::nms does not exist",
    ),
    "torch-tag-mismatch": Explanation(
        "A wheel was built for another torch",
        "Its version or file name says for which torch it was compiled (flash_attn +cu12torch2.7cxx11abiFALSE), and "
        "another one is installed.",
        "undefined symbol: _ZN3c104cuda9SetDeviceEi",
    ),
    "requirement-missing": Explanation(
        "A requirement is not installed",
        "A Requires-Dist that applies here (markers and extras evaluated for this Python and host) names a "
        "distribution that is not there.",
        "ModuleNotFoundError: No module named 'pybase64'",
    ),
    "requirement-version": Explanation(
        "A requirement is installed in a version that does not satisfy it",
        "An error where both sides hold compiled code (torchvision and torch), where the package checks it itself when "
        "imported, or where the major differs; else a warning, since many such bounds are only cautious.",
        "ImportError: huggingface-hub>=0.34.0,<1.0 is required for a normal functioning of this module",
    ),
    "module-missing": Explanation(
        "The engine imports a module that nobody brings",
        "An import at the top level of a module that runs when the engine starts, outside of try, if and functions.",
        "ModuleNotFoundError: No module named 'pybase64'",
    ),
    "loader-names-other-cuda": Explanation(
        "Python code opens a CUDA library of another major by name",
        "A string such as libcudart.so.12 in a loader module, while torch is of CUDA 13: no metadata tells of it.",
        "OSError: libcudart.so.12: cannot open shared object file",
    ),
    "interpreter-missing": Explanation(
        "The environment's Python is gone",
        "bin/python is a link to an interpreter that was removed or moved.",
        "bad interpreter: No such file or directory",
    ),
    "interpreter-mismatch": Explanation(
        "The interpreter is of another version than the site folder",
        "bin/python leads to a Python of another minor version than lib/pythonX.Y, so that no package is found.",
        "ModuleNotFoundError for everything that is installed",
    ),
    "interrupted-install": Explanation(
        "An install was interrupted",
        "pip renames what it removes to ~name first; such folders are left when it is stopped.",
        "WARNING: Ignoring invalid distribution ~orch",
    ),
    "numpy-abi": Explanation(
        "A module was built for NumPy 1",
        "Modules compiled against NumPy 1 know only numpy.core; NumPy 2 refuses them. Found in the module's strings.",
        "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.1.0 as it may crash",
    ),
    "two-copies": Explanation(
        "Two different copies of one library",
        "Two files with the same SONAME are loaded by different modules of one process, and one of them lacks what "
        "users of the other need.",
        "works if A is imported before B, undefined symbol otherwise",
    ),
    "driver-library-missing": Explanation(
        "The driver is there, its library is not",
        "nvidia-smi works but libcuda.so.1 is on no search path: a container without the compute capability.",
        "RuntimeError: Found no NVIDIA driver on your system",
    ),
    "known-bad": Explanation(
        "Versions that are known not to work together",
        "An entry of knownbad.json, dated and with its source, applies.",
        "ValueError: Either a revision or a version must be specified",
    ),
    "driver-missing": Explanation(
        "No NVIDIA driver",
        "The host has no driver. A note: audits also run where no GPU is.",
        "libcuda.so.1: cannot open shared object file",
    ),
    "driver-too-old": Explanation(
        "The driver is older than the CUDA runtime",
        "A runtime needs a driver of at least its own major; within one major older drivers work (CUDA minor version "
        "compatibility).",
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    "no-gpu-code": Explanation(
        "No kernels for this GPU",
        "Neither machine code (sm_XX) nor portable PTX (compute_XX) in the file's .nv_fatbin runs on the host's GPU. A "
        "note where only some files of a package have none.",
        "no kernel image is available for execution on the device",
    ),
    "ptx-newer-than-driver": Explanation(
        "Only PTX for this GPU, and the driver cannot compile it",
        "The package has no machine code for the GPU; its PTX was made by a newer toolkit than the driver understands.",
        "the provided PTX was compiled with an unsupported toolchain",
    ),
    "toolkit-too-old": Explanation(
        "nvcc is too old for this GPU",
        "Packages that compile kernels at run time use the first nvcc they find. Harmless where the kernels are "
        "prebuilt; the notice alone is no failure. SGLang 0.5.11 compiles some when it first starts, and ends where "
        "nvcc does not know the GPU.",
        "FlashInfer: SM 12.x requires CUDA >= 12.9",
    ),
}


def explain(id: str) -> str:
    """The text for a finding's id; raises InputError ``unknown-finding`` with the ids that exist."""
    found = EXPLANATIONS.get(id)
    if found is None:
        known = ", ".join(sorted(EXPLANATIONS))
        raise InputError("unknown-finding", f"no finding is called {id!r}", hint=f"one of: {known}")
    return f"{id}: {found.title}\n\n{found.text}\n\nWhat one sees: {found.example}\n"
