"""Plots of docs/benchmarks.md from benchmarks/data (needs matplotlib):

python benchmarks/plot_engine.py docs/img
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

DATA = json.loads((Path(__file__).parent / "data" / "h200.json").read_text())


def throughput(folder: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 4))
    concurrency = [1, 4, 16, 32]
    for name, style in (("ddtree auto", "o-"), ("dflash fa3", "s--"), ("plain", "^:")):
        axes.plot(concurrency, [DATA["tokens_per_s"][name][str(c)] for c in concurrency], style, label=name)
    axes.set(xscale="log", yscale="log", xlabel="concurrency", ylabel="tokens/s", title="T=0, one H200, one run")
    axes.set_xticks(concurrency, [str(c) for c in concurrency])
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(folder / "throughput.svg", bbox_inches="tight")


def budgets(folder: Path) -> None:
    """Decode rate by budget: tokens per step at each budget over the measured step cost."""
    figure, axes = plt.subplots(figsize=(7, 4))
    accept = {int(k): v for k, v in DATA["tokens_per_step_tiny_float32"].items()}
    for bs in (1, 4, 16, 32):
        sizes = sorted(b for b in accept if f"{bs},{b}" in DATA["step_ms"])
        rates = [1000 * bs * accept[b] / DATA["step_ms"][f"{bs},{b}"][0] for b in sizes]
        axes.plot(sizes, rates, "o-", label=f"{bs} running")
    axes.set(xlabel="budget (0 = plain)", ylabel="tokens/s while decoding", yscale="log", title="context 256")
    axes.set_xscale("symlog", linthresh=7)
    axes.set_xticks([0, 7, 15, 31, 63], ["0", "7", "15", "31", "63"])
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(folder / "budgets.svg", bbox_inches="tight")


def step_time(folder: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 2.6))
    for row, (_name, parts) in enumerate(DATA["step_parts_ms"].items()):
        left = 0.0
        for i, (part, ms) in enumerate(parts.items()):
            axes.barh(row, ms, left=left, color=f"C{i}", label=part if row == 0 else None)
            left += ms
        axes.text(left + 0.1, row, f"{left:.1f}", va="center")
    axes.set_yticks(range(len(DATA["step_parts_ms"])), list(DATA["step_parts_ms"]))
    axes.invert_yaxis()
    axes.set(xlabel="ms per step, one request", xlim=(0, 11))
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, -0.3), ncol=3, fontsize=8)
    figure.savefig(folder / "step_time.svg", bbox_inches="tight")


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    throughput(target)
    budgets(target)
    step_time(target)
