"""What the tree costs in a step: top-k, tree, mask, walk and commit as one number, captured as in production.

    RELEASE/bin/python benchmarks/tree_ops.py --target T --draft D --out results/tree_ops.json

The engine's own worker is loaded in this process with the real pair, and its own functions are captured in one CUDA
graph, without the two models between them:

- `tree`: top-k log-probabilities of given draft logits, tree, ancestor mask, positions, then the walk along given
  target tokens, the KV slots, moving the path's KV in all layers, and what is sent to the host. This is what a tree
  costs beyond the two forward passes.
- `tree and draft KV`: the same with the draft KV of the path (projection of the features, norm, rope), which a chain
  writes too.
- `step`: the whole captured step of production at a context of 256, for comparison.

A time is the mean of a run of replays between two CUDA events, and the median over runs. The trees are those of
random logits, and the target tokens lead to the deepest node, so that the longest path is committed.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any, Callable

import torch
from bench_server import arguments, free_port, machine, save, server_arguments, server_environment

REPLAYS, RUNS = 20, 15


def load_worker(target: str, draft: str, budget: int, device: str) -> Any:
    """The engine's DDTREE worker, in this process; its own graphs are not captured."""
    from sglang.srt.managers.tp_worker import TpModelWorker
    from sglang.srt.server_args import prepare_server_args, set_global_server_args_for_scheduler
    from sglang.srt.speculative.ddtree_worker import DDTreeWorker

    own = ["--attention-backend", "triton", "--speculative-algorithm", "DDTREE"]
    own += ["--speculative-ddtree-budget", str(budget), "--disable-cuda-graph"]
    argv = ["--model-path", target, *server_arguments(own, draft, device)]
    server_args = prepare_server_args(argv)
    set_global_server_args_for_scheduler(server_args)
    common = {
        "server_args": server_args,
        "gpu_id": 0,
        "tp_rank": 0,
        "dp_rank": None,
        "moe_ep_rank": 0,
        "attn_cp_rank": 0,
        "moe_dp_rank": 0,
        "nccl_port": free_port(),
    }
    worker = TpModelWorker(pp_rank=0, **common)
    return DDTreeWorker(target_worker=worker, **common)


class TreeOps:
    """The tree's part of a step of `bs` requests, on given logits and features."""

    def __init__(self, worker: Any, bs: int, budget: int, context: int = 256):
        self.step, self.bs, self.budget = worker.step, bs, budget
        runner = worker.model_runner
        device, config = self.step.device, runner.model_config
        depths = self.step.block_size - 1
        torch.manual_seed(0)
        self.logits = (torch.randn(bs * depths, config.vocab_size, device=device) * 3).to(runner.dtype)
        self.roots = torch.arange(bs, device=device)
        self.rows = torch.arange(bs, device=device)
        self.lens = torch.full((bs,), context, dtype=torch.int64, device=device)
        features = worker.draft_model_runner.model.fc.weight.shape[1]
        self.hidden = torch.randn(bs * (budget + 1), features, device=device, dtype=runner.dtype)
        width = context + budget + 1
        slots = torch.arange(bs * width, device=device) % runner.max_total_num_tokens
        runner.req_to_token_pool.req_to_token[:bs, :width] = slots.view(bs, width).to(torch.int32)
        self.target_tokens = self._deepest(self.build())

    def build(self) -> Any:
        from sglang.srt.speculative.ddtree_info import DDTreeVerifyInput

        scores, token_ids, lse = self.step.top_scores(self.logits, self.budget)
        log_probs = scores - lse
        shape = (self.bs, self.step.block_size - 1, -1)
        tree = self.step.build_tree(
            log_probs=log_probs.view(shape), token_ids=token_ids.view(shape), root_tokens=self.roots, budget=self.budget
        )
        DDTreeVerifyInput.from_tree(tree, self.lens)  # positions
        return tree

    @staticmethod
    def _deepest(tree: Any) -> torch.Tensor:
        """Target tokens along the path to each tree's deepest node."""
        rows = torch.arange(tree.tokens.shape[0], device=tree.tokens.device)
        on_path = tree.mask[rows, tree.depths.argmax(dim=1)]
        # Nodes off the path write to a spare column.
        parents = torch.where(on_path, tree.parents, tree.tokens.shape[1])[:, 1:]
        target = torch.zeros_like(torch.nn.functional.pad(tree.tokens, (0, 1)))
        return target.scatter_(1, parents, tree.tokens[:, 1:])[:, :-1].contiguous()

    def tree(self) -> torch.Tensor:
        append, self.step._append_draft_kv = self.step._append_draft_kv, lambda *_: None
        try:
            return self.tree_and_draft_kv()
        finally:
            self.step._append_draft_kv = append

    def tree_and_draft_kv(self) -> torch.Tensor:
        return self.step.commit(self.build(), self.target_tokens, self.hidden, self.rows, self.lens, (self.budget,))


def time_calls(call: Callable[[], object], device: str, runs: int = RUNS, replays: int = REPLAYS) -> dict[str, float]:
    """Milliseconds of a call: median, lowest and highest over runs of `replays` calls."""
    times = []
    for _ in range(runs + 1):
        if device == "cpu":
            begin = time.perf_counter()
            for _ in range(replays):
                call()
            times.append((time.perf_counter() - begin) * 1000 / replays)
            continue
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(replays):
            call()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / replays)
    times = times[1:]  # the first run warms up
    return {"ms": round(statistics.median(times), 4), "lowest": round(min(times), 4), "highest": round(max(times), 4)}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--budget", default="15,63")
    parser.add_argument("--batch", default="1,16")
    options = parser.parse_args()
    environment = server_environment(options.device)
    if environment.get("LD_LIBRARY_PATH") != os.environ.get("LD_LIBRARY_PATH"):
        # The loader reads it when a process starts.
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    budgets = [int(budget) for budget in options.budget.split(",")]
    batches = [int(batch) for batch in options.batch.split(",")]
    worker = load_worker(str(options.target), str(options.draft), max(budgets), options.device)
    runner = worker.model_runner
    pool = runner.token_to_kv_pool
    results: dict[str, Any] = {
        "machine": machine(options.device),
        "shape": {
            "layers": len(pool.k_buffer),
            "kv_heads": pool.head_num,
            "head_dim": pool.head_dim,
            "vocabulary": runner.model_config.vocab_size,
            "dtype": str(runner.dtype),
        },
        "cells": {},
    }
    graphs = None
    if options.device != "cpu":
        from sglang.srt.speculative.ddtree_graph_runner import DDTreeCudaGraphRunner

        shapes = [(bs, budget) for bs in batches for budget in budgets]
        graphs = DDTreeCudaGraphRunner(worker.step, shapes, runner.model_config.vocab_size)
        steps = graphs.measure([256])
    with torch.inference_mode():
        for bs in batches:
            for budget in budgets:
                row = results["cells"][f"{bs},{budget}"] = {}
                ops = TreeOps(worker, bs, budget)
                row["commit_lens"] = ops.tree()[:, 0].tolist()
                for name, call in (("tree", ops.tree), ("tree and draft KV", ops.tree_and_draft_kv)):
                    if graphs is None:
                        row[name] = time_calls(call, "cpu", runs=3, replays=3)
                    else:
                        call()
                        with graphs.capturing() as stream:
                            graph, _ = graphs.record(call, stream)
                        row[name] = time_calls(graph.replay, "cuda")
                if graphs is not None:
                    row["step"] = {"ms": round(steps[bs, budget][0], 3)}
                save(options.out, results)
                print(f"batch {bs}, budget {budget}: {row}", flush=True)


if __name__ == "__main__":
    main()
