"""Attention of draft trees and draft blocks, for CUDA.

Serves TARGET_VERIFY under every attention backend: each query attends to the request's
prefix, read through `req_to_token`, and to the new tokens of its own block, selected by
the tree mask. The prefix is split over programs, so that a long context at batch size 1
fills the GPU, and nothing is planned on the host, so that a captured graph stays valid
for any lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Optional

import torch
import triton
import triton.language as tl

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.utils import get_device_core_count, next_power_of_2

if TYPE_CHECKING:
    from sglang.srt.layers.radix_attention import RadixAttention
    from sglang.srt.model_executor.forward_batch_info import ForwardBatch
    from sglang.srt.model_executor.model_runner import ModelRunner

# Programs per core that the splits of the prefix aim at.
_PROGRAMS_PER_CORE = 4
# More splits than this pay only where a core would be left without a program.
_USUAL_SPLITS = 8
_MAX_SPLITS = 32


class TreeAttentionConfig(NamedTuple):
    """How the kernel is cut: rows of queries, keys of a tile, warps and pipeline stages."""

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def tree_attention_config(
    rows: int, head_dim: int, dtype: torch.dtype
) -> TreeAttentionConfig:
    """For `rows` (query, head) pairs of a KV head's group.

    With 16 bits the best compromise on an H200 for heads of 64 and 128 and contexts of
    220 to 4000 tokens; products of float32 spill registers in larger blocks.
    """
    if dtype == torch.float32:
        block_n = 32 if head_dim <= 128 else 16
        return TreeAttentionConfig(
            16, block_n, num_warps=4 if head_dim <= 64 else 8, num_stages=2
        )
    block_m = min(64, max(16, next_power_of_2(rows)))
    if block_m <= 32:
        return TreeAttentionConfig(block_m, 64, num_warps=2, num_stages=3)
    return TreeAttentionConfig(block_m, 32, num_warps=4, num_stages=2)


@triton.jit
def _update(acc, row_max, row_sum, q, k, v, allowed, scale, PRECISION: tl.constexpr):
    """One tile of the online softmax. q [M, D], k [D, N], v [N, D], allowed [M, N]."""
    scores = tl.dot(q, k, input_precision=PRECISION) * scale
    scores = tl.where(allowed, scores, float("-inf"))
    new_max = tl.maximum(row_max, tl.max(scores, 1))
    # A row without any allowed key so far keeps -inf; do not subtract it from itself.
    safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)
    alpha = tl.exp2(row_max - safe_max)
    p = tl.exp2(scores - safe_max[:, None])
    row_sum = row_sum * alpha + tl.sum(p, 1)
    acc = acc * alpha[:, None]
    acc += tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
    return acc, new_max, row_sum


@triton.jit
def _tree_attention_kernel(
    q_ptr,  # [bs * num_q, num_heads, head_dim]
    k_ptr,  # [bs * num_q, num_kv_heads, head_dim], the block's own keys
    v_ptr,
    k_cache_ptr,  # [num_slots, num_kv_heads, head_dim]
    v_cache_ptr,
    req_to_token_ptr,  # [num_reqs, max_context_len] int32
    req_pool_indices_ptr,  # [bs] int64, negative for padding rows
    prefix_lens_ptr,  # [bs] int64
    mask_ptr,  # [bs, num_q, num_q] bool, unused without HAS_MASK
    out_ptr,  # [bs * num_q, num_heads, head_dim]
    part_ptr,  # [num_splits, bs * num_q, num_heads, head_dim] float32
    lse_ptr,  # [num_splits, bs * num_q, num_heads] float32, base 2
    stride_q,
    stride_k,
    stride_v,
    stride_kc,
    stride_vc,
    stride_req,
    scale,  # softmax scale * log2(e)
    num_q: tl.constexpr,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    HAS_MASK: tl.constexpr,
    HAS_SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Grid: (m blocks, bs * num_kv_heads, num_splits).

    A row is one (query, head) pair of the KV head's group, so all heads of a group
    share the KV tiles. Batch size and number of splits are the grid's alone: a server
    has many of both, and each would be compiled for.
    """
    GROUP: tl.constexpr = num_heads // num_kv_heads
    batch = tl.program_id(1) // num_kv_heads
    kv_head = tl.program_id(1) % num_kv_heads
    split = tl.program_id(2)

    prefix_len = tl.load(prefix_lens_ptr + batch).to(tl.int32)
    req = tl.maximum(tl.load(req_pool_indices_ptr + batch), 0)

    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row_ok = rows < num_q * GROUP
    query = tl.where(row_ok, rows // GROUP, 0)
    head = kv_head * GROUP + rows % GROUP
    offs_d = tl.arange(0, BLOCK_D)
    d_ok = offs_d < head_dim
    token = (batch * num_q + query).to(tl.int64)
    q = tl.load(
        q_ptr + token[:, None] * stride_q + head[:, None] * head_dim + offs_d[None, :],
        mask=row_ok[:, None] & d_ok[None, :],
        other=0.0,
    )

    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    row_max = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    row_sum = tl.zeros([BLOCK_M], dtype=tl.float32)

    # The prefix, split into runs of whole tiles.
    num_splits = tl.num_programs(2)
    chunk = tl.cdiv(tl.cdiv(prefix_len, num_splits), BLOCK_N) * BLOCK_N
    start = split * chunk
    end = tl.minimum(start + chunk, prefix_len)
    for tile in range(start, end, BLOCK_N):
        offs_n = tile + tl.arange(0, BLOCK_N)
        n_ok = offs_n < end
        slot = tl.load(
            req_to_token_ptr + req * stride_req + offs_n, mask=n_ok, other=0
        ).to(tl.int64)
        k = tl.load(
            k_cache_ptr
            + slot[None, :] * stride_kc
            + kv_head * head_dim
            + offs_d[:, None],
            mask=n_ok[None, :] & d_ok[:, None],
            other=0.0,
        )
        v = tl.load(
            v_cache_ptr
            + slot[:, None] * stride_vc
            + kv_head * head_dim
            + offs_d[None, :],
            mask=n_ok[:, None] & d_ok[None, :],
            other=0.0,
        )
        acc, row_max, row_sum = _update(
            acc, row_max, row_sum, q, k, v, n_ok[None, :], scale, PRECISION
        )

    # The block itself; the last split has the shortest run of the prefix.
    if split == num_splits - 1:
        for tile in range(0, num_q, BLOCK_N):
            offs_n = tile + tl.arange(0, BLOCK_N)
            n_ok = offs_n < num_q
            key = (batch * num_q + offs_n).to(tl.int64)
            k = tl.load(
                k_ptr + key[None, :] * stride_k + kv_head * head_dim + offs_d[:, None],
                mask=n_ok[None, :] & d_ok[:, None],
                other=0.0,
            )
            v = tl.load(
                v_ptr + key[:, None] * stride_v + kv_head * head_dim + offs_d[None, :],
                mask=n_ok[:, None] & d_ok[None, :],
                other=0.0,
            )
            if HAS_MASK:
                allowed = (
                    tl.load(
                        mask_ptr + token[:, None] * num_q + offs_n[None, :],
                        mask=row_ok[:, None] & n_ok[None, :],
                        other=0,
                    )
                    != 0
                )
            else:
                allowed = n_ok[None, :]
            acc, row_max, row_sum = _update(
                acc, row_max, row_sum, q, k, v, allowed, scale, PRECISION
            )

    acc = acc / tl.where(row_sum > 0, row_sum, 1.0)[:, None]
    out_offs = token[:, None] * (num_heads * head_dim) + (
        head[:, None] * head_dim + offs_d[None, :]
    )
    ok = row_ok[:, None] & d_ok[None, :]
    if not HAS_SPLITS:
        tl.store(out_ptr + out_offs, acc.to(out_ptr.dtype.element_ty), mask=ok)
    else:
        num_tokens = tl.num_programs(1) // num_kv_heads * num_q
        part = split.to(tl.int64) * num_tokens * num_heads
        tl.store(part_ptr + part * head_dim + out_offs, acc, mask=ok)
        lse = tl.where(row_sum > 0, row_max + tl.log2(row_sum), float("-inf"))
        tl.store(lse_ptr + part + token * num_heads + head, lse, mask=row_ok)


@triton.jit
def _merge_splits_kernel(
    part_ptr,  # [NUM_SPLITS, num_rows, head_dim] float32
    lse_ptr,  # [NUM_SPLITS, num_rows] float32
    out_ptr,  # [num_rows, head_dim]
    num_rows,
    head_dim: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    """Combine the splits. A row is one (token, head) pair. Grid: (row blocks,)."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    row_ok = rows < num_rows
    offs_d = tl.arange(0, BLOCK_D)
    ok = row_ok[:, None] & (offs_d < head_dim)[None, :]
    top = tl.full([BLOCK_R], float("-inf"), dtype=tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        lse = tl.load(lse_ptr + split * num_rows + rows, mask=row_ok, other=0.0)
        top = tl.maximum(top, lse)
    total = tl.zeros([BLOCK_R], dtype=tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], dtype=tl.float32)
    for split in tl.static_range(NUM_SPLITS):
        lse = tl.load(lse_ptr + split * num_rows + rows, mask=row_ok, other=0.0)
        weight = tl.exp2(lse - top)
        offs = (split * num_rows + rows)[:, None] * head_dim + offs_d[None, :]
        acc += tl.load(part_ptr + offs, mask=ok, other=0.0) * weight[:, None]
        total += weight
    acc = acc / total[:, None]
    offs = rows[:, None] * head_dim + offs_d[None, :]
    tl.store(out_ptr + offs, acc.to(out_ptr.dtype.element_ty), mask=ok)


def tree_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    prefix_lens: torch.Tensor,
    mask: Optional[torch.Tensor],
    scale: float,
    num_splits: int,
    config: Optional[TreeAttentionConfig] = None,
) -> torch.Tensor:
    """Attention of one block of new tokens per request over its prefix and itself.

    Args:
        q: [bs * Q, num_heads, head_dim].
        k, v: [bs * Q, num_kv_heads, head_dim] of the block; the cache need not hold them.
        k_cache, v_cache: [num_slots, num_kv_heads, head_dim].
        req_to_token: [num_reqs, max_context_len] int32.
        req_pool_indices: [bs] int64; negative for padding rows, whose output is unused.
        prefix_lens: [bs] int64, tokens in the cache before the block.
        mask: [bs, Q, Q] bool, which tokens of the block a query sees; None for all.
        scale: softmax scale.
        num_splits: programs that share a prefix.
        config: None for the usual one.
    Returns:
        [bs * Q, num_heads * head_dim]
    """
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    bs = req_pool_indices.shape[0]
    num_q = num_tokens // bs
    out = torch.empty(
        (num_tokens, num_heads * head_dim), dtype=q.dtype, device=q.device
    )
    part, lse = out, out
    if num_splits > 1:
        shape = (num_splits, num_tokens, num_heads)
        part = torch.empty((*shape, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
    rows = num_q * (num_heads // num_kv_heads)
    config = config or tree_attention_config(rows, head_dim, q.dtype)
    block_d = max(16, next_power_of_2(head_dim))
    grid = (triton.cdiv(rows, config.block_m), bs * num_kv_heads, num_splits)
    _tree_attention_kernel[grid](
        q,
        k,
        v,
        k_cache,
        v_cache,
        req_to_token,
        req_pool_indices,
        prefix_lens,
        mask.view(torch.uint8) if mask is not None else q,
        out,
        part,
        lse,
        q.stride(0),
        k.stride(0),
        v.stride(0),
        k_cache.stride(0),
        v_cache.stride(0),
        req_to_token.stride(0),
        scale * 1.4426950408889634,
        num_q=num_q,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        HAS_MASK=mask is not None,
        HAS_SPLITS=num_splits > 1,
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_D=block_d,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    if num_splits > 1:
        num_rows, block_r = num_tokens * num_heads, 16
        _merge_splits_kernel[(triton.cdiv(num_rows, block_r),)](
            part,
            lse,
            out,
            num_rows,
            head_dim=head_dim,
            NUM_SPLITS=num_splits,
            BLOCK_R=block_r,
            BLOCK_D=block_d,
        )
    return out


def tree_attention_num_splits(programs: int, num_cores: int) -> int:
    """Programs that share a prefix, a power of two, where one alone makes `programs`."""
    most = max(_USUAL_SPLITS, num_cores // programs)
    splits = min(_PROGRAMS_PER_CORE * num_cores // programs, most, _MAX_SPLITS)
    return 1 << (max(1, splits).bit_length() - 1)


class DDTreeAttnBackend(AttentionBackend):
    """TARGET_VERIFY of the DDTree draft block and tree; other modes stay where they are.

    Args:
        model_runner: the runner (target or draft) whose layers attend.
    """

    def __init__(self, model_runner: ModelRunner):
        super().__init__()
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.num_cores = get_device_core_count(model_runner.gpu_id) or 1

    def init_forward_metadata(self, forward_batch: ForwardBatch):
        # Everything is read from the forward batch.
        pass

    def get_cuda_graph_seq_len_fill_value(self):
        return 0

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        layer: RadixAttention,
        forward_batch: ForwardBatch,
        save_kv_cache: bool = True,
        **kwargs,
    ):
        extra = [name for name, value in kwargs.items() if value is not None]
        if extra:
            raise ValueError(f"DDTREE attention does not support {', '.join(extra)}.")

        # The draft block (non-causal) is only read in this forward: keep its KV out of
        # the cache.
        is_draft_block = layer.attn_type == AttentionType.ENCODER_ONLY
        if save_kv_cache and not is_draft_block:
            forward_batch.token_to_kv_pool.set_kv_buffer(
                layer, forward_batch.out_cache_loc, k, v, layer.k_scale, layer.v_scale
            )
        bs = forward_batch.batch_size
        num_heads, num_kv_heads = layer.tp_q_head_num, layer.tp_k_head_num
        k_cache, v_cache = forward_batch.token_to_kv_pool.get_kv_buffer(layer.layer_id)
        rows = (q.shape[0] // bs) * (num_heads // num_kv_heads)
        config = tree_attention_config(rows, layer.head_dim, q.dtype)
        blocks = triton.cdiv(rows, config.block_m)
        return tree_attention(
            q.view(-1, num_heads, layer.head_dim),
            k.view(-1, num_kv_heads, layer.head_dim),
            v.view(-1, num_kv_heads, layer.head_dim),
            k_cache,
            v_cache,
            self.req_to_token,
            forward_batch.req_pool_indices,
            forward_batch.seq_lens,
            None if is_draft_block else forward_batch.spec_info.tree_mask,
            layer.scaling,
            tree_attention_num_splits(bs * num_kv_heads * blocks, self.num_cores),
            config,
        )
