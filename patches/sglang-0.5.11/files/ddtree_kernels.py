"""Triton versions of `build_ddtree` and `walk_ddtree`, and the move of a path's KV: one
launch instead of dozens.

Trees are built and walked by one program each. The results are those of the torch
versions, ties included, because scores are sorted together with their index.
"""

from __future__ import annotations

from typing import Tuple

import torch
import triton
import triton.language as tl

from sglang.srt.speculative.ddtree_utils import DDTree, _candidate_pairs
from sglang.srt.utils import next_power_of_2


@triton.jit
def _sort_keys(scores, index, size: tl.constexpr):
    """Sortable int64 keys: falling score first, then rising index (< size)."""
    bits = scores.to(tl.int32, bitcast=True)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # order of floats as order of ints
    return (bits.to(tl.int64) << 32) + (size - 1 - index).to(tl.int64)


@triton.jit
def _build_tree_kernel(
    log_probs_ptr,  # [bs, L, K] float32, falling along K
    token_ids_ptr,  # [bs, L, K] int64
    roots_ptr,  # [bs] int64
    pair_parent_ptr,  # [num_pairs] int64
    pair_rank_ptr,  # [num_pairs] int64
    # Scratch, one row per request: kept prefixes of each depth, in falling order.
    kept_score_ptr,  # [bs, L * B] float32
    kept_index_ptr,  # [bs, L * B] int32, candidate pair
    node_of_slot_ptr,  # [bs, L * B] int32
    # The tree, [bs, D] each, and its mask [bs, D, D], zeroed before.
    tokens_ptr,
    parents_ptr,
    depths_ptr,
    scores_ptr,
    mask_ptr,
    num_pairs,
    L: tl.constexpr,
    K: tl.constexpr,
    B: tl.constexpr,
    FIRST: tl.constexpr,  # power of two >= K
    PAIRS: tl.constexpr,  # power of two >= num_pairs and >= B
    ALL: tl.constexpr,  # power of two >= L * B
    NODES: tl.constexpr,  # power of two >= D
):
    D: tl.constexpr = B + 1
    pid = tl.program_id(0).to(tl.int64)
    log_probs = log_probs_ptr + pid * L * K
    token_ids = token_ids_ptr + pid * L * K
    kept_score = kept_score_ptr + pid * L * B
    kept_index = kept_index_ptr + pid * L * B
    node_of_slot = node_of_slot_ptr + pid * L * B

    # Depth 1: the most probable tokens, already in order. The rank stands for the pair.
    lane = tl.arange(0, FIRST)
    first = tl.load(log_probs + lane, mask=lane < K, other=float("-inf"))
    tl.store(kept_score + lane, first, mask=lane < B)
    tl.store(kept_index + lane, tl.where(lane < K, lane, 0), mask=lane < B)
    tl.debug_barrier()

    pair = tl.arange(0, PAIRS)
    pair_ok = pair < num_pairs
    parent = tl.load(pair_parent_ptr + pair, mask=pair_ok, other=0)
    rank = tl.load(pair_rank_ptr + pair, mask=pair_ok, other=0)
    for depth in range(1, L):
        score = tl.load(kept_score + (depth - 1) * B + parent)
        score += tl.load(log_probs + depth * K + rank)
        score = tl.where(pair_ok, score, float("-inf"))
        keys = tl.sort(_sort_keys(score, pair, PAIRS), descending=True)
        # The sorted lane's pair, then its score again: exact, no key decoding.
        best = PAIRS - 1 - (keys & 0xFFFFFFFF).to(tl.int32)
        best_ok = best < num_pairs
        best = tl.where(best_ok, best, 0)
        best_score = tl.load(
            kept_score + (depth - 1) * B + tl.load(pair_parent_ptr + best)
        ) + tl.load(log_probs + depth * K + tl.load(pair_rank_ptr + best))
        best_score = tl.where(best_ok, best_score, float("-inf"))
        tl.store(kept_score + depth * B + pair, best_score, mask=pair < B)
        tl.store(kept_index + depth * B + pair, best, mask=pair < B)
        tl.debug_barrier()

    # The best over all depths; the slot depth * B + i of a prefix is its index.
    slot = tl.arange(0, ALL)
    kept = tl.load(kept_score + slot, mask=slot < L * B, other=float("-inf"))
    order = tl.sort(_sort_keys(kept, slot, ALL), descending=True)
    slot = ALL - 1 - (order & 0xFFFFFFFF).to(tl.int32)
    node = tl.arange(0, ALL) + 1
    ok = node < D
    slot = tl.where(ok, slot, 0)
    node_score = tl.load(kept_score + slot, mask=ok, other=float("-inf"))
    is_node = node_score > float("-inf")
    index = tl.load(kept_index + slot, mask=ok, other=0)
    level = slot // B  # depth - 1
    tl.store(node_of_slot + slot, node, mask=ok)
    tl.debug_barrier()

    deep = level > 0
    node_rank = tl.load(pair_rank_ptr + index, mask=ok & deep, other=0)
    node_rank = tl.where(deep, node_rank, index.to(tl.int64))
    parent_slot = tl.load(pair_parent_ptr + index, mask=ok & deep, other=0)
    node_parent = tl.load(
        node_of_slot + (level - 1) * B + parent_slot, mask=ok & deep & is_node, other=0
    )
    root = tl.load(roots_ptr + pid)
    token = tl.load(token_ids + level * K + node_rank, mask=ok & is_node, other=0)
    token = tl.where(is_node, token, root)
    out = pid * D + node
    tl.store(tokens_ptr + out, token, mask=ok)
    tl.store(parents_ptr + out, node_parent.to(tl.int64), mask=ok)
    tl.store(depths_ptr + out, tl.where(is_node, level + 1, 1).to(tl.int64), mask=ok)
    tl.store(scores_ptr + out, node_score, mask=ok)
    tl.store(tokens_ptr + pid * D, root)
    tl.store(parents_ptr + pid * D, tl.zeros([], tl.int64))
    tl.store(depths_ptr + pid * D, tl.zeros([], tl.int64))
    tl.store(scores_ptr + pid * D, tl.zeros([], tl.float32))
    tl.debug_barrier()

    # Mark each node's ancestors by climbing from all nodes at once.
    below = tl.arange(0, NODES)
    below_ok = below < D
    row = mask_ptr + (pid * D + below) * D
    one = tl.full([NODES], 1, tl.uint8)
    tl.store(row + below, one, mask=below_ok)
    ancestor = below.to(tl.int64)
    for _ in range(L):
        ancestor = tl.load(parents_ptr + pid * D + ancestor, mask=below_ok, other=0)
        tl.store(row + ancestor, one, mask=below_ok)


