"""The Triton kernels in the interpreter; `tests/gpu` has them on a GPU, with more shapes."""

import math

import pytest
import torch
from sglang.srt.speculative import ddtree_attention, ddtree_kernels, ddtree_top_scores
from sglang.srt.speculative import ddtree_utils as utils


@pytest.mark.parametrize(("kind", "num_depths", "vocab", "budget"), [
    ("smooth", 4, 20, 7), ("ties", 5, 9, 6), ("sharp", 3, 6, 5), ("smooth", 1, 3, 5), ("uniform", 2, 2, 7),
    ("smooth", 3, 1, 2), ("smooth", 2, 9, 1), ("smooth", 15, 40, 4),
])  # fmt: skip
def test_build_and_walk(kind, num_depths, vocab, budget):
    torch.manual_seed(0)
    logits = torch.randn(2 * num_depths, vocab) * 3
    logits = {"ties": logits.round(), "sharp": logits * 200, "uniform": logits * 0}.get(kind, logits)
    log_probs, token_ids = utils.ddtree_top_tokens(logits, budget)
    shape = (2, num_depths, -1)
    args = {
        "log_probs": log_probs.view(shape),
        "token_ids": token_ids.view(shape),
        "root_tokens": torch.tensor([[9, 5], [9, 0]])[:, 1],  # a column, as between steps that are not captured
        "budget": budget,
    }
    expected, got = utils.build_ddtree(**args), ddtree_kernels.build_ddtree_triton(**args)
    for name in expected._fields:
        assert torch.equal(getattr(expected, name), getattr(got, name)), name
    target = torch.randint(0, vocab, (2, budget + 1))
    target.scatter_(1, expected.parents[:, 1:], expected.tokens[:, 1:])
    path_len = utils.ddtree_path_len(num_depths, budget)
    want = utils.walk_ddtree(expected, target, path_len)
    have = ddtree_kernels.walk_ddtree_triton(expected, target, path_len)
    assert all(torch.equal(a, b) for a, b in zip(want, have))
    assert int(want[1].max()) > 1, "a walk of more than the root"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("vocab", "num_tokens"),
    [(1, 3), (7, 2), (8192, 5), (8193, 63), (32768, 63), (32769, 1), (40000, 511), (65473, 511)],
)
def test_top_scores(vocab, num_tokens, dtype):
    """Of large vocabularies by groups; ties across groups; one token that takes all, in the last, partial group; rows
    of a wider tensor."""
    torch.manual_seed(0)
    logits = (torch.randn(5, vocab + 3) * 10).to(dtype)
    logits[:, vocab:] = 1e4  # not theirs
    logits = logits[:, :vocab]
    logits[0] = 5.0 + 5000 * (torch.arange(vocab) == vocab - 1)
    logits[1] = logits[1].round()
    logits[2] = logits[2].sort(descending=True).values  # the best are neighbours
    scores, token_ids, lse = ddtree_top_scores.ddtree_top_scores_triton(logits, num_tokens)
    expected = utils.ddtree_top_scores(logits, num_tokens)
    assert torch.equal(scores, expected[0]) and scores.dtype == torch.float32
    assert torch.equal(logits.gather(1, token_ids).float(), scores) and token_ids.dtype == torch.int64
    assert all(len(set(row)) == len(row) for row in token_ids.tolist())
    assert torch.allclose(lse, expected[2], rtol=1e-6, atol=1e-6) and lse.shape == (5, 1)
    assert (lse >= scores[:, :1]).all(), "a token is no more probable than 1"


@pytest.mark.parametrize("vocab", [20000, 40000])
def test_top_scores_where_many_logits_are_minus_infinity(vocab):
    logits = torch.randn(3, vocab)
    logits[0, :9000] = float("-inf")  # all of the first tile, and of a part of the groups
    logits[1, : vocab - 5] = float("-inf")
    logits[2] = float("-inf")
    scores, _, lse = ddtree_top_scores.ddtree_top_scores_triton(logits, 7)
    expected = utils.ddtree_top_scores(logits, 7)
    assert torch.equal(scores, expected[0])
    assert torch.allclose(lse, expected[2], rtol=1e-6, atol=1e-6)


def test_top_scores_of_an_empty_shard_of_the_vocabulary():
    logits = torch.empty(2, 0)
    for a, b in zip(ddtree_top_scores.ddtree_top_scores_triton(logits, 7), utils.ddtree_top_scores(logits, 7)):
        assert torch.equal(a, b)


