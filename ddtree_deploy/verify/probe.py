"""Runs inside the release's own Python: one check after the other, each reported as a JSON line on a pipe.

Standard library only and on its own: the controlling process reads this file's text and runs it with ``-c``, so that
nothing of ddtree-deploy is on the release's path (``verify/gpu`` imports it, and gives :func:`main` its own checks).
Arguments: the pipe's number, the release, the seconds that one check may take, and the checks to run. Before a check
``{"begin": id}``, after it ``{"end": id, "status": ...}``: a check that began and never ended is the one that crashed
or hung. Its output is marked by check, see the end.
"""

from __future__ import annotations

import faulthandler
import importlib
import importlib.util
import json
import os
import platform
import shutil
import sys
import sysconfig
import time
import traceback
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

RELEASE = ""  # set below, from the arguments
DEVICES = Path("/dev")  # has a nvidia0 … for each GPU that this host, or this container, may use
USUAL_CUDA = "/usr/local/cuda"  # where the engine looks when PATH has no nvcc
LIBRARY_FOLDERS = ("lib", "lib64", f"lib/{platform.machine()}-linux-gnu")  # of the linker, below /usr and its like
Report = Tuple[str, Dict[str, Any]]  # what was seen, in words and as data


class Failed(Exception):
    def __init__(self, cause: str, summary: str, detail: Optional[str] = None, **data: Any) -> None:
        super().__init__(summary)
        self.cause = cause
        self.detail = detail
        self.data = data


class Skipped(Exception):
    """What a check needs is not there, and another check has said so."""


def inside(path: Optional[str]) -> str:
    """``path``, if it is a file of the release; a module from anywhere else is what breaks later."""
    release = os.path.realpath(RELEASE) + os.sep
    if path is None or not os.path.realpath(path).startswith(release):
        raise Failed("outside-release", f"found at {path}, outside of the release", path=path)
    return path


def load(name: str) -> Any:
    return importlib.import_module(name)


def why_not(torch: Any) -> str:
    """What torch itself says when it is made to look for a GPU."""
    try:
        torch.cuda.init()
    except Exception as problem:  # RuntimeError, AssertionError: whatever this build raises
        return str(problem).strip().splitlines()[0]
    return "it does not say why"


def check_torch() -> Report:
    torch = load("torch")

    data = {"version": torch.__version__, "cuda": torch.version.cuda, "path": inside(torch.__file__)}
    data["gpus"] = torch.cuda.device_count() if torch.version.cuda else 0
    if not data["gpus"]:
        if data["cuda"] and os.environ.get("CUDA_VISIBLE_DEVICES") != "" and list(DEVICES.glob("nvidia[0-9]*")):
            raise Failed(
                "wrong-value", f"this host has GPUs and torch {torch.__version__} sees none: {why_not(torch)}", **data
            )
        return f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}, no GPU in sight", data
    names = [torch.cuda.get_device_name(index) for index in range(data["gpus"])]
    try:
        total = torch.ones(4, device="cuda").sum().item()
    except torch.cuda.OutOfMemoryError as error:
        return f"torch {torch.__version__}: {names[0]} has no memory left to try it: {error}", {**data, "warning": True}
    if total != 4.0:
        raise Failed("wrong-value", f"the sum of four ones on {names[0]} is {total}", **data)
    count = "1 GPU" if len(names) == 1 else f"{len(names)} GPUs"
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, {count} ({names[0]})", data


def check_torchvision() -> Report:
    torch, torchvision = load("torch"), load("torchvision")

    data = {"version": torchvision.__version__, "path": inside(torchvision.__file__)}
    boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
    if kept != [0, 2]:
        raise Failed("wrong-value", f"torchvision's nms kept {kept} where [0, 2] is right", **data)
    return f"torchvision {torchvision.__version__}, its nms operator answers", data


def check_algorithm() -> Report:
    spec_info = load("sglang.srt.speculative.spec_info")

    inside(spec_info.__file__)
    try:
        algorithm = spec_info.SpeculativeAlgorithm.from_string("DDTREE")
    except ValueError as error:
        raise Failed("wrong-value", f"the engine does not know DDTREE: {error}") from error
    answers: Dict[str, Any] = {}
    for name in ("is_dflash", "is_ddtree"):
        method = getattr(algorithm, name, None)
        answers[name] = None if method is None else bool(method())
    if answers != {"is_dflash": True, "is_ddtree": True}:
        said = ", ".join(f"{name}() {'missing' if value is None else value}" for name, value in answers.items())
        raise Failed("wrong-value", f"DDTREE is there, but {said}", **answers)
    return "DDTREE: is_dflash() and is_ddtree() are true", answers


