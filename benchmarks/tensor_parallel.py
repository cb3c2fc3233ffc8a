"""Tensor parallelism over two GPUs: the same answers as on one, and tokens per second.

    RELEASE/bin/python benchmarks/tensor_parallel.py --target T --draft D --out results/tensor_parallel.json

Plain decoding on one GPU is the judge: where an answer differs, the first differing token must have been nearly as
probable as the one chosen (the largest gap is stated, in nats). Servers are started at once and measured in turns.
"""

from __future__ import annotations

import json
from typing import Any

from bench_server import (
    MAX_NEW_TOKENS,
    Engine,
    EngineFailed,
    arguments,
    largest_gaps,
    logs_folder,
    machine,
    measure,
    save,
    stop_on_sigterm,
    tokens_per_step,
)

DDTREE = ["--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget"]


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--tp", default="2")
    parser.add_argument("--count", type=int, default=64, help="prompts whose answers are compared")
    parser.add_argument("--concurrency", default="1,16")
    parser.add_argument("--compare-at", type=int, default=4, help="concurrency of the comparison")
    parser.add_argument("--budgets", default="63,auto")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--requests", type=int, help="at most so many in a measurement, to rehearse")
    parser.add_argument("--new-tokens", type=int, default=MAX_NEW_TOKENS, help="of a request (default %(default)s)")
    options = parser.parse_args()
    stop_on_sigterm()
    prompts = json.loads(options.prompts.read_text())
    compared = prompts[: options.count]
    base, tp = ["--attention-backend", "triton"], ["--tp", options.tp]
    configurations: dict[str, list[str]] = {"plain tp1": base}
    for budget in options.budgets.split(","):
        configurations[f"ddtree {budget} tp1"] = [*base, *DDTREE, budget]
        configurations[f"ddtree {budget} tp{options.tp}"] = [*base, *tp, *DDTREE, budget]
    configurations[f"dflash tp{options.tp}"] = [*base, *tp, "--speculative-algorithm", "DFLASH"]
    results: dict[str, Any] = {"machine": machine(options.device), "servers": {}}
    outputs: dict[str, list[list[int]]] = {}
    names = list(configurations)
    for i in range(0, len(names), options.at_once):
        engines: list[Engine] = []
        try:
            for name in names[i : i + options.at_once]:
                engines.append(
                    Engine(
                        name.replace(" ", "-"),
                        configurations[name],
                        target=options.target,
                        draft=options.draft,
                        logs=logs_folder(options),
                        device=options.device,
                        # The servers beside it take unequal shares of the two GPUs.
                        environment={"SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK": "false"},
                    )
                )
            up: dict[str, Engine] = {}
            for name, engine in zip(names[i : i + options.at_once], engines):
                row = results["servers"][name] = {"command": engine.command}
                try:
                    row["start_s"] = round(engine.wait(prompts[0]), 1)
                    up[name] = engine
                except EngineFailed as error:
                    row["error"] = str(error)
                save(options.out, results)
            for engine in up.values():
                engine.pause()
            judge = up.get("plain tp1")
            for name, engine in up.items():
                row = results["servers"][name]
                engine.resume()
                try:
                    answers = engine.generate_all(compared, options.compare_at, max_new_tokens=options.new_tokens)
                    outputs[name] = [answer["output_ids"] for answer in answers]
                    if name != "plain tp1":
                        row["tokens_per_step"] = round(tokens_per_step(answers), 3)
                    for concurrency in map(int, options.concurrency.split(",")):
                        run = measure(engine, prompts, concurrency, 0, options.requests, options.new_tokens)
                        row[f"c={concurrency}"] = round(run["tokens_per_s"], 1)
                except (OSError, EngineFailed) as error:
                    row["error"] = f"{type(error).__name__}: {error}"
                engine.pause()
                save(options.out, results)
                print(name, {k: v for k, v in row.items() if k != "command"}, flush=True)
            if judge is not None:
                judge.resume()
            compare(results, outputs, judge, compared)
            save(options.out, results)
        finally:
            for engine in engines:
                engine.stop()
    print(json.dumps(results.get("compared", {}), indent=1), flush=True)
    failed = [name for name, row in results["servers"].items() if "error" in row]
    if failed:
        raise SystemExit("\n".join(f"{name}: {results['servers'][name]['error'][-1500:]}" for name in failed))


def compare(
    results: dict[str, Any], outputs: dict[str, list[list[int]]], judge: Engine | None, prompts: list[list[int]]
) -> None:
    """Each server against plain decoding, and each budget's TP 2 against its TP 1."""
    rows = results.setdefault("compared", {})
    for name, got in outputs.items():
        others = ["plain tp1"] if name != "plain tp1" else []
        if not name.endswith("tp1"):
            others.append(f"{name.rpartition(' ')[0]} tp1")
        for other in others:
            key = f"{name} against {other}"
            if other not in outputs or key in rows:
                continue
            rows[key] = {"prompts": len(got), "identical": sum(a == b for a, b in zip(outputs[other], got))}
            if judge is not None:
                gaps = largest_gaps(judge, prompts, outputs[other], got)
                rows[key]["largest_gap"] = round(max(gaps, default=0.0), 4)


if __name__ == "__main__":
    main()
