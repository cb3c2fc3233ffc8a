"""What a short benchmark should give, from the cost of a step and each request's steps: which part costs how much.

    python benchmarks/tail_model.py RESULTS.json [--concurrency 4] [--prefill-ms 7]

Reads a result file of run_all.py whose stage `tokens` has the cost table of `auto`, and whose stage `sweep` has the
verify steps of each request. Requests of a workload this short (8 at concurrency 4) differ a lot in how many
tokens a step gives them, so the last one runs alone for a while. The model plays the workload step by step with each
request's own mean, and then again without one cause of loss at a time:

- tail: as if the batch were full until the last token;
- prefill: as if joining cost nothing;
- choice: as if the best size for the requests in the batch were known in every step.

It is deterministic: a request commits its mean in every step.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

TOKENS = 160
Rates = Mapping[int, float]  # tokens per step of a request, by budget
Cost = Callable[[int, int], float]  # (running, budget) -> ms


class Played(NamedTuple):
    """A workload that was played to its end."""

    ms: float
    steps: int
    prefill_ms: float
    full_ms: float  # with all slots taken

    def tokens_per_s(self, requests: int) -> float:
        return 1000 * TOKENS * requests / self.ms


def cost_of(table: Mapping[str, Sequence[float]]) -> Cost:
    """The first context's cost; a batch between two measured sizes is padded to the larger."""
    costs = {tuple(map(int, key.split(","))): ms[0] for key, ms in table.items()}
    sizes = sorted({bs for bs, _ in costs})

    def cost(running: int, budget: int) -> float:
        padded = next((bs for bs in sizes if bs >= running), sizes[-1])
        return costs.get((padded, budget), float("inf"))

    return cost


def best_budget(cost: Cost, active: Sequence[Rates], known: Sequence[Rates]) -> int:
    """The budget with the most tokens per millisecond for a batch, if its requests were the mean of `known`."""
    budgets = set.intersection(*(set(rates) for rates in active))
    return max(sorted(budgets), key=lambda b: sum(rates[b] for rates in known) / len(known) / cost(len(active), b))


def play(
    requests: Sequence[Rates],
    slots: int,
    cost: Cost,
    prefill_ms: float,
    *,
    knows_requests: bool = False,
    full: bool = False,
) -> Played:
    """Play the workload: `slots` clients, each asking for the next request when its last one is answered.

    Args:
        knows_requests: the budget is the best for the batch's own requests instead of the mean of all.
        full: no tail: the cost of a step is shared as if all slots were always taken.
    """
    waiting, active = list(requests), []  # active: [rates, tokens left]
    ms = prefills = full_ms = 0.0
    steps = 0
    while waiting or active:
        while waiting and len(active) < slots:
            active.append([waiting.pop(0), TOKENS - 1.0])
            prefills += prefill_ms
            ms += prefill_ms
        batch = [rates for rates, _ in active]
        running = slots if full else len(batch)
        padded = [batch[i % len(batch)] for i in range(running)]
        budget = best_budget(cost, padded, batch if knows_requests else list(requests))
        spent = cost(running, budget) * len(batch) / running
        ms += spent
        full_ms += spent if len(batch) == slots else 0.0
        steps += 1
        for entry in active:
            entry[1] -= entry[0][budget]
        active = [entry for entry in active if entry[1] > 1e-9]
    return Played(ms, steps, prefills, full_ms)


def rates_of(results: Mapping, concurrency: int) -> list[dict[int, float]]:
    """Tokens per step of each request by budget, from the recorded verify steps; budget 0 is plain decoding."""
    name = f"T=0 c={concurrency}"
    found: list[dict[int, float]] = []
    for server, row in results["sweep"]["servers"].items():
        steps = row["cells"].get(name, {}).get("verify_steps", [])
        found = found or [{0: 1.0} for _ in steps]
        for rates, count in zip(found, steps):
            rates[int(server.removeprefix("ddtree "))] = (TOKENS - 1) / count
    return found


def report(requests: Sequence[Rates], slots: int, cost: Cost, prefill_ms: float) -> dict[str, float]:
    """Tokens per second of the workload as it is, and without one loss at a time."""
    n = len(requests)
    found = {
        "as it is": play(requests, slots, cost, prefill_ms),
        "without tail": play(requests, slots, cost, prefill_ms, full=True),
        "without prefill": play(requests, slots, cost, 0.0),
        "knowing the requests": play(requests, slots, cost, prefill_ms, knows_requests=True),
        "without tail and prefill": play(requests, slots, cost, 0.0, full=True),
    }
    return {name: round(played.tokens_per_s(n), 1) for name, played in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--prefill-ms", type=float, default=7.0, help="a prompt's captured prefill")
    options = parser.parse_args()
    results = json.loads(options.results.read_text())
    table = next(s["step_ms"] for s in results["tokens"]["servers"].values() if "step_ms" in s)
    requests = rates_of(results, options.concurrency)
    for name, value in report(requests, options.concurrency, cost_of(table), options.prefill_ms).items():
        print(f"{name:26} {value:8.1f} tok/s")


if __name__ == "__main__":
    main()
