"""``verify --gpu`` on the host: which GPU, what its checks need, and their results. ``verify/gpu`` has the checks."""

from __future__ import annotations

import contextlib
import json
import pkgutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

from ddtree_deploy import codec
from ddtree_deploy.agent.protocol import ProgressSink
from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.gpu import GpuFacts, probe_gpus
from ddtree_deploy.facts.model import Gpu
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.serve.command import merge_arguments, split_options
from ddtree_deploy.serve.environment import (
    profile_arguments,
    release_python,
    resolve_release,
    service_environment,
)
from ddtree_deploy.serve.gpus import runs_on_cpu, select_gpus
from ddtree_deploy.verify.runner import Outcome, run_probe

TITLES = {
    "gpu-kernels": "tree kernels against torch on the CPU",
    "gpu-engine": "engines start and answer",
    "gpu-greedy": "greedy answers are the target's",
    "gpu-sampling": "samples are the target's",
    "gpu-stops": "answers end where they should",
    "gpu-penalties": "penalties hold in trees",
    "gpu-pool": "no KV slot is left behind",
}
# Twice what two engines with a tiny model and the checks themselves took on an H200 (docs/benchmarks.md).
NEEDED_MIB = 6144
LIMIT_S = 400.0  # for one check; starting the engines is the longest
# What a service of this host is started with and may change an answer; the rest is about its own model and memory.
KEPT = (
    "--attention-backend",
    "--prefill-attention-backend",
    "--decode-attention-backend",
    "--sampling-backend",
    "--page-size",
    "--disable-cuda-graph",
    "--disable-radix-cache",
)
# Little memory and a quick start: few graphs, and no check asks for larger batches than are captured.
LIMITED = ["--max-total-tokens", "20000", "--mem-fraction-static", "0.8", "--cuda-graph-bs", "1", "4", "16", "32"]
FILES = (
    "__init__.py",
    "children.py",
    "serve/__init__.py",
    "serve/logs.py",
    "verify/__init__.py",
    "verify/probe.py",
    "verify/gpu/__init__.py",
    "verify/gpu/checks.py",
    "verify/gpu/kernels.py",
    "verify/gpu/prompts.json",
    "verify/gpu/reference.py",
    "verify/gpu/server.py",
    "verify/gpu/statistics.py",
    "verify/gpu/storm.py",
)
_PROGRAM = """\
import sys
sys.path.insert(0, sys.argv[1])
from ddtree_deploy.verify.gpu.checks import main
main([sys.argv[1] + "/settings.json", *sys.argv[2:]])
"""


@dataclass(frozen=True)
class ChosenGpu:
    """``free_mib`` is None where the driver does not tell."""

    index: int
    uuid: str
    name: str
    free_mib: Optional[int]


def op_gpu(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """The GPU that ``verify.run`` would use: ``ChosenGpu`` as a dict. Asked before the pair of models is sent.

    params: ``{"root", "release", "gpus": indices or null, "engine_arguments"}`` as for a service. Raises InputError
    ``no-current-release``, ``release-missing``, ``no-gpu-to-check``, ``gpu-busy``, and those of ``select_gpus``.
    """
    layout = Layout(params.get("root") or "/opt/ddtree")
    release = resolve_release(layout.root, params.get("release"))
    arguments = merge_arguments(profile_arguments(release), params.get("engine_arguments") or [])
    on_cpu = runs_on_cpu(release, arguments)
    chosen = choose_gpu(GpuFacts() if on_cpu else probe_gpus(), params.get("gpus"), on_cpu)
    return codec.to_dict(chosen)


def choose_gpu(facts: GpuFacts, wanted: Optional[Sequence[int]], on_cpu: Optional[bool]) -> ChosenGpu:
    """The one with the most free memory among the host's own."""
    cards = [gpu for gpu in select_gpus(facts, wanted, on_cpu) if gpu is not None]
    if not cards:
        what = "this release serves on the CPU" if on_cpu else "this host shows no GPU"
        why = f": {facts.problem}" if facts.problem else ""
        raise InputError(
            "no-gpu-to-check",
            f"{what}, and --gpu checks kernels on a GPU{why}",
            where="--gpu",
            hint="leave out --gpu, or name a release of a GPU profile on a host that has one",
        )
    best = max(cards, key=lambda gpu: _free_mib(gpu) or 0)
    free = _free_mib(best)
    if free is not None and free < NEEDED_MIB:
        raise InputError(
            "gpu-busy",
            f"GPU {best.index} has {free} MiB of free memory, no other has more, and the checks want {NEEDED_MIB}",
            where="--gpu",
            hint="stop the service on one of them for the minute that it takes: ddtree-deploy stop HOST --service gpu0",
        )
    return ChosenGpu(best.index, best.uuid, best.name, free)


def run_gpu_checks(
    release: Path,
    pair: Mapping[str, str],
    gpu_index: Optional[int],
    environment: Optional[Mapping[str, str]],
    engine_arguments: Sequence[str],
    progress: ProgressSink,
    size: str = "full",
    limit_s: float = LIMIT_S,
) -> List[Outcome]:
    """One outcome a check.

    ``pair``: name in the pair's folder (``target/config.json``) -> the file on this host. ``gpu_index`` None is the
    CPU, for tests: the same checks of a CPU release, with kernels in Triton's interpreter and float32.
    """
    on_cpu = gpu_index is None
    variables = service_environment(release, environment, gpu_index=gpu_index)
    kept = [token for name, tokens in split_options(engine_arguments) if name in KEPT for token in tokens]
    own = ["--dtype", "float32"] if on_cpu else LIMITED
    arguments = merge_arguments(profile_arguments(release), [*own, *kept])
    with program_folder(pair) as folder:
        python = release_python(release)
        return run_in(folder, python, release, variables, arguments, on_cpu, progress, size, limit_s)


def run_in(
    folder: Path,
    python: Path,
    release: Path,
    variables: Mapping[str, str],
    arguments: Sequence[str],
    on_cpu: bool,
    progress: ProgressSink,
    size: str = "full",
    limit_s: float = LIMIT_S,
) -> List[Outcome]:
    """The checks by ``python`` in a :func:`program_folder`, where the engines' logs are afterwards.

    ``variables`` and ``arguments``: the whole environment, and what each engine is started with beside its models.
    """
    settings = {
        "device": "cpu" if on_cpu else "cuda",
        "arguments": list(arguments),
        "dtype": "float32" if on_cpu else "bfloat16",
        "size": size,
        "pair": str(folder / "pair"),
        "folder": str(folder),
    }
    (folder / "settings.json").write_text(json.dumps(settings), "utf-8")
    return run_probe(python, release, variables, list(TITLES), limit_s, progress, [_PROGRAM, str(folder)])


@contextlib.contextmanager
def program_folder(pair: Mapping[str, str]) -> Iterator[Path]:
    """A folder with the checks' program and the pair, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ddtree-verify-") as name:
        folder = Path(name)
        for file in FILES:
            data = pkgutil.get_data("ddtree_deploy", file)
            assert data is not None, file
            target = folder / "ddtree_deploy" / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        for file, source in pair.items():
            link = folder / "pair" / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(source)
        yield folder


def _free_mib(gpu: Gpu) -> Optional[int]:
    if gpu.memory_mib is None or gpu.memory_used_mib is None:
        return None
    return gpu.memory_mib - gpu.memory_used_mib
