"""GPUs as nvidia-smi names them, and the driver. Standard library only (agent-safe).

Nothing here fails: a host without GPUs has none, a broken driver gives a ``problem`` in words, a field that a card
does not know (``[N/A]``, ``[Not Supported]``) is None.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, List, Optional

from ddtree_deploy.facts.command import Output, background, run
from ddtree_deploy.facts.model import Gpu, GpuProcess

TIMEOUT = 20.0  # seconds; eight cards without persistence mode take about ten
_ELSEWHERE = ["/usr/bin", "/usr/local/nvidia/bin", "/usr/lib/wsl/lib", "/opt/nvidia/bin"]
_FIELDS = [
    "index",
    "uuid",
    "name",
    "compute_cap",
    "memory.total",
    "memory.used",
    "pci.bus_id",
    "mig.mode.current",
    "driver_version",
]
_APPS = "--query-compute-apps=gpu_uuid,pid,process_name,used_memory"
_FORMAT = "--format=csv,noheader,nounits"
_INVALID_FIELD = re.compile(r'[Ff]ield "([^"]+)" is not a valid field')
_NVIDIA_VENDOR = "0x10de"
_DISPLAY_CLASS = "0x03"


@dataclass(frozen=True)
class GpuFacts:
    gpus: List[Gpu] = field(default_factory=list)
    driver: Optional[str] = None
    driver_cuda: Optional[str] = None
    problem: Optional[str] = None


def probe_gpus(timeout: float = TIMEOUT) -> GpuFacts:
    """All that nvidia-smi tells; ``timeout`` seconds for each of its three calls, which run at the same time."""
    tool = _find_tool()
    if tool is None:
        return GpuFacts(driver=_loaded_driver(), problem=_without_tool())
    header = background(lambda: run([tool], timeout))
    apps = background(lambda: run([tool, _APPS, _FORMAT], timeout))
    gpus, driver, problem = _parse_cards(_query_cards(tool, timeout))
    processes = _parse_apps(apps().stdout)
    text = header().stdout
    driver_cuda = _match(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", text)
    if gpus and driver_cuda is None and problem is None:
        problem = "nvidia-smi does not say which CUDA the driver supports: a container without the driver's libcuda.so?"
    driver = driver or _match(r"Driver Version:\s*([\d.]+)", text) or _loaded_driver()
    return GpuFacts(
        gpus=[replace(gpu, processes=processes.get(gpu.uuid, [])) for gpu in gpus],
        driver=driver,
        driver_cuda=driver_cuda,
        problem=problem,
    )


def _find_tool() -> Optional[str]:
    return shutil.which("nvidia-smi") or shutil.which("nvidia-smi", path=os.pathsep.join(_ELSEWHERE))


def _query_cards(tool: str, timeout: float) -> Dict[str, List[str]]:
    """Column name -> values; under ``""`` the lines that are no row and the tool's problem.

    An old driver does not know all fields and answers nothing at all for the sake of one, so that is asked again
    without it.
    """
    fields = list(_FIELDS)
    while True:
        output = run([tool, "--query-gpu=" + ",".join(fields), _FORMAT], timeout)
        invalid = _INVALID_FIELD.search(output.stdout + output.stderr)
        if not invalid or invalid.group(1) not in fields:
            break
        fields.remove(invalid.group(1))
    return _columns(output, fields)


def _columns(output: Output, fields: List[str]) -> Dict[str, List[str]]:
    columns: Dict[str, List[str]] = {name: [] for name in fields}
    columns[""] = []
    for row in csv.reader(output.stdout.splitlines(), skipinitialspace=True):
        if len(row) == len(fields) and row[0].strip().isdigit():
            for name, value in zip(fields, row):
                columns[name].append(value.strip())
        elif row:
            columns[""].append(", ".join(row).strip())
    if not output.ok:
        columns[""].extend(line.strip() for line in output.stderr.splitlines() if line.strip())
        if not columns[""]:
            columns[""].append(output.problem or "nvidia-smi failed")
    return columns


def _parse_cards(columns: Dict[str, List[str]]) -> tuple[List[Gpu], Optional[str], Optional[str]]:
    """(GPUs, driver version, problem)."""

    def value(name: str, row: int) -> Optional[str]:
        text = columns[name][row] if name in columns else ""
        return None if not text or text.startswith(("[", "N/A")) else text

    gpus = []
    problems = list(columns[""])
    for row, index in enumerate(columns["index"]):
        mig = value("mig.mode.current", row)
        gpu = Gpu(
            index=int(index),
            uuid=value("uuid", row) or "",
            name=value("name", row) or "unknown",
            compute_capability=value("compute_cap", row),
            memory_mib=_number(value("memory.total", row)),
            memory_used_mib=_number(value("memory.used", row)),
            pci_bus_id=value("pci.bus_id", row),
            mig=None if mig is None else mig == "Enabled",
        )
        gpus.append(gpu)
        broken = sorted({columns[name][row] for name in columns if name and "[" in columns[name][row][:1]} - _HARMLESS)
        problems.extend(f"GPU {index}: {text}" for text in broken)
    drivers = [text for text in (value("driver_version", row) for row in range(len(gpus))) if text]
    return sorted(gpus, key=lambda gpu: gpu.index), drivers[0] if drivers else None, "; ".join(problems) or None


_HARMLESS = {"[N/A]", "[Not Supported]", "[Not Found]"}


def _parse_apps(text: str) -> Dict[str, List[GpuProcess]]:
    """UUID -> its compute processes. A program's name may hold commas; the other fields do not."""
    found: Dict[str, List[GpuProcess]] = {}
    for line in text.splitlines():
        parts = [part.strip() for part in line.split(",")]
        if len(parts) >= 4 and parts[1].isdigit():
            process = GpuProcess(int(parts[1]), ", ".join(parts[2:-1]), _number(parts[-1]))
            found.setdefault(parts[0], []).append(process)
    return found


def _without_tool() -> Optional[str]:
    """What is wrong when there is no nvidia-smi: nothing on a host without NVIDIA cards."""
    if _loaded_driver() is not None or Path("/dev/nvidiactl").exists():
        return "the NVIDIA driver is loaded, but nvidia-smi is not on PATH: a container without the driver's tools?"
    cards = _pci_cards()
    if cards:
        return f"an NVIDIA card is on the PCI bus ({', '.join(cards)}), but no driver is installed"
    return None


def _pci_cards() -> List[str]:
    found = []
    for device in sorted(Path("/sys/bus/pci/devices").glob("*")):
        try:
            vendor = (device / "vendor").read_text().strip()
            kind = (device / "class").read_text().strip()
        except OSError:
            continue
        if vendor == _NVIDIA_VENDOR and kind.startswith(_DISPLAY_CLASS):
            found.append(device.name)
    return found


def _loaded_driver() -> Optional[str]:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return None
    return _match(r"Kernel Module(?: for \S+)?\s+(\d[\d.]+)", text)


def _number(text: Optional[str]) -> Optional[int]:
    return int(text) if text and text.isdigit() else None


def _match(pattern: str, text: str) -> Optional[str]:
    match = re.search(pattern, text)
    return match.group(1) if match else None
