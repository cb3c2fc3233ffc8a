"""Turns, summaries and what is read from a server's log; the servers are stand-ins that only count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import bench_server
import engine_bench
import pytest


class CountedEngine:
    """Stands for a server on a GPU: answers at once and writes down what it is asked."""

    def __init__(self, name: str, folder: Path, calls: list[tuple[str, str]], fails: str = ""):
        self.name, self.command, self.device = name, f"serve {name}", "cpu"
        self.log, self.calls, self.fails = folder / f"{name}.log", calls, fails
        self.log.write_text("")

    def wait(self, prompt: list[int]) -> float:
        if self.fails == "start":
            raise bench_server.EngineFailed(f"{self.name} did not come up")
        return 1.5

    def pause(self) -> None:
        self.calls.append((self.name, "pause"))

    def resume(self) -> None:
        self.calls.append((self.name, "resume"))

    def generate(self, ids: list[int], **sampling: Any) -> dict[str, Any]:
        if self.fails == "answer":
            raise OSError("connection refused")
        self.calls.append((self.name, f"T={sampling['temperature']:g}"))
        return {"meta_info": {"completion_tokens": 160, "spec_verify_ct": 40, "e2e_latency": 0.5}}


def bench_of(tmp_path: Path) -> engine_bench.Bench:
    return engine_bench.Bench(tmp_path / "out" / "tokens.json", "cpu", [[1, 2], [3]])


def test_cells():
    cells = engine_bench.parse_cells("0:1,4x3 0.8:16")
    assert [(cell.name, cell.times) for cell in cells] == [("T=0 c=1", 1), ("T=0 c=4", 3), ("T=0.8 c=16", 1)]


@pytest.mark.parametrize("bad", ["1,4", "0:one", "0:4xx"])
def test_cells_that_mean_nothing(bad):
    with pytest.raises(ValueError):
        engine_bench.parse_cells(bad)


def test_summary_is_median_and_spread():
    runs = [
        {"tokens_per_s": rate, "tokens_per_step": 4.0, "verify_steps": [40], "latency_s": [0.5]}
        for rate in (90.0, 120.0, 100.0)
    ]
    found = engine_bench.summary(runs)
    assert (found["lowest"], found["tokens_per_s"], found["highest"]) == (90.0, 100.0, 120.0)
    assert found["runs"] == [90.0, 120.0, 100.0]


def test_servers_are_measured_in_turns_and_one_at_a_time(tmp_path: Path):
    calls: list[tuple[str, str]] = []
    engines = [CountedEngine(name, tmp_path, calls) for name in ("a", "b")]
    bench = bench_of(tmp_path)
    bench.run(engines, engine_bench.parse_cells("0:2x2 0.8:1"), repeats=2)
    assert calls[:2] == [("a", "pause"), ("b", "pause")]
    running: str | None = None
    order = []
    for name, what in calls[2:]:
        if what == "resume":
            assert running is None
            running = name
            order.append(name)
        elif what == "pause":
            running = None
        else:
            assert name == running
    assert order == ["a", "b", "a", "b"]
    saved = json.loads(bench.out.read_text())["servers"]["b"]
    assert len(saved["cells"]["T=0 c=2"]["runs"]) == 4 and len(saved["cells"]["T=0.8 c=1"]["runs"]) == 2
    assert saved["cells"]["T=0 c=2"]["tokens_per_step"] == 4.0
    assert saved["cells"]["T=0 c=2"]["verify_steps"] == [40] * 8


@pytest.mark.parametrize("fails", ["start", "answer"])
def test_a_server_that_fails_is_noted_and_the_others_go_on(tmp_path: Path, fails):
    calls: list[tuple[str, str]] = []
    bench = bench_of(tmp_path)
    bench.run(
        [CountedEngine("bad", tmp_path, calls, fails), CountedEngine("good", tmp_path, calls)],
        engine_bench.parse_cells("0:1"),
        repeats=2,
    )
    saved = json.loads(bench.out.read_text())["servers"]
    assert saved["bad"]["error"] and "error" not in saved["good"]
    assert len(saved["good"]["cells"]["T=0 c=1"]["runs"]) == 2


def test_the_log_says_what_a_step_costs():
    log = (
        "[2026-01-01 10:00:00] max_total_num_tokens=30000, chunked_prefill_size=8192\n"
        "[2026-01-01 10:00:09] DDTREE step cost in ms by (batch size, budget) at context lengths [256, 4096]: "
        "{(1, 0): [4.78, 5.03], (32, 31): [23.84, 38.94]}\n"
    )
    found = engine_bench.read_log(log)
    assert found["step_ms"] == {"1,0": [4.78, 5.03], "32,31": [23.84, 38.94]}
    assert found["contexts"] == [256, 4096] and found["max_total_num_tokens"] == 30000
    assert engine_bench.read_log("nothing") == {}
