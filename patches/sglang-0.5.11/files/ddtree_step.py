"""The device side of one DDTree decode step: draft, verify, choose, commit.

Nothing here reads a value back to the host or depends on one, apart from the CPU
attention path, so each phase can be captured in a CUDA graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Tuple

import torch

from sglang.srt.distributed import get_tp_group
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.speculative.ddtree_info import DDTreeVerifyInput
from sglang.srt.speculative.ddtree_utils import (
    DDTree,
    build_ddtree,
    ddtree_commit_slots,
    ddtree_expected_lens,
    ddtree_path_len,
    ddtree_top_scores,
    gather_path,
    walk_ddtree,
)
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.triton_ops.fused_kv_materialize import _fused_norm_rope

if TYPE_CHECKING:
    from sglang.srt.distributed import GroupCoordinator
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.speculative.triton_ops.fused_kv_materialize import (
        FusedKVMaterializeHelper,
    )


EXPECTED_UNIT = 1 << 16


def merge_vocab_shards(
    scores: torch.Tensor,
    token_ids: torch.Tensor,
    lse: torch.Tensor,
    num_tokens: int,
    tp_group: GroupCoordinator,
) -> Tuple[torch.Tensor, torch.Tensor]:
    """Most probable tokens over all shards of a vocab-parallel head; the same on all ranks.

    Args:
        scores: [N, K'] float32 logits of this shard's best tokens. K' <= num_tokens, and
            fewer than that only if the shard has no more.
        token_ids: [N, K'] int64 global ids.
        lse: [N, 1] float32 log of the shard's sum of exp(logits).
        num_tokens: K.
    Returns:
        (log_probs [N, K] float32 in falling order, token_ids [N, K] int64); where the
        vocabulary has fewer than K tokens the rest has log-probability -inf.
    """
    pad = (0, num_tokens - scores.shape[1])  # all_gather needs equal widths
    scores = torch.nn.functional.pad(scores, pad, value=float("-inf"))
    token_ids = torch.nn.functional.pad(token_ids, pad, value=0)
    scores = tp_group.all_gather(scores.contiguous(), dim=-1)
    token_ids = tp_group.all_gather(token_ids.contiguous(), dim=-1)
    lse = tp_group.all_gather(lse.contiguous(), dim=-1)
    values, index = torch.topk(scores, num_tokens, dim=-1)
    values = values - torch.logsumexp(lse, dim=-1, keepdim=True)
    return values, token_ids.gather(1, index)


class DDTreeStep:
    """Runs the phases of a step for a batch of requests.

    Args:
        target_runner, draft_runner: the model runners of target and DFlash draft. They
            share `req_to_token` and the slot numbers of their KV pools.
        block_size: tokens of a draft block, the current token included.
        mask_token_id: token that fills the draft block.
        attn_backends: (target, draft) attention backends for TARGET_VERIFY.
        fused_kv_helper: of the DFLASH worker, to write draft KV with fewer launches.
    """

    def __init__(
        self,
        *,
        target_runner: ModelRunner,
        draft_runner: ModelRunner,
        block_size: int,
        mask_token_id: int,
        attn_backends: Tuple[AttentionBackend, AttentionBackend],
        fused_kv_helper: Optional[FusedKVMaterializeHelper] = None,
    ):
        self.target_runner = target_runner
        self.draft_runner = draft_runner
        self.draft_model = draft_runner.model
        self.device = target_runner.device
        self.block_size = block_size
        self.mask_token_id = mask_token_id
        self.target_attn_backend, self.draft_attn_backend = attn_backends
        self.fused_kv_helper = fused_kv_helper
        self.top_scores = ddtree_top_scores
        self.build_tree, self.walk_tree = build_ddtree, walk_ddtree
        self.move_path_kv = None
        if self.device == "cuda":
            from sglang.srt.speculative.ddtree_kernels import (
                build_ddtree_triton,
                move_path_kv_triton,
                walk_ddtree_triton,
            )
            from sglang.srt.speculative.ddtree_top_scores import (
                ddtree_top_scores_triton,
            )

            self.top_scores = ddtree_top_scores_triton
            self.build_tree, self.walk_tree = build_ddtree_triton, walk_ddtree_triton
            self.move_path_kv = move_path_kv_triton
            pool = target_runner.token_to_kv_pool
            self.max_slot_bytes = max(pool.data_strides.tolist())
        self.embed = target_runner.model.get_input_embeddings()
        self.lm_head = getattr(target_runner.model, "lm_head", None)
        if not hasattr(self.lm_head, "weight") or not hasattr(
            self.lm_head, "shard_indices"
        ):
            raise RuntimeError(
                "DDTREE requires the target model to expose a vocab-parallel `lm_head` with `weight` "
                "and `shard_indices` attributes."
            )

    # ---- draft ----------------------------------------------------------------

    def draft(
        self,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        root_tokens: torch.Tensor,
        budget: int,
    ) -> DDTree:
        """Draft one block per request and build its tree.

        Args:
            req_pool_indices: [bs] int64 rows of `req_to_token`.
            seq_lens: [bs] int64 committed tokens, all in both KV caches.
            root_tokens: [bs] int64 current tokens, not in the KV caches yet.
            budget: nodes per tree, the root not counted. 0 drafts nothing.
        """
        bs = seq_lens.shape[0]
        if budget == 0:
            nothing = torch.empty((bs, 0, 1), device=self.device)
            return build_ddtree(
                log_probs=nothing,
                token_ids=nothing.to(torch.int64),
                root_tokens=root_tokens,
                budget=0,
            )
        block_ids = torch.full(
            (bs, self.block_size),
            self.mask_token_id,
            dtype=torch.int64,
            device=self.device,
        )
        block_ids[:, 0] = root_tokens
        offsets = torch.arange(self.block_size, device=self.device)
        input_embeds = self.embed(block_ids).view(bs * self.block_size, -1)
        forward_batch = self._forward_batch(
            runner=self.draft_runner,
            attn_backend=self.draft_attn_backend,
            req_pool_indices=req_pool_indices,
            seq_lens=seq_lens,
            spec_info=DFlashVerifyInput(
                draft_token=block_ids.flatten(),
                positions=(seq_lens.unsqueeze(1) + offsets).flatten(),
                draft_token_num=self.block_size,
                capture_hidden_mode=CaptureHiddenMode.NULL,
            ),
            input_embeds=input_embeds.to(self.draft_runner.dtype),
        )
        hidden = self.draft_model.forward(
            forward_batch.input_ids,
            forward_batch.positions,
            forward_batch,
            input_embeds=forward_batch.input_embeds,
        ).hidden_states
        hidden = hidden.view(bs, self.block_size, -1)[:, 1:, :]

        log_probs, token_ids = self._top_tokens(
            hidden.reshape(bs * (self.block_size - 1), -1), budget
        )
        return self.build_tree(
            log_probs=log_probs.view(bs, self.block_size - 1, -1),
            token_ids=token_ids.view(bs, self.block_size - 1, -1),
            root_tokens=root_tokens,
            budget=budget,
        )

    def _top_tokens(
        self, hidden: torch.Tensor, num_tokens: int
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Most probable tokens of each row under the target's LM head.

        Padding rows of the head are left out, added vocabulary is kept, and with tensor
        parallelism the shards' tokens are merged under their global ids.

        Args:
            hidden: [N, H] draft hidden states.
        Returns:
            (log_probs [N, K] float32 in falling order, token_ids [N, K] int64)
        """
        shard = self.lm_head.shard_indices
        weight = self.lm_head.weight
        num_org, num_added = int(shard.num_org_elements), int(shard.num_added_elements)
        hidden = hidden.to(weight.dtype)
        logits = torch.matmul(hidden, weight[:num_org].T)
        if num_added > 0:
            start = int(shard.num_org_elements_padded)
            added = torch.matmul(hidden, weight[start : start + num_added].T)
            logits = torch.cat([logits, added], dim=1)

        scores, local_ids, lse = self.top_scores(logits, num_tokens)
        token_ids = torch.where(
            local_ids < num_org,
            local_ids + int(shard.org_vocab_start_index),
            local_ids - num_org + int(shard.added_vocab_start_index),
        )
        tp_group = get_tp_group()
        if tp_group.world_size == 1:
            return scores - lse, token_ids
        return merge_vocab_shards(scores, token_ids, lse, num_tokens, tp_group)

    # ---- verify ---------------------------------------------------------------

    def verify(
        self,
        tree: DDTree,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_cpu: Optional[torch.Tensor] = None,
        logits_buffer: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """Run the target over all nodes of the trees.

        Args:
            tree: [bs, D] trees.
            req_pool_indices, seq_lens: as in `draft`.
            seq_lens_cpu: [bs], only for attention backends that read `custom_mask`.
            logits_buffer: [bs * D, V] float32 to take the logits, or None.
        Returns:
            (logits [bs * D, V] float32, hidden [bs * D, F] captured target features)
        """
        spec_info = DDTreeVerifyInput.from_tree(tree, seq_lens)
        if seq_lens_cpu is not None:
            spec_info.build_custom_mask(seq_lens_cpu)
        forward_batch = self._forward_batch(
            runner=self.target_runner,
            attn_backend=self.target_attn_backend,
            req_pool_indices=req_pool_indices,
            seq_lens=seq_lens,
            spec_info=spec_info,
        )
        forward_batch.next_token_logits_buffer = logits_buffer
        output = self.target_runner.model.forward(
            forward_batch.input_ids, forward_batch.positions, forward_batch
        )
        return output.next_token_logits, output.hidden_states

    # ---- commit ---------------------------------------------------------------

    def commit(
        self,
        tree: DDTree,
        target_tokens: torch.Tensor,
        hidden: torch.Tensor,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        sizes: Tuple[int, ...] = (),
    ) -> torch.Tensor:
        """Walk the trees and keep what the paths carry, in both KV caches.

        Moves the path's target KV to the front of the request's reserved slots and
        writes the draft KV of the same positions from the target features, so that the
        committed slots may enter the radix cache right away.

        Args:
            tree: the verified trees.
            target_tokens: [bs, D] int64, the target's choice after each node.
            hidden: [bs * D, F] features of `verify`.
            req_pool_indices, seq_lens: as in `draft`.
            sizes: budgets to report the trees' expected tokens for.
        Returns:
            [bs, 2 + P + len(sizes)] int64: commit length, next root, the tokens of the
            path, and the expected tokens of each size in units of 1 / EXPECTED_UNIT. The
            first commit length tokens are appended, and the last of them is the next root.
        """
        bs, num_nodes = tree.tokens.shape
        path_len = ddtree_path_len(self.block_size - 1, num_nodes - 1)
        path, commit_lens, tokens = self.walk_tree(tree, target_tokens, path_len)
        slots = self._slots(req_pool_indices, seq_lens, num_nodes)
        source, target, draft_target = ddtree_commit_slots(path, commit_lens, slots)
        self._move_target_kv(source, target)

        path_hidden = gather_path(hidden.view(bs, num_nodes, -1), path)
        positions = seq_lens.unsqueeze(1) + torch.arange(path_len, device=self.device)
        self._append_draft_kv(
            path_hidden.view(bs * path_len, -1),
            positions.flatten(),
            draft_target.flatten(),
        )
        commit_lens = commit_lens.unsqueeze(1)
        columns = [commit_lens, tokens.gather(1, commit_lens - 1), tokens]
        if sizes:
            expected = ddtree_expected_lens(tree.scores, sizes)
            columns.append((expected * EXPECTED_UNIT).to(torch.int64))
        return torch.cat(columns, dim=1)

    def _move_target_kv(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Move KV from `source` [bs, P] slots to `target` [bs, P] slots in all layers."""
        pool = self.target_runner.token_to_kv_pool
        if self.move_path_kv is not None:
            self.move_path_kv(
                pool.data_ptrs, pool.data_strides, self.max_slot_bytes, source, target
            )
            return
        source, target = source.flatten(), target.flatten()
        for k_buffer, v_buffer in zip(pool.k_buffer, pool.v_buffer):
            k_buffer[target] = k_buffer[source]
            v_buffer[target] = v_buffer[source]

    def _append_draft_kv(
        self, hidden: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Write the draft KV of target features [N, F]; slot 0 takes what is not kept."""
        draft_pool = self.draft_runner.token_to_kv_pool
        hidden = self.draft_model.project_target_hidden(hidden)
        if self.fused_kv_helper is not None:
            self._append_draft_kv_fused(hidden, positions, slots)
            return
        for layer in self.draft_model.layers:
            attn = layer.self_attn
            k, v = attn.kv_proj_only(hidden)
            k = attn.apply_k_rope(positions, attn.apply_k_norm(k))
            draft_pool.set_kv_buffer(
                attn.attn,
                slots,
                k.view(-1, attn.num_kv_heads, attn.head_dim),
                v.view(-1, attn.num_kv_heads, attn.head_dim),
                attn.attn.k_scale,
                attn.attn.v_scale,
            )

    def _append_draft_kv_fused(
        self, hidden: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> None:
        # `FusedKVMaterializeHelper.materialize` without its check of the largest position,
        # which would read it back; the RoPE cache is expanded at start.
        helper = self.fused_kv_helper
        kv = torch.einsum("th,loh->lto", hidden, helper.batched_kv_weight)
        for layer_id, layer in enumerate(self.draft_model.layers):
            k, v = _fused_norm_rope(
                kv[layer_id],
                helper.k_norm_weights[layer_id],
                helper.rotary_emb.cos_sin_cache,
                positions,
                helper.num_kv_heads,
                helper.head_dim,
                helper.rotary_dim,
                helper.eps_values[layer_id],
            )
            attn = layer.self_attn.attn
            self.draft_runner.token_to_kv_pool.set_kv_buffer(
                attn, slots, k, v, attn.k_scale, attn.v_scale
            )

    # ---- shared ---------------------------------------------------------------

    def _slots(
        self, req_pool_indices: torch.Tensor, seq_lens: torch.Tensor, num: int
    ) -> torch.Tensor:
        """KV slots [bs, num] of the positions from `seq_lens` on.

        Padding rows of a CUDA graph have a negative pool index and get slot 0.
        """
        columns = seq_lens.unsqueeze(1) + torch.arange(num, device=self.device)
        rows = req_pool_indices.unsqueeze(1)
        req_to_token = self.target_runner.req_to_token_pool.req_to_token
        slots = req_to_token[rows.clamp(min=0), columns]
        return torch.where(rows >= 0, slots, 0).to(torch.int64)

    def _forward_batch(
        self,
        *,
        runner: ModelRunner,
        attn_backend: AttentionBackend,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        spec_info: DFlashVerifyInput,
        input_embeds: Optional[torch.Tensor] = None,
    ) -> ForwardBatch:
        forward_batch = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=seq_lens.shape[0],
            input_ids=spec_info.draft_token,
            req_pool_indices=req_pool_indices,
            seq_lens=seq_lens,
            seq_lens_sum=None,
            orig_seq_lens=seq_lens,
            out_cache_loc=self._slots(
                req_pool_indices, seq_lens, spec_info.draft_token_num
            ).flatten(),
            positions=spec_info.positions,
            req_to_token_pool=runner.req_to_token_pool,
            token_to_kv_pool=runner.token_to_kv_pool,
            attn_backend=attn_backend,
            input_embeds=input_embeds,
            spec_algorithm=SpeculativeAlgorithm.DDTREE,
            spec_info=spec_info,
            capture_hidden_mode=spec_info.capture_hidden_mode,
            num_token_non_padded_cpu=len(spec_info.draft_token),
        )
        attn_backend.init_forward_metadata(forward_batch)
        return forward_batch
