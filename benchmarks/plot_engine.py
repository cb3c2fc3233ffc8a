"""Plots of docs/benchmarks.md from result files of run_all.py (needs matplotlib).

    python benchmarks/plot_engine.py benchmarks/figures benchmarks/data/h200.json [RESULTS.json ...]

Stages of later files replace those of earlier ones. A plot whose data are missing is left out.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Callable

import matplotlib

matplotlib.use("svg")
matplotlib.rcParams["svg.hashsalt"] = "ddtree"  # the same data give the same file
import matplotlib.pyplot as plt  # noqa: E402

NO_DATE = {"Date": None}
STYLES = ["o-", "s--", "D-.", "^:", "v-", "x--"]
Data = dict[str, Any]


def rates(server: Data, temperature: str = "0") -> dict[int, Data]:
    """Cells of one temperature by concurrency."""
    prefix = f"T={temperature} c="
    return {int(n.removeprefix(prefix)): cell for n, cell in server["cells"].items() if n.startswith(prefix)}


def draw(axes: Any, cells: dict[int, Data], style: str, label: str) -> None:
    """A line of medians, with bars from the lowest to the highest where a cell was repeated."""
    shown = sorted(cells)
    middle = [cells[c]["tokens_per_s"] for c in shown]
    low = [m - cells[c].get("lowest", m) for c, m in zip(shown, middle)]
    high = [cells[c].get("highest", m) - m for c, m in zip(shown, middle)]
    axes.errorbar(shown, middle, [low, high], fmt=style, label=label, capsize=3)


def throughput(data: Data, folder: Path) -> bool:
    servers = {n: s for n, s in data.get("tokens", {}).get("servers", {}).items() if rates(s)}
    if not servers:
        return False
    figure, axes = plt.subplots(figsize=(7, 4))
    for (name, server), style in zip(servers.items(), STYLES):
        draw(axes, rates(server), style, name)
    every = sorted({c for server in servers.values() for c in rates(server)})
    axes.set(xscale="log", yscale="log", xlabel="concurrency", ylabel="tokens/s", title="T = 0, one run")
    axes.set_xticks(every, [str(c) for c in every])
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(folder / "throughput.svg", bbox_inches="tight", metadata=NO_DATE)
    return True


def sweep(data: Data, folder: Path) -> bool:
    """Measured tokens/s by fixed budget, a panel for each concurrency; the other configurations are lines."""
    fixed = {
        int(name.removeprefix("ddtree ")): rates(server)
        for name, server in data.get("sweep", {}).get("servers", {}).items()
        if rates(server)
    }
    if not fixed:
        return False
    others = {n: rates(s) for n, s in data.get("tokens", {}).get("servers", {}).items()}
    concurrencies = sorted({c for cells in fixed.values() for c in cells})
    figure, panels = plt.subplots(
        1, len(concurrencies), figsize=(3 * len(concurrencies) + 1, 3.4), squeeze=False, layout="constrained"
    )
    for axes, c in zip(panels[0], concurrencies):
        draw(axes, {budget: cells[c] for budget, cells in sorted(fixed.items()) if c in cells}, "o-", "fixed budget")
        for i, (name, cells) in enumerate(others.items(), 1):
            if c in cells:
                axes.axhline(cells[c]["tokens_per_s"], color=f"C{i}", linestyle=["--", "-.", ":"][i % 3], label=name)
        axes.set(xscale="log", xlabel="budget", title=f"concurrency {c}", ylim=(0, None))
        axes.set_xticks(sorted(fixed), [str(budget) for budget in sorted(fixed)], minor=False)
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    panels[0][0].set(ylabel="tokens/s, T = 0")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncol=len(labels), fontsize=8)
    figure.savefig(folder / "sweep.svg", bbox_inches="tight", metadata=NO_DATE)
    return True


def step_ms(server: Data, cell: str, profile: Data) -> float:
    """Milliseconds of a step by the throughput at the profile's concurrency (T = 0), without the profiler, which slows
    hosts that launch much; prefill and the client are in it. Where that was not measured, the profiler's."""
    found = server["cells"].get(f"T=0 {cell}")
    concurrency = int(cell.removeprefix("c="))
    return 1000 * concurrency * found["tokens_per_step"] / found["tokens_per_s"] if found else profile["step_ms"]


def step_time(data: Data, folder: Path) -> bool:
    rows = {
        f"{name}, {cell}": {**profile, "step_ms": step_ms(server, cell, profile)}
        for stage in ("tokens", "tokens_before")
        for name, server in data.get(stage, {}).get("servers", {}).items()
        for cell, profile in server.get("profile", {}).items()
        if "parts_ms" in profile
    }
    if not rows:
        return False
    kinds = sorted({kind for row in rows.values() for kind in row["parts_ms"]})
    figure, axes = plt.subplots(figsize=(7, 1 + 0.5 * len(rows)))
    for y, row in enumerate(rows.values()):
        left = 0.0
        # Streams overlap now and then: parts may be a little more than the busy time.
        parts = {kind: row["parts_ms"].get(kind, 0) for kind in kinds}
        parts["device idle, prefill, client"] = max(0.0, row["step_ms"] - sum(parts.values()))
        for i, (part, ms) in enumerate(parts.items()):
            axes.barh(y, ms, left=left, color=f"C{i}", label=part if y == 0 else None)
            left += ms
        axes.text(left, y, f" {row['step_ms']:.1f}", va="center")
    axes.set_yticks(range(len(rows)), list(rows))
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set(xlabel="ms per step")
    axes.legend(loc="upper center", bbox_to_anchor=(0.4, -0.6 / (1 + 0.5 * len(rows)) - 0.05), ncol=3, fontsize=8)
    figure.savefig(folder / "step_time.svg", bbox_inches="tight", metadata=NO_DATE)
    return True


PLOTS: tuple[Callable[[Data, Path], bool], ...] = (throughput, sweep, step_time)


def main() -> None:
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    folder, data = Path(sys.argv[1]), {}
    for name in sys.argv[2:]:
        data.update(json.loads(Path(name).read_text()))
    folder.mkdir(parents=True, exist_ok=True)
    for plot in PLOTS:
        print(f"{plot.__name__}: {'drawn' if plot(data, folder) else 'left out, its data are missing'}")


if __name__ == "__main__":
    main()