def test_walk_without_drafts():
    """A budget of 0, which `auto` takes where drafting does not pay: the root alone."""
    tree = utils.build_ddtree(
        log_probs=torch.empty(2, 0, 1),
        token_ids=torch.empty(2, 0, 1).long(),
        root_tokens=torch.tensor([4, 0]),
        budget=0,
    )
    target = torch.tensor([[9], [0]])
    want = utils.walk_ddtree(tree, target, 1)
    have = ddtree_kernels.walk_ddtree_triton(tree, target, 1)
    assert all(torch.equal(a, b) for a, b in zip(want, have))
    assert want[1].tolist() == [1, 1] and want[2].tolist() == [[9], [0]]


@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("masked", [True, False])
def test_tree_attention(num_splits, masked):
    torch.manual_seed(0)
    bs, num_q, heads, kv_heads, dim = 3, 5, 4, 2, 16
    prefix_lens, rows = torch.tensor([83, 7, 0]), torch.tensor([2, 0, -1])
    k_cache, v_cache = torch.randn(400, kv_heads, dim), torch.randn(400, kv_heads, dim)
    table = torch.randperm(399)[: 4 * 90].view(4, 90).int() + 1
    q = torch.randn(bs * num_q, heads, dim)
    k, v = torch.randn(bs * num_q, kv_heads, dim), torch.randn(bs * num_q, kv_heads, dim)
    mask = utils.build_ancestor_mask(torch.tensor([[0, 0, 0, 1, 2]] * bs), 4) if masked else None
    got = ddtree_attention.tree_attention(
        q, k, v, k_cache, v_cache, table, rows, prefix_lens, mask, 1 / math.sqrt(dim), num_splits
    ).view(bs, num_q, heads, dim)
    for b in range(2):  # the last row is padding
        slots = table[rows[b], : prefix_lens[b]].long()
        own = slice(b * num_q, (b + 1) * num_q)
        keys = torch.cat([k_cache[slots], k[own]]).repeat_interleave(2, 1)
        values = torch.cat([v_cache[slots], v[own]]).repeat_interleave(2, 1)
        scores = torch.einsum("qhd,nhd->hqn", q[own], keys) / math.sqrt(dim)
        if masked:
            allowed = torch.cat([torch.ones(num_q, len(slots), dtype=torch.bool), mask[b]], 1)
            scores = scores.masked_fill(~allowed, float("-inf"))
        expected = torch.einsum("hqn,nhd->qhd", scores.softmax(-1), values)
        torch.testing.assert_close(got[b], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("num_splits", [1, 3])
def test_poisoned_sibling_does_not_move_the_other_branch(num_splits):
    """Nor does what the cache holds beyond the prefix, where rejected nodes left theirs."""
    torch.manual_seed(0)
    q, k, v = torch.randn(4, 4, 16), torch.randn(4, 2, 16), torch.randn(4, 2, 16)
    caches = torch.randn(2, 200, 2, 16)
    table = torch.arange(1, 101).int().view(1, 100)
    mask = utils.build_ancestor_mask(torch.tensor([[0, 0, 0, 1]]), 3)

    def run():
        return ddtree_attention.tree_attention(
            q, k, v, caches[0], caches[1], table, torch.tensor([0]), torch.tensor([70]), mask, 0.25, num_splits
        )

    clean = run()
    caches[:, 71:] = 1e4
    assert torch.equal(clean, run())
    k[1], v[1] = 1e4, -1e4
    assert [torch.equal(a, b) for a, b in zip(clean, run())] == [True, False, True, False]


def test_kv_of_the_path_moves_to_the_front_in_place():
    """Where slots are both source and target, stay where they are, or differ in size. That no warp overtakes another
    only a GPU shows."""
    path = torch.tensor([[0, 2, 3, 6, 7], [0, 1, 2, 3, 4], [0, 5, 6, 3, 4]])
    layers = [torch.randn(40, 2, 16) for _ in range(3)] + [torch.randn(40, 2, 6) for _ in range(2)]
    slots = (torch.randperm(39)[:24] + 1).view(3, 8)
    source, target = slots.gather(1, path), slots[:, :5]
    expected = [layer.clone() for layer in layers]
    for layer in expected:
        layer[target.flatten()] = layer[source.flatten()]
    sizes = [layer[0].nbytes for layer in layers]
    addresses = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64)
    ddtree_kernels.move_path_kv_triton(addresses, torch.tensor(sizes), max(sizes), source, target)
    assert all(torch.equal(a, b) for a, b in zip(layers, expected))


def test_splits_of_a_prefix_fill_the_cores():
    for cores in (1, 46, 132):
        for programs in (1, 2, 5, 16, 64, 200, 1000):
            splits = ddtree_attention.tree_attention_num_splits(programs, cores)
            assert splits.bit_count() == 1, "few kernels"
            assert splits == 1 or programs * splits <= 4 * cores
            assert splits >= 8 or programs * splits * 2 > min(4 * cores, 512), (programs, cores, splits)
