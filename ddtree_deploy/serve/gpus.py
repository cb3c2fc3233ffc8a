"""The host's GPUs for services: which there are, where a UUID sits now, and which processes hold one."""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
from typing import Dict, List, Optional, Sequence

from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.facts.model import Gpu

_TIMEOUT_S = 30


def list_gpus() -> List[Gpu]:
    """The GPUs in PCI bus order; empty where there is no nvidia-smi or it sees none."""
    rows = _query("--query-gpu=index,uuid,name,memory.total,memory.used")
    gpus = []
    for row in rows:
        if len(row) == 5 and row[0].isdigit():
            total, used = (int(value) if value.isdigit() else None for value in row[3:])
            gpus.append(Gpu(int(row[0]), row[1], row[2], memory_mib=total, memory_used_mib=used))
    return gpus


def current_index(uuid: str) -> int:
    """Where this GPU is now; raises StepError ``gpu-gone``."""
    for gpu in list_gpus():
        if gpu.uuid == uuid:
            return gpu.index
    raise StepError("gpu-gone", f"GPU {uuid} is not there any more", hint="nvidia-smi -L lists what the driver sees")


def holders() -> Dict[int, str]:
    """Process id -> GPU UUID of every compute process that the driver reports (host pids; none in some containers)."""
    rows = _query("--query-compute-apps=pid,gpu_uuid")
    return {int(row[0]): row[1] for row in rows if len(row) == 2 and row[0].isdigit()}


def select_gpus(gpus: Sequence[Gpu], wanted: Optional[Sequence[int]]) -> List[Optional[Gpu]]:
    """The GPUs to serve on, all by default; ``[None]`` (the CPU) on a host without any.

    Raises InputError ``gpu-missing`` for an index that does not exist, ``gpu-twice`` for a repeated one.
    """
    if wanted is None:
        return list(gpus) or [None]
    by_index = {gpu.index: gpu for gpu in gpus}
    for position, index in enumerate(wanted):
        if index not in by_index:
            there = ", ".join(f"{gpu.index} ({gpu.name})" for gpu in gpus) or "none"
            raise InputError("gpu-missing", f"there is no GPU {index}", where="gpus", hint=f"this host has: {there}")
        if index in wanted[:position]:
            raise InputError("gpu-twice", f"GPU {index} is named twice", where="gpus")
    if not wanted:
        raise InputError("no-gpus", "the list of GPUs is empty", where="gpus", hint="leave it out to use all of them")
    return [by_index[index] for index in wanted]


def _query(question: str) -> List[List[str]]:
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        answer = subprocess.run(
            [program, question, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    if answer.returncode != 0:
        return []
    return [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(answer.stdout)) if row]
