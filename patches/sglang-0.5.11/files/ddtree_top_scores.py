"""The best tokens of the draft's logits on a GPU: `ddtree_utils.ddtree_top_scores`.

The logits of a block are the largest tensor of a draft, and `torch.topk` and
`torch.logsumexp` read and write them several times.
"""

from __future__ import annotations

from typing import Tuple

import torch
import triton
import triton.language as tl

from sglang.srt.utils import next_power_of_2

# Columns of a group, groups of a program, and the vocabulary from which groups pay; twice
# as many columns as those of the groups that are looked at again.
_GROUP, _GROUPS, _MIN_GROUPED_VOCAB = 64, 128, 32768


@triton.jit
def _subtrahend(top):
    """What exponents are taken less of: `top`, and 0 where all logits are -inf."""
    return tl.where(top == float("-inf"), 0.0, top)


@triton.jit
def _logsumexp_kernel(
    logits_ptr,  # [N, V]
    out_ptr,  # [N] float32
    num_cols,
    row_stride,
    COLS: tl.constexpr,
):
    row = logits_ptr + tl.program_id(0).to(tl.int64) * row_stride
    lane = tl.arange(0, COLS)
    top = tl.full([], float("-inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for start in range(0, num_cols, COLS):
        ok = start + lane < num_cols
        logits = tl.load(row + start + lane, mask=ok, other=float("-inf"))
        logits = logits.to(tl.float32)
        new_top = tl.maximum(top, tl.max(logits, 0))
        shift = _subtrahend(new_top)
        total = total * tl.exp(top - shift) + tl.sum(tl.exp(logits - shift), 0)
        top = new_top
    # Approximate functions must not make a token more probable than 1.
    tl.store(out_ptr + tl.program_id(0), top + tl.maximum(tl.log(total), 0.0))


def _logsumexp(logits: torch.Tensor) -> torch.Tensor:
    """[N, V] of any float dtype -> [N, 1] float32, without a float32 copy of the logits."""
    num_rows, num_cols = logits.shape
    out = torch.empty((num_rows, 1), dtype=torch.float32, device=logits.device)
    _logsumexp_kernel[(num_rows,)](
        logits,
        out,
        num_cols,
        logits.stride(0),
        COLS=min(8192, next_power_of_2(max(1, num_cols))),
        num_warps=8,
    )
    return out


@triton.jit
def _group_tops_kernel(
    logits_ptr,  # [N, V]
    tops_ptr,  # [N, num_groups], dtype of the logits
    sums_ptr,  # [N, num_parts] float32
    num_cols,
    row_stride,
    num_groups,
    GROUP: tl.constexpr,
    GROUPS: tl.constexpr,  # of a program
):
    """The largest logit of each group of columns, and logsumexp of each part of the row.

    Grid: (N, num_parts).
    """
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    cols = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    logits = tl.load(
        logits_ptr + row * row_stride + cols, mask=cols < num_cols, other=float("-inf")
    )
    tops = tl.max(logits.to(tl.float32), 1)
    tl.store(tops_ptr + row * num_groups + group, tops, mask=group < num_groups)
    top = tl.max(tops, 0)
    exponents = logits.to(tl.float32) - _subtrahend(top)
    total = tl.sum(tl.sum(tl.exp(exponents), 1), 0)
    part = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(sums_ptr + part, top + tl.maximum(tl.log(total), 0.0))


@triton.jit
def _gather_groups_kernel(
    logits_ptr,  # [N, V]
    groups_ptr,  # [N, K] int64
    out_ptr,  # [N, K * GROUP], dtype of the logits
    num_cols,
    row_stride,
    GROUP: tl.constexpr,
):
    """Grid: (N, K)."""
    row = tl.program_id(0).to(tl.int64)
    slot = row * tl.num_programs(1) + tl.program_id(1)
    lane = tl.arange(0, GROUP)
    cols = tl.load(groups_ptr + slot) * GROUP + lane
    logits = tl.load(
        logits_ptr + row * row_stride + cols, mask=cols < num_cols, other=float("-inf")
    )
    tl.store(out_ptr + slot * GROUP + lane, logits)


def ddtree_top_scores_triton(
    logits: torch.Tensor, num_tokens: int
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`ddtree_utils.ddtree_top_scores`, reading the logits of a large vocabulary once.

    The K groups of columns with the largest logits have the K best tokens: each of them
    has one that is at least as good as any token of another group. The id of a score of
    -inf means nothing: where fewer than K logits are finite it may be beyond the last.
    """
    num_rows, num_cols = logits.shape
    if num_cols < max(_MIN_GROUPED_VOCAB, 2 * num_tokens * _GROUP):
        scores, token_ids = torch.topk(logits, min(num_tokens, num_cols), dim=-1)
        return scores.float(), token_ids, _logsumexp(logits)
    num_groups = triton.cdiv(num_cols, _GROUP)
    num_parts = triton.cdiv(num_groups, _GROUPS)
    tops = logits.new_empty((num_rows, num_groups))
    sums = logits.new_empty((num_rows, num_parts), dtype=torch.float32)
    stride = logits.stride(0)
    _group_tops_kernel[(num_rows, num_parts)](
        logits,
        tops,
        sums,
        num_cols,
        stride,
        num_groups,
        GROUP=_GROUP,
        GROUPS=_GROUPS,
        num_warps=8,
    )
    groups = torch.topk(tops, num_tokens, dim=-1, sorted=False).indices
    candidates = logits.new_empty((num_rows, num_tokens * _GROUP))
    _gather_groups_kernel[(num_rows, num_tokens)](
        logits, groups, candidates, num_cols, stride, GROUP=_GROUP, num_warps=1
    )
    scores, index = torch.topk(candidates, num_tokens, dim=-1)
    token_ids = groups.gather(1, index // _GROUP) * _GROUP + index % _GROUP
    return scores.float(), token_ids, _logsumexp(sums)
