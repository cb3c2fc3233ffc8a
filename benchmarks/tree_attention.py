"""The tree attention's kernel: microseconds of a layer as the engine cuts it, and as it might.

    RELEASE/bin/python benchmarks/tree_attention.py --out results/tree_attention.json

For each shape (requests, tokens of a block, heads, context) every way of cutting is compiled, by several processes at
once, and timed in a CUDA graph of one call for each of 36 layers with a KV cache of its own. The engine's own way
(`tree_attention_config` and `tree_attention_num_splits` in `ddtree_attention.py`) is the compromise that was drawn
from this on an H200; run it on another GPU to see what it loses there. `--device cpu` rehearses it in Triton's
interpreter.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Iterator, NamedTuple

from bench_server import machine, save


class Shape(NamedTuple):
    """What a layer attends to; without a mask it is a draft block."""

    bs: int
    num_q: int
    heads: int = 64
    kv_heads: int = 16
    dim: int = 64
    context: int = 220
    masked: bool = True

    @property
    def rows(self) -> int:
        return self.num_q * (self.heads // self.kv_heads)


SHAPES = {
    "c=1 B=63": Shape(1, 64),
    "c=1 B=63 context 4000": Shape(1, 64, context=4000),
    "c=1 B=31": Shape(1, 32),
    "c=1 draft": Shape(1, 16, masked=False),
    "c=4 B=31": Shape(4, 32),
    "c=4 B=15": Shape(4, 16),
    "c=8 B=15": Shape(8, 16),
    "c=16 B=7": Shape(16, 8),
    "c=16 B=7 context 2000": Shape(16, 8, context=2000),
    "c=16 B=15": Shape(16, 16),
    "c=32 B=7": Shape(32, 8),
    "c=32 draft": Shape(32, 16, masked=False),
    "c=1 B=63 heads of 128": Shape(1, 64, heads=32, kv_heads=8, dim=128),
    "c=16 B=15 heads of 128": Shape(16, 16, heads=32, kv_heads=8, dim=128, context=500),
}
REHEARSED = {"c=1 B=1": Shape(1, 2, heads=2, kv_heads=1, dim=16, context=20)}
LAYERS, REPLAYS = 36, 5
Cut = tuple[int, int, int, int, int]  # block_m, block_n, num_warps, num_stages, num_splits


def usual_cut(shape: Shape, num_cores: int, dtype: Any) -> Cut:
    """The engine's."""
    from sglang.srt.speculative.ddtree_attention import tree_attention_config, tree_attention_num_splits

    config = tree_attention_config(shape.rows, shape.dim, dtype)
    programs = shape.bs * shape.kv_heads * -(-shape.rows // config.block_m)
    return (*config, tree_attention_num_splits(programs, num_cores))


def cuts(shape: Shape) -> Iterator[Cut]:
    fitting = [m for m in (16, 32, 64, 128) if m < 2 * max(16, shape.rows)][-2:]
    for block_m, block_n, (warps, stages), splits in itertools.product(
        fitting, (32, 64), ((4, 3), (4, 2), (2, 3), (8, 3)), (1, 2, 4, 8)
    ):
        if not (warps == 8 and block_m < 64) and not (warps == 2 and block_m > 64):
            yield block_m, block_n, warps, stages, splits


class Case:
    """Random inputs of a shape, with a KV cache for each layer."""

    def __init__(self, shape: Shape, layers: int, device: str):
        import torch

        torch.manual_seed(0)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16  # the interpreter has no bf16 products
        bs, num_q, heads, kv_heads, dim, context, masked = shape
        slots = 1 + bs * context

        def randn(*size: int) -> Any:
            return torch.randn(*size, device=device, dtype=dtype)

        self.caches = [(randn(slots, kv_heads, dim), randn(slots, kv_heads, dim)) for _ in range(layers)]
        self.arguments: dict[str, Any] = {
            "q": randn(bs * num_q, heads, dim),
            "k": randn(bs * num_q, kv_heads, dim),
            "v": randn(bs * num_q, kv_heads, dim),
            "req_to_token": torch.randperm(slots - 1, device=device).view(bs, context).int() + 1,
            "req_pool_indices": torch.arange(bs, device=device),
            "prefix_lens": torch.full((bs,), context, device=device),
            "mask": torch.ones(bs, num_q, num_q, dtype=torch.bool, device=device).tril() if masked else None,
            "scale": dim**-0.5,
        }

    def attend(self, cut: Cut, layer: int = 0) -> Any:
        from sglang.srt.speculative.ddtree_attention import TreeAttentionConfig, tree_attention

        k_cache, v_cache = self.caches[layer]
        config = TreeAttentionConfig(*cut[:4])
        return tree_attention(**self.arguments, k_cache=k_cache, v_cache=v_cache, num_splits=cut[4], config=config)

    def attend_all(self, cut: Cut) -> None:
        for layer in range(len(self.caches)):
            self.attend(cut, layer)

    def microseconds(self, cut: Cut, device: str) -> float:
        """Of one layer."""
        import torch
        from tree_ops import time_calls

        if device == "cpu":
            time = time_calls(lambda: self.attend_all(cut), device, runs=1, replays=1)
        else:
            graph = torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                self.attend_all(cut)
            time = time_calls(graph.replay, device, runs=1, replays=REPLAYS)
        return time["ms"] * 1000 / len(self.caches)


def compile_cuts(shape: Shape, part: list[Cut]) -> None:
    """Fill Triton's cache on the disk."""
    case = Case(shape, 1, "cuda")
    for cut in part:
        case.attend(cut)


def compile_all(shapes: list[Shape], processes: int) -> None:
    kernels = {(shape.num_q, shape.heads, shape.kv_heads, shape.dim, shape.masked): shape for shape in shapes}
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [
            pool.submit(compile_cuts, shape, list(cuts(shape))[first::4])
            for shape in kernels.values()
            for first in range(4)
        ]
        for job in jobs:
            job.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, type=Path, help="JSON file of the results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses a run")
    options = parser.parse_args()
    on_cpu = options.device == "cpu"
    if on_cpu:
        os.environ["TRITON_INTERPRET"] = "1"  # before Triton is imported
    import torch

    shapes = REHEARSED if on_cpu else SHAPES
    if not on_cpu:
        compile_all(list(shapes.values()), max(1, (os.cpu_count() or 2) - 1))
    num_cores = 1 if on_cpu else torch.cuda.get_device_properties(0).multi_processor_count
    results: dict[str, Any] = {"machine": machine(options.device), "shapes": {}}
    for name, shape in shapes.items():
        case = Case(shape, 1 if on_cpu else LAYERS, options.device)
        usual = usual_cut(shape, num_cores, case.arguments["q"].dtype)
        expected = case.attend(usual).float()
        times: dict[Cut, float] = {}
        for cut in dict.fromkeys([usual, *cuts(shape)]):
            got = case.attend(cut).float()
            if not torch.allclose(got, expected, atol=2e-2):
                raise SystemExit(f"{name}, cut {cut}: another result than with {usual}")
            times[cut] = case.microseconds(cut, options.device)
        best = min(times, key=times.__getitem__)
        results["shapes"][name] = {
            "usual": {"cut": usual, "us": round(times[usual], 2)},
            "best": {"cut": best, "us": round(times[best], 2)},
            "all": [[round(us, 2), *cut] for cut, us in times.items()],
        }
        save(options.out, results)
        print(f"{name:24} {times[usual]:8.2f} us with {usual}, at best {times[best]:8.2f} us with {best}", flush=True)


if __name__ == "__main__":
    main()
