"""Tokens per second of several engine configurations on one GPU, side by side.

    RELEASE/bin/python benchmarks/engine_bench.py --target T --draft D --out results/tokens.json \\
        --server "ddtree=--attention-backend triton --speculative-algorithm DDTREE --speculative-ddtree-budget auto" \\
        --server "dflash=--attention-backend fa3 --speculative-algorithm DFLASH" \\
        --server "plain=--attention-backend triton"

A request wants 160 tokens. At concurrency c there are max(8, 2 c) of them below 16 and 3 c from there on, after c
warm-up requests. All servers are started at once (`--at-once` limits it) and measured in turns, the others stopped
by a signal meanwhile, so that ratios come from one machine in one state; a turn is repeated `--repeats` times.
`--cells` says what a turn measures: `0:1,4x3,16 0.8:1` is temperature 0 at concurrency 1, three times at 4, and
at 16, then temperature 0.8 at 1. The results are written after each measurement.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import profile_step
from bench_server import (
    MAX_NEW_TOKENS,
    Engine,
    EngineFailed,
    arguments,
    logs_folder,
    machine,
    measure,
    save,
    stop_on_sigterm,
)

COST_LINE = re.compile(r"DDTREE step cost in ms by .* at context lengths (\[.*?\]): (\{.*\})")
TOKENS_LINE = re.compile(r"max_total_num_tokens=(\d+)")


class Cell(NamedTuple):
    """One measurement of a turn."""

    temperature: float
    concurrency: int
    times: int = 1

    @property
    def name(self) -> str:
        return f"T={self.temperature:g} c={self.concurrency}"


def parse_cells(text: str) -> list[Cell]:
    """`0:1,4x3 0.8:1` -> the cells of a turn.

    Raises:
        ValueError: for anything else.
    """
    cells = []
    for group in text.split():
        temperature, colon, rest = group.partition(":")
        if not colon:
            raise ValueError(f"expected TEMPERATURE:CONCURRENCY,..., got {group!r}")
        for item in rest.split(","):
            concurrency, _, times = item.partition("x")
            cells.append(Cell(float(temperature), int(concurrency), int(times or 1)))
    return cells


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Median and spread of repeated measurements of a cell."""
    rates = [run["tokens_per_s"] for run in runs]
    return {
        "tokens_per_s": round(statistics.median(rates), 1),
        "lowest": round(min(rates), 1),
        "highest": round(max(rates), 1),
        "runs": [round(rate, 1) for rate in rates],
        "tokens_per_step": round(statistics.median(run["tokens_per_step"] for run in runs), 3),
        "verify_steps": runs[0]["verify_steps"],
        "latency_s": runs[0]["latency_s"],
    }


def read_log(log: str) -> dict[str, Any]:
    """What the server says of itself: the table of `auto`, and the size of the KV pool."""
    found: dict[str, Any] = {}
    if match := COST_LINE.search(log):
        found["contexts"] = ast.literal_eval(match[1])
        found["step_ms"] = {f"{bs},{budget}": ms for (bs, budget), ms in ast.literal_eval(match[2]).items()}
    if match := TOKENS_LINE.search(log):
        found["max_total_num_tokens"] = int(match[1])
    return found


