"""Tokens per verify step of a pair at several budgets, beside the rows of the authors' implementation.

    RELEASE/bin/python benchmarks/acceptance.py --target pairs/nano/target --draft pairs/nano/draft --authors nano \\
        --out results/acceptance.json

Greedy, the first 24 prompts, 160 tokens each; total tokens over total verify steps. For each dtype the servers of all
budgets and one of plain decoding run at once (`--at-once` limits it): nothing is timed here. Answers that differ
from plain decoding's are judged by how much less probable their first differing token was.

On a GPU float32 runs with torch's norms, rope and activations (`native_ops/`), which have no float32 kernels; the
attention, the tree, the walk and the commit are the product's.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Sequence

from bench_server import (
    Engine,
    EngineFailed,
    arguments,
    largest_gaps,
    logs_folder,
    machine,
    save,
    stop_on_sigterm,
    tokens_per_step,
)

FOLDER = Path(__file__).resolve().parent
AUTHORS_PROMPTS = 24
LIMITS = {"float32": 0.02, "bfloat16": 0.03}


def plans(dtypes: Sequence[str], budgets: Sequence[int]) -> list[tuple[str, str, list[str]]]:
    """(dtype, row, server arguments), plain decoding first."""
    found = []
    for dtype in dtypes:
        base = ["--attention-backend", "triton", "--dtype", dtype]
        found.append((dtype, "plain", base))
        for budget in budgets:
            tree = ["--speculative-algorithm", "DDTREE", "--speculative-ddtree-budget", str(budget)]
            found.append((dtype, str(budget), [*base, *tree]))
    return found


def against(value: float, authors: float | None, limit: float) -> dict[str, Any]:
    """A row beside the authors'; `within` is the limit that was set for it."""
    row: dict[str, Any] = {"tokens_per_step": round(value, 3)}
    if authors is not None:
        row.update(authors=authors, difference=round(value / authors - 1, 4), within=abs(value / authors - 1) <= limit)
    return row


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--authors", default="tiny", help="pair whose rows of data/authors.json are compared with")
    parser.add_argument("--budgets", default="15,31,63,127")
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--count", type=int, default=24, help="prompts")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--at-once", type=int, default=10)
    options = parser.parse_args()
    stop_on_sigterm()
    prompts = json.loads(options.prompts.read_text())[: options.count]
    authors = json.loads((FOLDER / "data" / "authors.json").read_text()).get(options.authors, {})
    results: dict[str, Any] = {
        "machine": machine(options.device),
        "pair": options.authors,
        "prompts": len(prompts),
        "rows": {},
    }
    outputs: dict[str, list[list[int]]] = {}

    def start(dtype: str, row: str, words: list[str]) -> Engine:
        native = [str(FOLDER / "native_ops"), os.environ.get("PYTHONPATH", "")]
        return Engine(
            f"{dtype}-{row}",
            [*few, *words],
            target=options.target,
            draft=options.draft,
            logs=logs_folder(options),
            device=options.device,
            environment={"PYTHONPATH": os.pathsep.join(filter(None, native))} if dtype == "float32" else None,
        )

    def ask(engine: Engine) -> list[dict[str, Any]] | EngineFailed:
        try:
            engine.wait(prompts[0])
            return engine.generate_all(prompts, options.concurrency)
        except (OSError, EngineFailed) as error:
            return EngineFailed(f"{type(error).__name__}: {error}")

    # No larger batch is asked for: the servers start sooner.
    few = [] if options.device == "cpu" else ["--cuda-graph-max-bs", str(options.concurrency)]
    todo = plans(options.dtypes.split(","), [int(b) for b in options.budgets.split(",")])
    for i in range(0, len(todo), options.at_once):
        group = todo[i : i + options.at_once]
        engines: list[Engine] = []
        try:
            engines += [start(*plan) for plan in group]
            with ThreadPoolExecutor(len(engines)) as pool:
                answered = list(pool.map(ask, engines))
            judges = {dtype: engine for (dtype, row, _), engine in zip(group, engines) if row == "plain"}
            for (dtype, row, _), answers in zip(group, answered):
                shown = results["rows"].setdefault(dtype, {})
                if isinstance(answers, EngineFailed):
                    shown[row] = {"error": str(answers)}
                    print(dtype, row, str(answers)[-1500:], flush=True)
                    save(options.out, results)
                    continue
                got = [answer["output_ids"] for answer in answers]
                if row == "plain":
                    outputs[dtype] = got
                    continue
                expected = authors.get(dtype, {}).get(row) if len(prompts) == AUTHORS_PROMPTS else None
                shown[row] = against(tokens_per_step(answers), expected, LIMITS[dtype])
                if dtype in outputs:
                    shown[row]["identical"] = sum(a == b for a, b in zip(outputs[dtype], got))
                    if dtype in judges:
                        gaps = largest_gaps(judges[dtype], prompts, outputs[dtype], got)
                        shown[row]["largest_gap"] = round(max(gaps, default=0.0), 4)
                print(f"{dtype} budget {row}: {shown[row]}", flush=True)
                save(options.out, results)
        finally:
            for engine in engines:
                engine.stop()
    bad = [f"{d} {r}" for d, rows in results["rows"].items() for r, row in rows.items() if "error" in row]
    if bad:
        raise SystemExit(f"failed: {', '.join(bad)}")


if __name__ == "__main__":
    main()
