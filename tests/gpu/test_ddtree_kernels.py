"""The Triton kernels against their torch versions."""

import pytest
import torch
from sglang.srt.speculative import ddtree_attention, ddtree_kernels
from sglang.srt.speculative import ddtree_utils as utils

DEVICE = "cuda"


def marginals(kind, bs, num_depths, vocab, budget):
    torch.manual_seed(0)
    logits = torch.randn(bs * num_depths, vocab, device=DEVICE) * 3
    if kind == "ties":
        logits = logits.round()
    elif kind == "sharp":
        logits = logits * 200
    log_probs, token_ids = utils.ddtree_top_tokens(logits, budget)
    return log_probs.view(bs, num_depths, -1), token_ids.view(bs, num_depths, -1)


@pytest.mark.parametrize("kind", ["smooth", "ties", "sharp"])
@pytest.mark.parametrize(("bs", "num_depths", "vocab"), [(1, 15, 4096), (3, 15, 300), (2, 1, 5)])
@pytest.mark.parametrize("budget", [15, 63])
def test_build_and_walk(kind, bs, num_depths, vocab, budget):
    log_probs, token_ids = marginals(kind, bs, num_depths, vocab, budget)
    args = {
        "log_probs": log_probs,
        "token_ids": token_ids,
        "root_tokens": torch.arange(bs, device=DEVICE),
        "budget": budget,
    }
    expected, got = utils.build_ddtree(**args), ddtree_kernels.build_ddtree_triton(**args)
    for name in expected._fields:
        assert torch.equal(getattr(expected, name), getattr(got, name)), name
    target = torch.randint(0, vocab, (bs, budget + 1), device=DEVICE)
    target.scatter_(1, expected.parents[:, 1:], expected.tokens[:, 1:])
    path_len = utils.ddtree_path_len(num_depths, budget)
    for a, b in zip(
        utils.walk_ddtree(expected, target, path_len),
        ddtree_kernels.walk_ddtree_triton(expected, target, path_len),
    ):
        assert torch.equal(a, b)


def attention_case(dtype, bs, num_q, heads, kv_heads, dim, prefix):
    torch.manual_seed(1)
    width = prefix + num_q
    slots = bs * width + 1

    def randn(*shape):
        return torch.randn(*shape, device=DEVICE, dtype=dtype)

    table = torch.randperm(slots - 1, device=DEVICE)[: bs * width].view(bs, width) + 1
    parents = torch.zeros(bs, num_q, dtype=torch.int64, device=DEVICE)
    for node in range(1, num_q):
        parents[:, node] = torch.randint(0, node, (bs,), device=DEVICE)
    return {
        "q": randn(bs * num_q, heads, dim),
        "k": randn(bs * num_q, kv_heads, dim),
        "v": randn(bs * num_q, kv_heads, dim),
        "k_cache": randn(slots, kv_heads, dim),
        "v_cache": randn(slots, kv_heads, dim),
        "req_to_token": table.int(),
        "req_pool_indices": torch.arange(bs, device=DEVICE),
        "prefix_lens": torch.full((bs,), prefix, device=DEVICE) - torch.arange(bs, device=DEVICE),
        "mask": utils.build_ancestor_mask(parents, num_q),
        "scale": dim**-0.5,
    }


def dense(case):
    q, k, v = case["q"].double(), case["k"].double(), case["v"].double()
    bs = len(case["prefix_lens"])
    num_q, group = q.shape[0] // bs, q.shape[1] // k.shape[1]
    out = []
    for b in range(bs):
        prefix = int(case["prefix_lens"][b])
        slots = case["req_to_token"][b, :prefix].long()
        rows = slice(b * num_q, (b + 1) * num_q)
        keys = torch.cat([case["k_cache"][slots].double(), k[rows]]).repeat_interleave(group, 1)
        values = torch.cat([case["v_cache"][slots].double(), v[rows]]).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,nhd->hqn", q[rows], keys) * case["scale"]
        allowed = torch.ones(num_q, len(keys), dtype=torch.bool, device=DEVICE)
        if case["mask"] is not None:
            allowed[:, prefix:] = case["mask"][b]
        scores = scores.masked_fill(~allowed, float("-inf"))
        out.append(torch.einsum("hqn,nhd->qhd", scores.softmax(-1), values))
    return torch.cat(out).flatten(1)


SHAPES = [
    (1, 64, 64, 16, 64, 300),
    (1, 16, 32, 8, 128, 5000),
    (3, 32, 8, 2, 64, 77),
    (4, 8, 4, 4, 64, 0 + 4),
    (1, 128, 4, 1, 64, 1000),
]


@pytest.mark.parametrize("num_splits", [1, 3, 16])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.bfloat16, 1e-2), (torch.float32, 1e-5)])
@pytest.mark.parametrize("shape", SHAPES)
def test_tree_attention(shape, dtype, bound, num_splits):
    case = attention_case(dtype, *shape)
    for mask in (case["mask"], None):
        case["mask"] = mask
        expected = dense(case)
        got = ddtree_attention.tree_attention(**case, num_splits=num_splits).double()
        assert (got - expected).norm() / expected.norm() < bound


def test_poisoned_sibling_does_not_move_the_other_branch():
    case = attention_case(torch.bfloat16, 1, 4, 4, 2, 64, 50)
    case["mask"] = utils.build_ancestor_mask(torch.tensor([[0, 0, 0, 1]], device=DEVICE), 3)
    clean = ddtree_attention.tree_attention(**case, num_splits=4)
    case["k"][1], case["v"][1] = 1e4, -1e4
    dirty = ddtree_attention.tree_attention(**case, num_splits=4)
    assert [torch.equal(clean[i], dirty[i]) for i in range(4)] == [True, False, True, False]


def test_padding_rows_do_not_disturb_the_others():
    case = attention_case(torch.bfloat16, 3, 8, 8, 2, 64, 40)
    full = ddtree_attention.tree_attention(**case, num_splits=2)
    case["req_pool_indices"][2], case["prefix_lens"][2] = -1, 0
    padded = ddtree_attention.tree_attention(**case, num_splits=2)
    assert torch.equal(full[:16], padded[:16])
    assert padded.isfinite().all()