def check_modules() -> Report:
    found: Dict[str, Any] = {}
    for name in ("sglang.srt.speculative.dflash_worker", "sglang.srt.speculative.ddtree_utils"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise Failed("missing-module", f"there is no module {name}", module=name)
        found[name] = inside(spec.origin)
    short = ", ".join(
        os.path.relpath(path, os.path.realpath(RELEASE)) for path in map(os.path.realpath, found.values())
    )
    return short, found


def check_kernel() -> Report:
    sgl_kernel = load("sgl_kernel")

    data = {"version": getattr(sgl_kernel, "__version__", None), "path": inside(sgl_kernel.__file__)}
    library = getattr(getattr(sgl_kernel, "common_ops", None), "__file__", None)
    if library is not None:
        data["library"] = inside(library)
    where = Path(library).parent.name if library else "no separate library"
    summary = f"sgl_kernel {data['version']} loads ({where})"
    torch = sys.modules.get("torch")
    lacks = compilers_missing() if torch and torch.version.cuda and torch.cuda.device_count() else []
    if lacks:
        data.update(warning=True, missing=lacks)
        summary += f", but a service compiles the engine's other kernels when it first starts: no {', no '.join(lacks)}"
    return summary, data


def compilers_missing() -> List[str]:
    """What SGLang's own kernels and Triton's launcher are compiled with, and is not where they look for it."""
    gcc, nvcc = shutil.which("gcc"), find_nvcc(os.environ)
    c_compiler = shutil.which(os.environ.get("CC", "gcc" if gcc else "clang"))
    wanted = {
        "nvcc": nvcc,
        "libcudart.so": not nvcc or links_cuda(os.environ),
        "gcc": not (nvcc and c_compiler) or gcc or os.environ.get("NVCC_CCBIN"),  # nvcc calls it
        "C++ compiler": shutil.which((os.environ.get("CXX", "c++").split() or [""])[0]),  # a shell reads it
        "C compiler": c_compiler,
        "ninja": shutil.which("ninja"),
        "Python.h": Path(sysconfig.get_paths("posix_prefix")["include"], "Python.h").exists(),
    }
    return [name for name, found in wanted.items() if not found]


def find_nvcc(environment: Mapping[str, str]) -> Optional[str]:
    """The nvcc that tvm_ffi (SGLang's kernels) and flashinfer take in an environment."""
    return shutil.which("nvcc", path=os.path.join(cuda_home(environment), "bin"))  # noqa: PTH118


def links_cuda(environment: Mapping[str, str]) -> bool:
    """Whether libcudart.so is where they link kernels to it: not where nvcc is a script far from its toolkit, nor
    where of a toolkit nvcc alone was installed."""
    usual = [f"{place}/{name}" for place in ("/usr", "/usr/local", "/") for name in LIBRARY_FOLDERS]
    folders = [f"{cuda_home(environment)}/lib64", *environment.get("LIBRARY_PATH", "").split(os.pathsep), *usual]
    return any(os.path.exists(f"{folder}/libcudart.so") for folder in folders if folder)  # noqa: PTH110


def cuda_home(environment: Mapping[str, str]) -> str:
    """As tvm_ffi, flashinfer and deep_gemm find the toolkit; a link to nvcc is not followed."""
    home = environment.get("CUDA_HOME") or environment.get("CUDA_PATH")
    if home is not None:
        return home
    nvcc = shutil.which("nvcc", path=environment.get("PATH", ""))
    return str(Path(nvcc).parent.parent) if nvcc else USUAL_CUDA


def check_server() -> Report:
    found: Dict[str, Any] = {}
    for name in ("sglang.srt.entrypoints.http_server", "sglang.srt.managers.scheduler"):
        found[name] = inside(load(name).__file__)
    return "the server and its scheduler import", found


CHECKS: Dict[str, Callable[[], Report]] = {
    "torch": check_torch,
    "torchvision": check_torchvision,
    "algorithm": check_algorithm,
    "modules": check_modules,
    "kernel": check_kernel,
    "server": check_server,
}


def run(check: str, checks: Mapping[str, Callable[[], Report]] = CHECKS) -> Dict[str, Any]:
    began = time.monotonic()
    result: Dict[str, Any] = {"end": check, "status": "failed", "cause": None, "detail": None, "data": {}}
    try:
        summary, data = checks[check]()
        result.update(status="warning" if data.get("warning") else "ok", summary=summary, data=data)
    except Failed as problem:
        result.update(cause=problem.cause, summary=str(problem), detail=problem.detail, data=problem.data)
    except Skipped as problem:
        result.update(status="skipped", summary=str(problem))
    except ModuleNotFoundError as problem:
        result.update(cause="missing-module", summary=f"missing module: {problem}", detail=traceback.format_exc())
    except BaseException as problem:  # also SystemExit: some packages end the program when they do not like a host
        text = str(problem).strip().splitlines()
        summary = f"{type(problem).__name__}: {text[0] if text else ''}"
        result.update(cause="import-error", summary=summary, detail=traceback.format_exc())
    result["seconds"] = round(time.monotonic() - began, 3)
    return result


def main(
    arguments: List[str],
    checks: Mapping[str, Callable[[], Report]] = CHECKS,
    finish: Callable[[], None] = lambda: None,
) -> None:
    """Run the checks that ``arguments`` name. ``finish`` runs before the last one's end is told: we are killed then."""
    global RELEASE
    pipe, RELEASE, limit, names = os.fdopen(int(arguments[0]), "w"), arguments[1], float(arguments[2]), arguments[3:]
    sys.path[:] = [entry for entry in sys.path if entry not in ("", str(Path.cwd()))]
    faulthandler.enable()
    for name in names:
        pipe.write(json.dumps({"begin": name}) + "\n")
        pipe.flush()
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(2, f"\n\x02check {name}\n".encode())  # output and events come through two pipes: say whose it is
        faulthandler.dump_traceback_later(limit * 0.9)  # a check that hangs says where
        outcome = run(name, checks)
        faulthandler.cancel_dump_traceback_later()
        if name == names[-1]:
            finish()
        sys.stdout.flush()
        sys.stderr.flush()
        pipe.write(json.dumps(outcome, default=str) + "\n")
        pipe.flush()
    os._exit(0)  # destructors of a broken binary mix are not what is checked


if __name__ == "__main__":
    main(sys.argv[1:])