def build_ddtree_shared_bytes(num_depths: int, budget: int) -> int:
    """Shared memory of `build_ddtree_triton`, which sorts the candidates of a depth, and
    the kept prefixes of all depths."""
    num_pairs = sum(budget // p for p in range(1, budget + 1))  # `_candidate_pairs`
    return 8 * next_power_of_2(max(num_pairs, num_depths * budget))


def build_ddtree_triton(
    *,
    log_probs: torch.Tensor,
    token_ids: torch.Tensor,
    root_tokens: torch.Tensor,
    budget: int,
) -> DDTree:
    """`ddtree_utils.build_ddtree` for a budget of at least 1, in one kernel."""
    bs, num_depths, num_tokens = log_probs.shape
    device = log_probs.device
    num_nodes = budget + 1
    pair_parent, pair_rank = _candidate_pairs(budget, num_tokens, device)

    def empty(*shape, dtype):
        return torch.empty((bs, *shape), dtype=dtype, device=device)

    slots = num_depths * budget
    tree = DDTree(
        tokens=empty(num_nodes, dtype=torch.int64),
        parents=empty(num_nodes, dtype=torch.int64),
        depths=empty(num_nodes, dtype=torch.int64),
        scores=empty(num_nodes, dtype=torch.float32),
        mask=torch.zeros((bs, num_nodes, num_nodes), dtype=torch.bool, device=device),
    )
    _build_tree_kernel[(bs,)](
        log_probs.contiguous(),
        token_ids.contiguous(),
        root_tokens.contiguous(),  # a column of the last step's result
        pair_parent,
        pair_rank,
        empty(slots, dtype=torch.float32),
        empty(slots, dtype=torch.int32),
        empty(slots, dtype=torch.int32),
        tree.tokens,
        tree.parents,
        tree.depths,
        tree.scores,
        tree.mask.view(torch.uint8),
        pair_parent.shape[0],
        L=num_depths,
        K=num_tokens,
        B=budget,
        FIRST=next_power_of_2(max(num_tokens, budget)),
        PAIRS=next_power_of_2(max(pair_parent.shape[0], budget)),
        ALL=next_power_of_2(slots),
        NODES=next_power_of_2(num_nodes),
        num_warps=4 if budget <= 63 else 8,
    )
    return tree


@triton.jit
def _walk_tree_kernel(
    tokens_ptr,  # [bs, D] int64
    parents_ptr,  # [bs, D] int64
    depths_ptr,  # [bs, D] int64
    scores_ptr,  # [bs, D] float32
    target_ptr,  # [bs, D] int64
    reached_ptr,  # [bs, D] int32 scratch
    path_ptr,  # [bs, P] int64
    commit_lens_ptr,  # [bs] int64
    out_tokens_ptr,  # [bs, P] int64
    D: tl.constexpr,
    P: tl.constexpr,
    NODES: tl.constexpr,  # power of two >= D
    PATH: tl.constexpr,  # power of two >= P
):
    pid = tl.program_id(0).to(tl.int64)
    base = pid * D
    node = tl.arange(0, NODES)
    ok = node < D
    token = tl.load(tokens_ptr + base + node, mask=ok, other=0)
    parent = tl.load(parents_ptr + base + node, mask=ok, other=0)
    score = tl.load(scores_ptr + base + node, mask=ok, other=float("-inf"))
    choice = tl.load(target_ptr + base + parent, mask=ok, other=0)
    match = ((token == choice) & (score > float("-inf"))) | (node == 0)
    match = (match & ok).to(tl.int32)
    tl.store(reached_ptr + base + node, match, mask=ok)

    step = tl.arange(0, PATH)
    tl.store(path_ptr + pid * P + step, step.to(tl.int64), mask=step < P)
    tl.debug_barrier()

    # A node is reached if it and all its ancestors match.
    reached = match
    ancestor = parent
    for _ in range(P - 1):
        reached &= tl.load(reached_ptr + base + ancestor, mask=ok, other=0)
        ancestor = tl.load(parents_ptr + base + ancestor, mask=ok, other=0)
    tl.store(commit_lens_ptr + pid, tl.sum(reached, 0).to(tl.int64))
    depth = tl.load(depths_ptr + base + node, mask=ok, other=0)
    tl.store(path_ptr + pid * P + depth, node.to(tl.int64), mask=reached != 0)
    tl.debug_barrier()

    path = tl.load(path_ptr + pid * P + step, mask=step < P, other=0)
    out = tl.load(target_ptr + base + path, mask=step < P, other=0)
    tl.store(out_tokens_ptr + pid * P + step, out, mask=step < P)


def walk_ddtree_triton(
    tree: DDTree, target_tokens: torch.Tensor, path_len: int
) -> Tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`ddtree_utils.walk_ddtree` in one kernel."""
    bs, num_nodes = tree.tokens.shape
    device = tree.tokens.device
    path = torch.empty((bs, path_len), dtype=torch.int64, device=device)
    tokens = torch.empty_like(path)
    commit_lens = torch.empty((bs,), dtype=torch.int64, device=device)
    reached = torch.empty((bs, num_nodes), dtype=torch.int32, device=device)
    _walk_tree_kernel[(bs,)](
        tree.tokens,
        tree.parents,
        tree.depths,
        tree.scores,
        target_tokens.contiguous(),
        reached,
        path,
        commit_lens,
        tokens,
        D=num_nodes,
        P=path_len,
        NODES=next_power_of_2(num_nodes),
        PATH=next_power_of_2(path_len),
        num_warps=4,
    )
    return path, commit_lens, tokens


@triton.jit
def _move_path_kernel(
    data_ptrs_ptr,  # [num_buffers] address of each layer's K and V
    slot_bytes_ptr,  # [num_buffers] int64
    source_ptr,  # [bs, P] int64
    target_ptr,  # [bs, P] int64
    P: tl.constexpr,
    PATH: tl.constexpr,  # power of two >= P
    WORDS: tl.constexpr,  # of 8 bytes, of a slot, that a program moves
):
    """Grid: (num_buffers, bs, parts of a slot)."""
    buffer = tl.program_id(0)
    row = tl.program_id(1).to(tl.int64) * P
    slot_words = tl.load(slot_bytes_ptr + buffer) // 8
    data = tl.cast(tl.load(data_ptrs_ptr + buffer), tl.pointer_type(tl.int64))
    step = tl.arange(0, PATH)
    source = tl.load(source_ptr + row + step, mask=step < P, other=0)
    target = tl.load(target_ptr + row + step, mask=step < P, other=0)
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    moves = (source != target)[:, None] & (word < slot_words)[None, :]
    kv = tl.load(data + source[:, None] * slot_words + word[None, :], mask=moves)
    # A slot may be both source and target: other warps must have read it before.
    tl.debug_barrier()
    tl.store(data + target[:, None] * slot_words + word[None, :], kv, mask=moves)


def move_path_kv_triton(
    data_ptrs: torch.Tensor,
    slot_bytes: torch.Tensor,
    max_slot_bytes: int,
    source: torch.Tensor,
    target: torch.Tensor,
) -> None:
    """Move the KV of each request's path to other slots of the same request, in place.

    `MHATokenToKVPool.move_kv_cache` moves all requests' slots in one program for each part
    of a slot, and its time grows with their number; only those of one request can overlap.

    Args:
        data_ptrs, slot_bytes: [num_buffers] of the pool; slots are multiples of 8 bytes.
        max_slot_bytes: the largest of `slot_bytes`.
        source, target: [bs, P] int64 slots.
    """
    bs, path_len = source.shape
    words = min(128, next_power_of_2(max_slot_bytes // 8))
    grid = (data_ptrs.shape[0], bs, triton.cdiv(max_slot_bytes // 8, words))
    _move_path_kernel[grid](
        data_ptrs,
        slot_bytes,
        source.contiguous(),
        target.contiguous(),
        P=path_len,
        PATH=next_power_of_2(path_len),
        WORDS=words,
        num_warps=4,
    )
