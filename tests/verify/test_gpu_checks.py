"""Each check of ``verify --gpu`` passes an engine that is right, and fails one with a defect, for that reason."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from toy_engine import ToyEngine, ToyReference

from ddtree_deploy.verify import probe
from ddtree_deploy.verify.gpu import kernels
from ddtree_deploy.verify.gpu.checks import SIZES, Session, guarded
from ddtree_deploy.verify.gpu.server import EngineFailed, Server
from ddtree_deploy.verify.gpu.statistics import chi_square
from ddtree_deploy.verify.gpu.storm import random_requests

ASKED = ["gpu-greedy", "gpu-sampling", "gpu-stops", "gpu-penalties", "gpu-pool"]

DEFECTS = {
    "wrong-token": ("gpu-greedy", "the worst, token 30 of answer"),
    "short-answers": ("gpu-greedy", "answers of [47, 47, 47, 47, 47, 47] tokens where 48 were asked"),
    "poor-drafts": ("gpu-greedy", "3.29 tokens per verify step where 4.11 are known"),
    "temperature-ignored": ("gpu-sampling", "400 draws of 1 tokens do not fit the target's probabilities"),
    "second-token-greedy": ("gpu-sampling", "400 draws of 2 tokens do not fit the target's probabilities"),
    "stops-ignored": ("gpu-stops", "should end an answer after"),
    "past-the-stop": ("gpu-stops", "should end an answer after"),
    "one-too-many": ("gpu-stops", "max_new_tokens=1 should end an answer after 1 tokens (length); it ended after 2"),
    "wrong-reason": ("gpu-stops", "tokens (stop); it ended after"),
    "penalties-ignored": ("gpu-penalties", "frequency and presence penalties: 6 of 6 answers have a token"),
    "counted-once": ("gpu-penalties", "frequency and presence penalties:"),
    "bias-ignored": ("gpu-penalties", "a logit bias:"),
    "minimum-ignored": ("gpu-penalties", "min_new_tokens:"),
    "leaked-slots": ("gpu-pool", "num_used_tokens is 7"),
    "stuck-request": ("gpu-pool", "num_running_reqs is 1"),
    "smaller-pool": ("gpu-pool", "the KV pool has another size"),
    "internal-error": ("gpu-pool", "requests ended with {'HTTP 500': 32}"),
    "traceback": ("gpu-pool", "after all requests: Traceback"),
    "cache-outlives-flush": ("gpu-pool", "after a flush"),
    "no-cache": ("gpu-pool", "0 tokens of a prompt asked before were cached"),
}
ALSO = {  # what a defect breaks in other checks too
    "wrong-token": {"gpu-penalties", "gpu-pool"},
    "one-too-many": {"gpu-greedy"},
    "short-answers": {"gpu-penalties"},
    "penalties-ignored": {"gpu-penalties"},
}


def session(folder: Path, defect: str = "") -> Session:
    made = Session("cpu", "/nowhere", str(folder), [], "float32", "small")
    made.engines = {"31": ToyEngine(folder, defect)}
    made._reference = ToyReference()
    return made


def results(folder: Path, defect: str = "") -> dict[str, dict[str, Any]]:
    checks = {name: guarded(check) for name, check in session(folder, defect).checks().items()}
    return {name: probe.run(name, checks) for name in ASKED}


def test_an_engine_that_is_right(tmp_path: Path) -> None:
    found = results(tmp_path)
    assert {name: result["status"] for name, result in found.items()} == dict.fromkeys(ASKED, "ok"), found
    assert "6 of 6 all best, gap 0, 4.11 a step" in found["gpu-greedy"]["summary"]
    assert found["gpu-pool"]["data"]["ended"] == {"abort": 8, "length": 24}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_fails_its_check(tmp_path: Path, defect: str) -> None:
    check, reason = DEFECTS[defect]
    found = results(tmp_path, defect)
    assert found[check]["status"] == "failed"
    assert found[check]["cause"] == "wrong-value"
    assert reason in found[check]["summary"]
    failed = {name for name in ASKED if found[name]["status"] == "failed"}
    assert failed - {check} <= ALSO.get(defect, set())


def test_aborts_that_never_arrive_are_a_warning(tmp_path: Path) -> None:
    """Nothing is wrong with the engine then, but the check has seen less than it should."""
    assert results(tmp_path, "abort-ignored")["gpu-pool"]["status"] == "warning"


def test_an_engine_that_dies_is_told_with_its_log(tmp_path: Path) -> None:
    for result in results(tmp_path, "dead").values():
        assert (result["status"], result["cause"]) == ("failed", "engine-failed")
        assert "CUDA error" in result["detail"]


def test_without_an_engine_the_rest_is_skipped(tmp_path: Path) -> None:
    made = Session("cpu", "/nowhere", str(tmp_path), [], "float32", "small")
    checks = made.checks()
    assert {probe.run(name, checks)["status"] for name in ASKED} == {"skipped"}


def test_a_check_that_breaks_says_where(tmp_path: Path) -> None:
    def broken() -> probe.Report:
        raise KeyError("output_ids")

    result = probe.run("one", {"one": guarded(broken)})
    assert (result["status"], result["cause"]) == ("failed", "check-error")
    assert "KeyError" in result["summary"] and "def broken" not in result["summary"]
    assert "raise KeyError" in result["detail"]


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 0.25), ("float32", 0.01)])
def test_the_bound_is_the_dtypes(tmp_path: Path, dtype: str, bound: float) -> None:
    made = Session("cuda", "/nowhere", str(tmp_path), [], dtype, "full")
    assert made.bound <= bound
    assert SIZES["full"].draws == 2000 and SIZES["full"].prompts == 24


def test_chi_square_knows_a_fair_die_from_a_loaded_one() -> None:
    die = dict.fromkeys(range(6), 1 / 6)
    assert chi_square(dict.fromkeys(range(6), 100), die) == (0.0, 5, pytest.approx(31.8, abs=0.5))
    assert chi_square({0: 115, 1: 85, 2: 110, 3: 90, 4: 105, 5: 95}, die).fits
    assert not chi_square({0: 170, 1: 90, 2: 85, 3: 85, 4: 85, 5: 85}, die).fits
    # what has no cell of its own is counted together: here half of the draws
    assert not chi_square({0: 100, 7: 500}, {0: 1 / 6, 1: 1 / 6}).fits
    # the spread allows for probabilities that are a little off
    assert chi_square({0: 5400, 1: 4600}, {0: 0.5, 1: 0.5}, spread=0.1).fits
    assert not chi_square({0: 5400, 1: 4600}, {0: 0.5, 1: 0.5}).fits


def test_random_requests_are_the_same_every_time_and_mixed() -> None:
    requests = random_requests([[1], [2, 3]], 56)
    assert requests == random_requests([[1], [2, 3]], 56)
    assert len({body["rid"] for body, _ in requests}) == 56
    assert sum(after > 0 for _, after in requests) == 14
    sampled = [body["sampling_params"]["temperature"] for body, _ in requests]
    assert 10 < sum(temperature > 0 for temperature in sampled) < 46
    assert sum("frequency_penalty" in body["sampling_params"] for body, _ in requests) == 8


def test_kernels_are_not_imported_without_torch() -> None:
    """The agent's Python has no torch: the module can be imported there all the same."""
    assert callable(kernels.run)


@pytest.mark.parametrize(
    ("said", "why"),
    [("RuntimeError: ninja exited with status 127\n/bin/sh: 1: nvcc: not found", ": 1: nvcc: not found"), ("", "")],
)
def test_an_engine_that_does_not_come_up_says_why(tmp_path: Path, said: str, why: str) -> None:
    program = f"import sys; print({said!r}); sys.exit(3)"
    server = Server([sys.executable, "-c", program], 1, tmp_path / "engine.log")
    with pytest.raises(EngineFailed) as caught:
        server.wait(limit_s=60)
    server.stop()
    assert str(caught.value).startswith("the engine ended with status 3 while it started")
    assert str(caught.value).endswith(why or "started")
    assert caught.value.detail.strip() == said
