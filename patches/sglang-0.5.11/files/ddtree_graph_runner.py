from __future__ import annotations

import bisect
import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Callable, Dict, Iterator, List, Sequence, Tuple

import torch

from sglang.srt.distributed.parallel_state import graph_capture
from sglang.srt.model_executor.cuda_graph_runner import (
    freeze_gc,
    get_global_graph_memory_pool,
    model_capture_mode,
    set_global_graph_memory_pool,
    set_graph_pool_id,
)
from sglang.srt.speculative.ddtree_utils import DDTree
from sglang.srt.utils import get_available_gpu_memory

if TYPE_CHECKING:
    from sglang.srt.speculative.ddtree_step import DDTreeStep

logger = logging.getLogger(__name__)


@dataclass
class DDTreeGraphs:
    """The captured step of one batch size and budget, with its static tensors."""

    # Draft, tree, verify and argmax; then walk and commit. Sampling runs in between.
    front: torch.cuda.CUDAGraph
    back: torch.cuda.CUDAGraph
    tree: DDTree  # [bs, D]
    logits: torch.Tensor  # [bs * D, V] float32
    target_tokens: torch.Tensor  # [bs, D] int64, input of `back`
    packed: torch.Tensor  # see DDTreeStep.commit


class DDTreeCudaGraphRunner:
    """Captures whole DDTree steps and replays them.

    A step is two graphs whatever the lengths: every length, slot and mask is computed on
    the device from `req_pool_indices`, `seq_lens` and `root_tokens`. Batches are padded
    to the next captured size with rows of pool index -1.

    Args:
        step: the phases to capture.
        shapes: (batch size, budget) pairs to capture.
        vocab_size: columns of the logits.
    """

    def __init__(
        self,
        step: DDTreeStep,
        shapes: List[Tuple[int, int]],
        vocab_size: int,
    ):
        self.step = step
        self.device = step.device
        self.capture_bs = sorted({bs for bs, _ in shapes})
        self.sizes = sorted({budget for _, budget in shapes})
        max_bs = self.capture_bs[-1]
        max_num_tokens = max(bs * (budget + 1) for bs, budget in shapes)
        self.req_pool_indices = torch.full(
            (max_bs,), -1, dtype=torch.int64, device=self.device
        )
        self.seq_lens = torch.zeros((max_bs,), dtype=torch.int64, device=self.device)
        self.root_tokens = torch.zeros((max_bs,), dtype=torch.int64, device=self.device)
        # Shared by all graphs; the largest tensors of a step.
        self.logits_buffer = torch.empty(
            (max_num_tokens, vocab_size), dtype=torch.float32, device=self.device
        )
        self.hidden_buffer: torch.Tensor | None = None
        self.max_num_tokens = max_num_tokens
        self.graphs: Dict[Tuple[int, int], DDTreeGraphs] = {}
        self._capture(shapes)

    @contextmanager
    def capturing(self) -> Iterator[torch.cuda.Stream]:
        """What a capture needs around it; yields the stream to capture on."""
        runner = self.step.target_runner
        with (
            model_capture_mode(),
            freeze_gc(runner.server_args.enable_cudagraph_gc),
            graph_capture() as context,
            torch.inference_mode(),
        ):
            if get_global_graph_memory_pool() is None:
                set_global_graph_memory_pool(torch.cuda.graph_pool_handle())
            set_graph_pool_id(get_global_graph_memory_pool())
            yield context.stream

    def _capture(self, shapes: List[Tuple[int, int]]) -> None:
        runner = self.step.target_runner
        tic = time.perf_counter()
        before = get_available_gpu_memory(self.device, runner.gpu_id)
        with self.capturing() as stream:
            # Large shapes first, so that the small ones reuse their memory.
            for bs, budget in sorted(
                shapes, key=lambda x: x[0] * (x[1] + 1), reverse=True
            ):
                self.graphs[bs, budget] = self._capture_one(bs, budget, stream)
        after = get_available_gpu_memory(self.device, runner.gpu_id)
        logger.info(
            f"Capture DDTREE cuda graphs end. Time elapsed: {time.perf_counter() - tic:.2f} s. "
            f"mem usage={before - after:.2f} GB. avail mem={after:.2f} GB. "
            f"graphs={len(self.graphs)}."
        )

    def _capture_one(
        self, bs: int, budget: int, stream: torch.cuda.Stream
    ) -> DDTreeGraphs:
        step = self.step
        request_args = (self.req_pool_indices[:bs], self.seq_lens[:bs])
        num_tokens = bs * (budget + 1)
        logits = self.logits_buffer[:num_tokens]
        sizes = tuple(size for size in self.sizes if size <= budget)

        def front():
            tree = step.draft(*request_args, self.root_tokens[:bs], budget)
            _, hidden = step.verify(tree, *request_args, logits_buffer=logits)
            if self.hidden_buffer is None:
                self.hidden_buffer = torch.empty(
                    (self.max_num_tokens, hidden.shape[1]),
                    dtype=hidden.dtype,
                    device=self.device,
                )
            self.hidden_buffer[:num_tokens].copy_(hidden)
            return tree, torch.argmax(logits, dim=-1).view(bs, budget + 1)

        def back(tree, target_tokens):
            hidden = self.hidden_buffer[:num_tokens]
            return step.commit(tree, target_tokens, hidden, *request_args, sizes)

        for _ in range(2):
            torch.cuda.synchronize()
            step.target_runner.tp_group.barrier()
            back(*front())

        front_graph, (tree, target_tokens) = self.record(front, stream)
        back_graph, packed = self.record(lambda: back(tree, target_tokens), stream)
        return DDTreeGraphs(
            front_graph, back_graph, tree, logits, target_tokens, packed
        )

    @staticmethod
    def record(fn: Callable, stream: torch.cuda.Stream):
        """Capture `fn` inside of `capturing`; returns (graph, what `fn` returned)."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(
            graph, pool=get_global_graph_memory_pool(), stream=stream
        ):
            out = fn()
        return graph, out

    def measure(
        self, contexts: Sequence[int], repeats: int = 4
    ) -> Dict[Tuple[int, int], List[float]]:
        """Milliseconds of a step for each captured shape and context length.

        Runs on the still empty KV pool, whose contents it leaves undefined.
        """
        runner = self.step.target_runner
        req_to_token = runner.req_to_token_pool.req_to_token
        num_slots = runner.max_total_num_tokens
        costs: Dict[Tuple[int, int], List[float]] = {}
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for (bs, budget), graphs in self.graphs.items():
            times: List[float] = []
            for context in contexts:
                width = context + budget + 1
                slots = torch.arange(bs * width, device=self.device) % num_slots
                req_to_token[:bs, :width] = slots.view(bs, width).to(torch.int32)
                rows = torch.arange(bs, device=self.device)
                self.load(rows, torch.full_like(rows, context), rows)
                for repeat in range(repeats + 1):
                    if repeat == 1:
                        start.record()
                    graphs.front.replay()
                    graphs.back.replay()
                end.record()
                end.synchronize()
                times.append(start.elapsed_time(end) / repeats)
                req_to_token[:bs, :width] = 0
            costs[bs, budget] = times
        return costs

    def padded_bs(self, bs: int) -> int:
        """The captured batch size for `bs` requests, or 0 if there is none."""
        index = bisect.bisect_left(self.capture_bs, bs)
        return self.capture_bs[index] if index < len(self.capture_bs) else 0

    def can_run(self, bs: int, budget: int) -> bool:
        return (self.padded_bs(bs), budget) in self.graphs

    def load(
        self,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        root_tokens: torch.Tensor,
    ) -> None:
        """Copy the inputs of a step [bs] into the static buffers and pad them."""
        bs = seq_lens.shape[0]
        padded = self.padded_bs(bs)
        self.req_pool_indices[:bs].copy_(req_pool_indices)
        self.seq_lens[:bs].copy_(seq_lens)
        self.root_tokens[:bs].copy_(root_tokens)
        if padded > bs:
            self.req_pool_indices[bs:padded].fill_(-1)
            self.seq_lens[bs:padded].zero_()
