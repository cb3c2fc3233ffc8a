"""Captured prefill of short prompts.

An eager prefill of a few dozen tokens is bound by its hundreds of launches, and every
running request waits for it. To the device it is a verify step whose tree is a chain:
one graph runs the target, takes the last token's logits and writes the draft KV.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Dict

import torch

from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode
from sglang.srt.speculative.ddtree_info import DDTreeVerifyInput
from sglang.srt.speculative.dflash_info import DFlashDraftInput

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import ScheduleBatch
    from sglang.srt.speculative.ddtree_graph_runner import DDTreeCudaGraphRunner

# Captured numbers of new tokens; a prompt is padded to the next.
_SIZES = (32, 64, 128, 256)
# Larger batches use the GPU better in one eager forward.
_MAX_REQS = 3


@dataclass
class _PrefillGraph:
    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor  # [1, V] float32
    causal: torch.Tensor  # [1, size, size] bool; the graph reads it, so it must live on


class DDTreePrefillRunner:
    """Prefills up to `_MAX_REQS` short prompts, one replay each.

    Args:
        runner: the decode graphs, whose memory pool and logits buffer are shared.
    """

    def __init__(self, runner: DDTreeCudaGraphRunner):
        self.step = runner.step
        self.device = runner.device
        self.table_width = self.step.target_runner.req_to_token_pool.req_to_token.shape[
            1
        ]

        def zeros(n):
            return torch.zeros((n,), dtype=torch.int64, device=self.device)

        self.req_pool_index = zeros(1) - 1
        self.prefix_len = zeros(1)
        self.num_new = zeros(1) + 1
        self.input_ids = zeros(_SIZES[-1])
        self.graphs: Dict[int, _PrefillGraph] = {}
        sizes = [n for n in _SIZES if n <= runner.max_num_tokens]
        with runner.capturing() as stream:
            for size in reversed(sizes):
                self.graphs[size] = self._capture_one(size, runner, stream)

    def _capture_one(
        self, size: int, runner: DDTreeCudaGraphRunner, stream: torch.cuda.Stream
    ) -> _PrefillGraph:
        step = self.step
        causal = torch.ones((1, size, size), dtype=torch.bool, device=self.device)
        causal = causal.tril()

        def prefill():
            offsets = torch.arange(size, device=self.device)
            spec_info = DDTreeVerifyInput(
                draft_token=self.input_ids[:size],
                positions=self.prefix_len + offsets,
                draft_token_num=size,
                tree_mask=causal,
            )
            forward_batch = step._forward_batch(
                runner=step.target_runner,
                attn_backend=step.target_attn_backend,
                req_pool_indices=self.req_pool_index,
                seq_lens=self.prefix_len,
                spec_info=spec_info,
            )
            # Padding tokens must not write to the slots that follow.
            slots = torch.where(offsets < self.num_new, forward_batch.out_cache_loc, 0)
            forward_batch.out_cache_loc = slots
            forward_batch.next_token_logits_buffer = runner.logits_buffer[:size]
            output = step.target_runner.model.forward(
                forward_batch.input_ids, forward_batch.positions, forward_batch
            )
            step._append_draft_kv(output.hidden_states, spec_info.positions, slots)
            return output.next_token_logits.index_select(0, self.num_new - 1)

        for _ in range(2):
            torch.cuda.synchronize()
            step.target_runner.tp_group.barrier()
            prefill()
        return _PrefillGraph(*runner.record(prefill, stream), causal)

    def can_run(self, batch: ScheduleBatch) -> bool:
        return (
            batch.forward_mode == ForwardMode.EXTEND
            and len(batch.reqs) <= _MAX_REQS
            and max(batch.extend_lens) <= max(self.graphs, default=0)
            and max(batch.prefix_lens) + _SIZES[-1] <= self.table_width
            and not batch.return_logprob
            and not batch.return_hidden_states
            and not batch.is_prefill_only
            and batch.input_embeds is None
            and batch.replace_embeds is None
            and batch.token_type_ids is None
            and all(req.multimodal_inputs is None for req in batch.reqs)
        )

    def run(self, batch: ScheduleBatch) -> tuple[LogitsProcessorOutput, torch.Tensor]:
        """Prefill the batch and sample its next tokens.

        Returns:
            (logits output [bs, V], next token ids [bs]); `batch.spec_info` holds the
            draft state for the first decode step.
        """
        logits, start = [], 0
        for i, (prefix_len, num_new) in enumerate(
            zip(batch.prefix_lens, batch.extend_lens, strict=True)
        ):
            size = min(n for n in self.graphs if n >= num_new)
            self.req_pool_index.copy_(batch.req_pool_indices[i : i + 1])
            self.prefix_len.fill_(prefix_len)
            self.num_new.fill_(num_new)
            self.input_ids[:num_new].copy_(batch.input_ids[start : start + num_new])
            start += num_new
            self.graphs[size].graph.replay()
            logits.append(self.graphs[size].logits.clone())

        output = LogitsProcessorOutput(next_token_logits=torch.cat(logits))
        next_token_ids = self.step.target_runner.sample(
            output,
            ForwardBatch(
                forward_mode=batch.forward_mode,
                batch_size=len(batch.reqs),
                input_ids=batch.input_ids,
                req_pool_indices=batch.req_pool_indices,
                seq_lens=batch.seq_lens,
                out_cache_loc=batch.out_cache_loc,
                seq_lens_sum=batch.seq_lens_sum,
                sampling_info=batch.sampling_info,
            ),
        )
        no_context = torch.zeros_like(batch.seq_lens, dtype=torch.int32)
        batch.spec_info = DFlashDraftInput(
            verified_id=next_token_ids.to(torch.int64),
            target_hidden=output.next_token_logits[:0],
            ctx_lens=no_context,
            draft_seq_lens=batch.seq_lens.to(torch.int32),
        )
        return output, next_token_ids
