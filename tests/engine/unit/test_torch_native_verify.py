"""TARGET_VERIFY of the torch_native backend against a dense softmax."""

import math

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.speculative import ddtree_utils as utils

HEADS, KV_HEADS, DIM, NODES = 4, 2, 8, 5
PARENTS = torch.tensor([[0, 0, 0, 1, 2], [0, 0, 1, 2, 2]])


def setup(seed=0):
    generator = torch.Generator().manual_seed(seed)
    prefix_lens = torch.tensor([6, 3])
    k_cache = torch.randn(40, KV_HEADS, DIM, generator=generator)
    v_cache = torch.randn(40, KV_HEADS, DIM, generator=generator)
    req_to_token = torch.randperm(39, generator=generator)[: 2 * 19].view(2, 19) + 1
    query = torch.randn(2 * NODES, HEADS, DIM, generator=generator)
    return prefix_lens, k_cache, v_cache, req_to_token, query


def run(mask, prefix_lens, k_cache, v_cache, req_to_token, query, causal=True):
    custom_mask = None if mask is None else utils.build_verify_mask(mask, prefix_lens)
    backend = object.__new__(TorchNativeAttnBackend)
    return backend._run_sdpa_forward_verify(
        query,
        torch.empty_like(query),
        k_cache,
        v_cache,
        req_to_token,
        torch.tensor([1, 0]),
        prefix_lens,
        NODES,
        custom_mask=custom_mask,
        scaling=1 / math.sqrt(DIM),
        enable_gqa=True,
        causal=causal,
    )


def dense(allowed, prefix_lens, k_cache, v_cache, req_to_token, query):
    out = torch.empty_like(query)
    for b, row in enumerate([1, 0]):
        kv_len = int(prefix_lens[b]) + NODES
        slots = req_to_token[row, :kv_len]
        for i in range(NODES):
            seen = [j for j in range(kv_len) if j < prefix_lens[b] or allowed(b, i, j - int(prefix_lens[b]))]
            for h in range(HEADS):
                kv_head = h // (HEADS // KV_HEADS)
                scores = k_cache[slots[seen], kv_head] @ query[b * NODES + i, h] / math.sqrt(DIM)
                out[b * NODES + i, h] = scores.softmax(0) @ v_cache[slots[seen], kv_head]
    return out


def test_tree_causal_and_block_masks():
    args = setup()
    tree_mask = utils.build_ancestor_mask(PARENTS, 4)
    torch.testing.assert_close(run(tree_mask, *args), dense(lambda b, i, j: bool(tree_mask[b, i, j]), *args))
    torch.testing.assert_close(run(None, *args), dense(lambda b, i, j: j <= i, *args))
    torch.testing.assert_close(run(None, *args, causal=False), dense(lambda b, i, j: True, *args))


def test_poisoned_sibling_does_not_move_the_other_branch():
    args = setup()
    tree_mask = utils.build_ancestor_mask(PARENTS, 4)
    clean = run(tree_mask, *args)
    prefix_lens, k_cache, v_cache, req_to_token, query = args
    slot = req_to_token[1, int(prefix_lens[0]) + 1]  # node 1 of request 0
    k_cache, v_cache = k_cache.clone(), v_cache.clone()
    k_cache[slot] = 1e4
    v_cache[slot] = -1e4
    dirty = run(tree_mask, prefix_lens, k_cache, v_cache, req_to_token, query)
    same = [torch.equal(clean[i], dirty[i]) for i in range(NODES)]
    assert same == [True, False, True, False, True]  # node 3 is below node 1
