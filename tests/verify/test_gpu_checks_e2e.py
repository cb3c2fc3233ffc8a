"""The checks of ``verify --gpu`` on the real engine, on the CPU: they pass it, and each fails it when it is broken.

The kernels run in Triton's interpreter, the engine in float32. What is different on a GPU (CUDA graphs, steps that run
ahead, the budget ``auto``, bf16) is not tried here.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.verify.on_gpu import KEPT, TITLES, run_gpu_checks
from ddtree_deploy.verify.runner import Outcome

PROJECT = Path(__file__).resolve().parents[2]
PAIR = PROJECT / "pairs" / "nano"
DEFECTS = Path(__file__).parent / "gpu_defects"

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.timeout(600)]


def release() -> Path:
    return Path(os.environ["DDTREE_ENGINE_PYTHON"]).parent.parent


def checked(environment: dict[str, str], temporary: Path) -> dict[str, Outcome]:
    pair = {path.relative_to(PAIR).as_posix(): str(path) for path in PAIR.rglob("*") if path.is_file()}
    said: list[Progress] = []
    outcomes = run_gpu_checks(release(), pair, None, environment, [], said.append, size="small")
    assert [outcome.check for outcome in outcomes] == list(TITLES)
    for outcome in outcomes:
        print(f"{outcome.check}: {outcome.status} after {outcome.seconds:.1f} s: {outcome.summary}")
    assert any("gpu-engine" in progress.message for progress in said)
    return {outcome.check: outcome for outcome in outcomes}


def engines() -> list[str]:
    """Command lines of engines with our pair's link, which no other test has."""
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "ddtree-verify-" in line]


def test_the_release_passes(tmp_path: Path) -> None:
    began = time.monotonic()
    found = checked({}, tmp_path)
    print(f"{time.monotonic() - began:.0f} s in all")
    assert {name: outcome.status for name, outcome in found.items()} == dict.fromkeys(TITLES, "ok")
    assert found["gpu-pool"].data["ended"]["abort"] > 0
    for name in list(TITLES)[1:]:
        assert found[name].output == []
    assert engines() == []


@pytest.mark.slow
def test_a_broken_engine_fails_every_check(tmp_path: Path) -> None:
    found = checked({"PYTHONPATH": str(DEFECTS)}, tmp_path)
    summaries = {name: outcome.summary for name, outcome in found.items() if outcome.status == "failed"}
    assert set(summaries) == set(TITLES) - {"gpu-engine"}
    assert "the walk's lengths differ" in summaries["gpu-kernels"]
    assert "tokens per verify step where" in summaries["gpu-greedy"]
    assert "draws of 2 tokens do not fit" in summaries["gpu-sampling"]
    assert "the stop token" in summaries["gpu-stops"]
    assert "frequency and presence penalties:" in summaries["gpu-penalties"]
    assert found["gpu-pool"].cause in ("engine-failed", "wrong-value")
    assert "leak" in (found["gpu-pool"].detail or "") + summaries["gpu-pool"]
    assert engines() == []


def test_what_is_kept_of_a_services_arguments_are_options_of_the_engine(tmp_path: Path) -> None:
    source = next(release().glob("lib/python3*/site-packages/sglang/srt/server_args.py")).read_text("utf-8")
    assert [option for option in KEPT if f'"{option}"' not in source] == []
