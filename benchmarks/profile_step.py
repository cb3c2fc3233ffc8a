"""Where a step's time goes, from a trace of torch's profiler.

    python benchmarks/profile_step.py TRACE.json.gz ...        # one JSON object for each trace

`record` takes such a trace of a running server in the middle of decoding. A step is the time from one launch of
a kernel that runs once a step to the next. Device time is told apart by kernel name; idle is when no kernel runs.
Host calls are counted in the same window. A trace of a CPU has no kernels: its outermost operators stand for them.
"""

from __future__ import annotations

import gzip
import json
import re
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, Iterable, Sequence

from bench_server import Engine

# The first pattern that is found in a kernel's name names its kind. FlashAttention's kernels are CUTLASS's too.
KINDS = (
    ("copies", r"^Memcpy|^Memset|aten::copy_|aten::fill_|aten::zero_"),
    (
        "attention",
        r"attention|flash(?!infer)|fmha|mha_|PrefillWith|DecodeWith|[mM]erge_?[sS]|_fwd_kernel|_fwd_grouped",
    ),
    (
        "tree, top-k, walk, commit",
        r"_build_tree|_walk_tree|_move_path|[tT]op_?[kK]|radix|[sS]ort|bitonic|logsumexp|log_softmax|arg_?max|ArgMax",
    ),
    (
        "matrix products",
        r"gemm|gemv|nvjet|xmma|cutlass|cublas|splitK|aten::(addmm|mm|bmm|matmul|linear|einsum)",
    ),
)
OTHER = "norms, rope, activations, KV"
DEVICE_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
HOST_CALLS = {
    "graph_launches": r"GraphLaunch",
    "kernel_launches": r"LaunchKernel",
    "copies": r"Memcpy",
    "waits": r"Synchronize",
}


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS if re.search(pattern, name)), OTHER)


def device_events(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What ran on the device, by start. On a CPU: the operators that no other operator called."""
    found = [e for e in events if e.get("cat") in DEVICE_CATEGORIES and "dur" in e]
    if found:
        return sorted(found, key=lambda e: e["ts"])
    outermost, end = [], float("-inf")
    for event in sorted((e for e in events if e.get("cat") == "cpu_op" and "dur" in e), key=lambda e: e["ts"]):
        if event["ts"] >= end:
            outermost.append(event)
            end = event["ts"] + event["dur"]
    return outermost


def busy_time(events: Iterable[dict[str, Any]]) -> float:
    """Microseconds in which at least one of the events ran. Events by start."""
    total, end = 0.0, float("-inf")
    for event in events:
        start, stop = event["ts"], event["ts"] + event["dur"]
        if stop > end:
            total += stop - max(start, end)
            end = stop
    return total


def step_starts(events: Sequence[dict[str, Any]], steps: int) -> list[float]:
    """When a kernel that runs once a step ran: of those that ran about `steps` times, the first of the trace.

    The device may be a step ahead of the host or behind it, so one more or less is as good.
    """
    counts = Counter(event["name"] for event in events)
    near = [n for n in (steps, steps - 1, steps + 1) if n > 1]
    for wanted in near:
        for event in events:
            if counts[event["name"]] == wanted and event.get("cat") != "gpu_memset":
                return [e["ts"] for e in events if e["name"] == event["name"]]
    return []


def summarize(trace: dict[str, Any], steps: int) -> dict[str, Any]:
    """One step of a trace that covers about `steps` steps.

    Raises:
        ValueError: no kernel ran about that often.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    device = device_events(events)
    starts = step_starts(device, steps)
    if len(starts) < 2:
        raise ValueError(f"no kernel of the trace ran about {steps} times")
    first, last, count = starts[0], starts[-1], len(starts) - 1
    inside = [event for event in device if first <= event["ts"] < last]
    parts: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(list)
    copies: Counter[str] = Counter()
    for event in inside:
        parts[kind_of(event["name"])] += event["dur"]
        names[event["name"]].append(event["dur"])
        if event.get("cat") == "gpu_memcpy":
            copies[next((way for way in ("DtoH", "HtoD", "DtoD") if way in event["name"]), "other")] += 1
    calls = [e["name"] for e in events if e.get("cat", "").startswith("cuda_") and first <= e["ts"] < last]
    busy = busy_time(inside)
    top = sorted(names.items(), key=lambda item: -sum(item[1]))[:25]

    def each(value: float) -> float:
        return round(value / count, 4)

    return {
        "steps": count,
        "step_ms": each((last - first) / 1000),
        "median_step_ms": round(statistics.median(b - a for a, b in zip(starts, starts[1:])) / 1000, 4),
        "busy_ms": each(busy / 1000),
        "idle_ms": each((last - first - busy) / 1000),
        "parts_ms": {kind: each(time / 1000) for kind, time in sorted(parts.items())},
        "device_copies": {way: each(number) for way, number in sorted(copies.items())},
        "host_calls": {
            what: each(sum(bool(re.search(pattern, name)) for name in calls)) for what, pattern in HOST_CALLS.items()
        },
        "kernels": [[name[:120], each(len(times)), each(sum(times) / 1000)] for name, times in top],
    }


def load(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return dict(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data))


def record(
    engine: Engine, prompts: Sequence[list[int]], concurrency: int, *, steps: int = 20, new_tokens: int = 1200
) -> dict[str, Any]:
    """Profile `steps` steps of a server in the middle of decoding `concurrency` requests."""
    with tempfile.TemporaryDirectory() as folder:
        requests = [
            threading.Thread(
                target=engine.generate, args=(prompts[i % len(prompts)],), kwargs={"max_new_tokens": new_tokens}
            )
            for i in range(concurrency)
        ]
        for request in requests:
            request.start()
        time.sleep(0.5 + 0.05 * concurrency)  # all prefilled
        activities = ["CPU"] if engine.device == "cpu" else ["CPU", "GPU"]
        # The engine ends the trace before the step that would be the next one after `num_steps - 1`.
        engine.post(
            "/start_profile",
            {"output_dir": folder, "num_steps": steps + 1, "activities": activities, "with_stack": False},
        )
        for request in requests:
            request.join()
        if not list(Path(folder).glob("*.trace.json*")):  # the requests ended before the steps were over
            engine.post("/stop_profile", {})
        return summarize(load(_finished(Path(folder))), steps)


def _finished(folder: Path, limit: float = 60) -> Path:
    """The trace, once its size no longer changes."""
    deadline, size = time.monotonic() + limit, -1
    while time.monotonic() < deadline:
        found = sorted(folder.glob("*.trace.json*"))
        if found and found[0].stat().st_size == size:
            return found[0]
        size = found[0].stat().st_size if found else -1
        time.sleep(0.5)
    raise TimeoutError("the engine wrote no trace")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        name, _, number = argument.partition("=")
        print(json.dumps({name: summarize(load(Path(name)), int(number or 20))}, indent=1))
