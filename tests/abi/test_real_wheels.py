"""The audit on real environments from the package index: no false alarm, and the pairs that users really met.

Takes about 25 GB of disk for a while and some minutes of downloads; run with ``pytest -m "e2e and slow" tests/abi``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_deploy.abi.audit import audit_environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

CLEAN = {
    "torch-2.11-cu130": (["torch==2.11.0", "torchvision"], []),
    "torch-2.9.1-cu128": (["torch==2.9.1", "torchvision==0.24.1"], []),
    "torch-2.9.1-cu128-with-its-kernels": (["torch==2.9.1", "torchvision==0.24.1"], ["sgl-kernel==0.3.21"]),
    "torch-2.11-cu130-with-its-kernels": (["torch==2.11.0", "torchvision"], ["sglang-kernel==0.4.2"]),
    "cpu-only": (["numpy", "pandas", "scipy", "pillow", "lxml", "grpcio", "pyzmq", "pydantic", "fastapi"], []),
}
BROKEN = {
    "cu130-kernels-on-cu128-torch": (
        ["torch==2.9.1", "torchvision==0.24.1"],
        ["sglang-kernel==0.4.2"],
        {"cuda-major-mismatch", "undefined-torch-symbol"},
    ),
    "cu128-kernels-on-cu130-torch": (
        ["torch==2.11.0", "torchvision"],
        ["sgl-kernel==0.3.21"],
        {"cuda-major-mismatch", "undefined-torch-symbol"},
    ),
    "both-kernel-packages": (
        ["torch==2.11.0", "torchvision"],
        ["sgl-kernel==0.3.21", "sglang-kernel==0.4.2"],
        {"record-overlap"},
    ),
    "torchvision-of-another-torch": (["torch==2.11.0"], ["torchvision==0.24.1"], {"requirement-version"}),
    "pandas-for-numpy-1": (["pandas==1.5.3", "numpy==2.1.0"], [], {"numpy-abi"}),
}


def install(folder: Path, packages: list[str], without_dependencies: list[str]) -> Path:
    venv = folder / "venv"
    subprocess.run(["uv", "venv", "--quiet", "--python", sys.executable, str(venv)], check=True)
    command = ["uv", "pip", "install", "--quiet", "--python", str(venv)]
    subprocess.run([*command, *packages], check=True)
    for package in without_dependencies:
        subprocess.run([*command, "--no-deps", package], check=True)
    return venv


@pytest.mark.parametrize("name", CLEAN)
def test_no_false_alarm(name: str, tmp_path: Path) -> None:
    packages, bare = CLEAN[name]
    report = audit_environment(str(install(tmp_path, packages, bare)))
    assert [finding for finding in report.findings if finding.severity == "error"] == []


@pytest.mark.parametrize("name", BROKEN)
def test_real_pairs_are_found(name: str, tmp_path: Path) -> None:
    packages, bare, expected = BROKEN[name]
    report = audit_environment(str(install(tmp_path, packages, bare)))
    assert expected <= {finding.id for finding in report.findings if finding.severity == "error"}
