"""Which GPUs services go on, where a GPU is now, and which processes hold it. The probing itself is ``facts.gpu``'s."""

from __future__ import annotations

from pathlib import Path
from typing import List, Optional, Sequence, Set

from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.facts.gpu import GpuFacts, probe_gpus
from ddtree_deploy.facts.model import Gpu
from ddtree_deploy.serve.command import option_value
from ddtree_deploy.serve.environment import release_record


def runs_on_cpu(release: Path, engine_arguments: Sequence[str]) -> Optional[bool]:
    """Whether this release serves on the CPU: as ``--device`` says, else as it was built; None if neither tells."""
    device = option_value(engine_arguments, "--device")
    if device is not None:
        return device == "cpu"
    tag = release_record(release).get("abi_tag")
    return None if tag is None else tag == "cpu"


def select_gpus(facts: GpuFacts, wanted: Optional[Sequence[int]], on_cpu: Optional[bool]) -> List[Optional[Gpu]]:
    """The GPUs to serve on, all by default; ``[None]`` is the CPU, of a CPU release or a host without GPUs.

    Raises InputError: ``gpu-missing`` for an index that does not exist, ``gpu-twice``, ``no-gpus``, ``gpus-on-cpu``
    when GPUs are asked of a CPU release, ``gpu-split`` for one that MIG splits.
    """
    if wanted is not None and not wanted:
        raise InputError("no-gpus", "the list of GPUs is empty", where="gpus", hint="leave it out to use all of them")
    if on_cpu:
        if wanted is not None:
            raise InputError(
                "gpus-on-cpu",
                "this release serves on the CPU",
                where="gpus",
                hint="leave gpus out, or use a GPU profile",
            )
        return [None]
    if not facts.gpus and wanted is None:
        if on_cpu is None:
            return [None]
        why = f": {facts.problem}" if facts.problem else ""
        raise InputError(
            "no-gpus",
            f"this release serves on GPUs, and this host shows none{why}",
            hint="provision with a CPU profile",
        )
    by_index = {gpu.index: gpu for gpu in facts.gpus}
    there = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in facts.gpus) or facts.problem or "none"
    chosen: List[Optional[Gpu]] = []
    for index in by_index if wanted is None else wanted:
        gpu = by_index.get(index)
        if gpu is None:
            raise InputError("gpu-missing", f"there is no GPU {index}", where="gpus", hint=f"this host has: {there}")
        if gpu in chosen:
            raise InputError(
                "gpu-twice", f"GPU {index} is named twice", where="gpus", hint="one service runs on each GPU"
            )
        if gpu.mig:
            raise InputError(
                "gpu-split",
                f"GPU {index} is split by MIG, which is not supported",
                where="gpus",
                hint="name other GPUs",
            )
        chosen.append(gpu)
    return chosen


def current_index(uuid: str) -> int:
    """Where this GPU is now, in PCI bus order; raises StepError ``gpu-gone``."""
    facts = probe_gpus()
    for gpu in facts.gpus:
        if gpu.uuid == uuid:
            return gpu.index
    raise StepError("gpu-gone", f"GPU {uuid} is not there any more", hint=facts.problem or "nvidia-smi -L lists all")


def holders(uuid: str) -> Set[int]:
    """The processes that the driver lists on a GPU (in some containers it lists none)."""
    return {process.pid for gpu in probe_gpus().gpus if gpu.uuid == uuid for process in gpu.processes}