class Bench:
    """Measures groups of servers in turns and keeps the result file up to date."""

    def __init__(self, out: Path, device: str, prompts: Sequence[list[int]], **workload: int | None):
        self.out, self.prompts, self.workload = out, prompts, workload
        self.results: dict[str, Any] = {"machine": machine(device), "servers": {}}

    def save(self) -> None:
        save(self.out, self.results)

    def wait(self, engines: Sequence[Engine]) -> list[Engine]:
        """Those that came up, paused."""
        up = []
        for engine in engines:
            row = self.results["servers"][engine.name] = {"command": engine.command, "cells": {}}
            try:
                row["start_s"] = round(engine.wait(self.prompts[0]), 1)
            except EngineFailed as error:
                row["error"] = str(error)
                print(error, file=sys.stderr, flush=True)
            else:
                row.update(read_log(engine.log.read_text(errors="replace")))
                up.append(engine)
            self.save()
        for engine in up:
            engine.pause()
        return up

    def turn(self, engine: Engine, cells: Sequence[Cell], runs: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
        row = self.results["servers"][engine.name]
        engine.resume()
        try:
            for cell in cells:
                done = runs.setdefault((engine.name, cell.name), [])
                for _ in range(cell.times):
                    done.append(measure(engine, self.prompts, cell.concurrency, cell.temperature, **self.workload))
                row["cells"][cell.name] = shown = summary(done)
                self.save()
                print(
                    f"{engine.name:12} {cell.name:12} {done[-1]['tokens_per_s']:9.1f} tok/s, median "
                    f"{shown['tokens_per_s']:9.1f} of {len(done)}, {shown['tokens_per_step']:5.2f} tokens/step",
                    flush=True,
                )
        except (OSError, EngineFailed, KeyError) as error:
            row["error"] = f"{type(error).__name__}: {error}"
            print(engine.name, row["error"], file=sys.stderr, flush=True)
        finally:
            engine.pause()

    def profile(self, engine: Engine, concurrencies: Sequence[int], new_tokens: int) -> None:
        row = self.results["servers"][engine.name]
        engine.resume()
        for concurrency in concurrencies:
            try:
                step = profile_step.record(engine, self.prompts, concurrency, new_tokens=new_tokens)
            except (OSError, EOFError, EngineFailed, ValueError) as error:
                step = {"error": f"{type(error).__name__}: {error}"}
            row.setdefault("profile", {})[f"c={concurrency}"] = step
            self.save()
            print(f"{engine.name:12} profile c={concurrency}: {step.get('step_ms', step)} ms", flush=True)
        engine.pause()

    def run(self, engines: Sequence[Engine], cells: Sequence[Cell], repeats: int) -> list[Engine]:
        up = self.wait(engines)
        runs: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for _ in range(repeats):
            for engine in up:
                if "error" not in self.results["servers"][engine.name]:
                    self.turn(engine, cells, runs)
        return up


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--server", action="append", required=True, metavar="NAME=ARGS")
    parser.add_argument("--only", help="names of servers, with commas: leave the others out")
    parser.add_argument("--cells", default="0:1,4,16,32 0.8:1,16", type=parse_cells)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=4, help="servers on the GPU at a time (default 4)")
    parser.add_argument("--profile", default="", metavar="C,C", help="concurrencies at which to profile each server")
    parser.add_argument("--profile-tokens", type=int, default=1200, help="tokens of a request that is profiled")
    parser.add_argument("--requests", type=int, help="at most so many in a measurement, to rehearse")
    parser.add_argument("--new-tokens", type=int, default=MAX_NEW_TOKENS, help="of a request (default %(default)s)")
    options = parser.parse_args()
    stop_on_sigterm()
    servers = [server.partition("=")[::2] for server in options.server]
    if options.only:
        servers = [server for server in servers if server[0] in options.only.split(",")]
    bench = Bench(
        options.out,
        options.device,
        json.loads(options.prompts.read_text()),
        most=options.requests,
        new_tokens=options.new_tokens,
    )
    for i in range(0, len(servers), options.at_once):
        engines = []
        try:
            for name, words in servers[i : i + options.at_once]:
                engines.append(
                    Engine(
                        name,
                        shlex.split(words),
                        target=options.target,
                        draft=options.draft,
                        logs=logs_folder(options),
                        device=options.device,
                    )
                )
            up = bench.run(engines, options.cells, options.repeats)
            for engine in up:
                bench.profile(engine, [int(c) for c in options.profile.split(",") if c], options.profile_tokens)
        finally:
            for engine in engines:
                engine.stop()
    failed = [name for name, row in bench.results["servers"].items() if "error" in row]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
