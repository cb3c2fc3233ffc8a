#!/usr/bin/env python3
"""A TEST DOUBLE of nvidia-smi: prints what the real one prints on hosts that the tests cannot have.

``--query-gpu`` and ``--query-compute-apps`` in CSV, the table without arguments, and ``-L``. The formats, messages and
exit statuses were recorded from driver 580.159.04 on an H200, from NVIDIA's documentation of nvidia-smi, and from
users' reports (driver failure, lost card). The scenario comes from ``DDTREE_NVIDIA_SMI_DOUBLE``, or is written into the
script that :func:`install` makes. Standard library only, Python 3.9: it also runs on test hosts.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, Dict, List

ENVIRONMENT = "DDTREE_NVIDIA_SMI_DOUBLE"


def card(index: int, name: str, capability: str, memory: int, **changes: str) -> Dict[str, str]:
    return {
        "index": str(index),
        "uuid": f"GPU-0000000{index}-9f4c-1372-9e39-58a1962e166c",
        "name": name,
        "compute_cap": capability,
        "memory.total": str(memory),
        "memory.used": "4",
        "pci.bus_id": f"00000000:{16 * (index + 1):02X}:00.0",
        "mig.mode.current": "[N/A]",
        **changes,
    }


PRO_6000 = ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "12.0", 97887)
H100 = ("NVIDIA H100 80GB HBM3", "9.0", 81559)
RTX_4090 = ("NVIDIA GeForce RTX 4090", "8.9", 24564)

SCENARIOS: Dict[str, Dict[str, Any]] = {
    "eight": {
        "driver": "580.95.05",
        "cuda": "13.0",
        "cards": [card(index, *PRO_6000) for index in range(8)],
        "apps": [
            "GPU-00000003-9f4c-1372-9e39-58a1962e166c, 4121, /opt/train/bin/python3, 61034",
            "GPU-00000003-9f4c-1372-9e39-58a1962e166c, 4122, tritonserver, with a comma, 512",
        ],
    },
    "one": {"driver": "580.95.05", "cuda": "13.0", "cards": [card(0, *PRO_6000)], "apps": []},
    "mixed": {
        "driver": "570.172.08",
        "cuda": "12.8",
        "cards": [card(0, *RTX_4090), card(1, *H100, **{"mig.mode.current": "Disabled"}), card(2, *PRO_6000)],
        "apps": [],
    },
    "mig": {
        "driver": "580.95.05",
        "cuda": "13.0",
        "cards": [card(0, *H100, **{"mig.mode.current": "Enabled", "memory.used": "[N/A]"}), card(1, *H100)],
        "apps": ["GPU-00000001-9f4c-1372-9e39-58a1962e166c, 77, python3, [N/A]"],
    },
    "old": {  # does not know compute_cap nor mig.mode.current
        "driver": "440.33.01",
        "cuda": "10.2",
        "cards": [card(0, "Tesla V100-SXM2-32GB", "7.0", 32510)],
        "apps": [],
        "unknown": ["compute_cap", "mig.mode.current"],
    },
    "lost": {
        "driver": "550.54.15",
        "cuda": "12.4",
        "cards": [card(0, *H100), card(2, *H100, **{"memory.used": "[GPU requires reset]"})],
        "apps": [],
        "message": "Unable to determine the device handle for GPU 0000:20:00.0: Unknown Error",
        "status": 255,
    },
    "container": {"driver": "580.95.05", "cuda": "N/A", "cards": [card(0, *H100)], "apps": []},
    "none": {"message": "No devices were found", "status": 6},
    "driver-failure": {
        "message": "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the "
        "latest NVIDIA driver is installed and running.\n",
        "status": 9,
    },
    "mismatch": {
        "message": "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95",
        "status": 18,
    },
    "hang": {"hang": True},
}


def main(arguments: List[str], scenario: Dict[str, Any]) -> int:
    if scenario.get("hang"):
        time.sleep(3600)
    lines: List[str] = []
    fields = option(arguments, "--query-gpu=")
    if fields is not None:
        invalid = [name for name in fields if name in scenario.get("unknown", []) or name == "nosuch"]
        if invalid:
            print(f'Field "{invalid[0]}" is not a valid field to query.\n')
            return 2
        for item in scenario.get("cards", []):
            values = {**item, "driver_version": scenario["driver"]}
            lines.append(", ".join(values[name] for name in fields))
    elif option(arguments, "--query-compute-apps=") is not None:
        lines = scenario.get("apps", [])
    elif "-L" in arguments:
        lines = [f"GPU {item['index']}: {item['name']} (UUID: {item['uuid']})" for item in scenario.get("cards", [])]
    elif scenario.get("cards"):
        lines = table(scenario)
    if scenario.get("message"):
        lines.append(scenario["message"])
    if lines:
        print("\n".join(lines))
    return int(scenario.get("status", 0))


def option(arguments: List[str], prefix: str) -> List[str] | None:
    return next((item[len(prefix) :].split(",") for item in arguments if item.startswith(prefix)), None)


def table(scenario: Dict[str, Any]) -> List[str]:
    driver, cuda = scenario["driver"], scenario["cuda"]
    return [
        "+-----------------------------------------------------------------------------------------+",
        f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<8} |",
        "+-----------------------------------------+------------------------+----------------------+",
    ]


def install(folder: Path, scenario: str) -> Path:
    """Put an ``nvidia-smi`` that plays ``scenario`` into ``folder``, which goes on the PATH of the host under test."""
    assert scenario in SCENARIOS
    folder.mkdir(parents=True, exist_ok=True)
    tool = folder / "nvidia-smi"
    tool.write_text(
        f"#!/bin/sh\n# a test double, not NVIDIA's\n"
        f"{ENVIRONMENT}={scenario} exec '{sys.executable}' '{Path(__file__).resolve()}' \"$@\"\n"
    )
    tool.chmod(0o755)
    return tool


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], SCENARIOS[os.environ.get(ENVIRONMENT, "eight")]))
