import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import ancestors_or_self, heap_tree, prefix_of, walk
from sglang.srt.speculative import ddtree_utils as utils

NEG_INF = float("-inf")


@st.composite
def marginals(draw):
    """Log-probabilities [bs, L, K] with ties, zeros and ones, and their token ids."""
    bs = draw(st.integers(1, 3))
    num_depths = draw(st.sampled_from([1, 2, 3, 7, 15]))
    vocab = draw(st.sampled_from([1, 2, 3, 8, 40]))
    budget = draw(st.sampled_from([0, 1, 2, 3, 7, 15, 31, 63]))
    kind = draw(st.sampled_from(["smooth", "ties", "uniform", "sharp"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    logits = torch.randn(bs * num_depths, vocab, generator=generator) * 3
    if kind == "ties":
        logits = logits.round()
    elif kind == "uniform":
        logits = torch.zeros_like(logits)
    elif kind == "sharp":  # q is exactly 1 for one token: children tie with their parents
        logits = logits * 200
    log_probs, token_ids = utils.ddtree_top_tokens(logits, max(budget, 1))
    shape = (bs, num_depths, -1)
    return log_probs.view(shape), token_ids.view(shape), budget


def build(case, root=5):
    log_probs, token_ids, budget = case
    roots = torch.full((log_probs.shape[0],), root, dtype=torch.int64)
    return utils.build_ddtree(log_probs=log_probs, token_ids=token_ids, root_tokens=roots, budget=budget)


@settings(max_examples=300)
@given(marginals())
def test_tree_equals_heap_oracle(case):
    log_probs, token_ids, budget = case
    tree = build(case)
    assert tree.tokens.shape == (log_probs.shape[0], budget + 1)
    for b in range(log_probs.shape[0]):
        expected = heap_tree(log_probs[b], token_ids[b], budget)
        valid = (tree.scores[b] > NEG_INF).tolist()
        nodes = [n for n in range(1, budget + 1) if valid[n]]
        assert len(nodes) == len(expected)
        # The probabilities are those of the oracle, whatever the order of ties.
        scores = sorted((score for _, score in expected), reverse=True)
        assert tree.scores[b, nodes].tolist() == scores
        prefixes = [prefix_of(tree.tokens[b], tree.parents[b], n) for n in nodes]
        assert len(set(prefixes)) == len(prefixes)
        if len(set(scores)) == len(scores):
            oracle = [tuple(int(token_ids[b, d, r]) for d, r in enumerate(ranks)) for ranks, _ in expected]
            assert prefixes == oracle
        for node, prefix in zip(nodes, prefixes):
            assert int(tree.parents[b, node]) < node
            assert int(tree.depths[b, node]) == len(prefix)


@settings(max_examples=60)
@given(marginals(), st.integers(0, 63))
def test_smaller_tree_is_a_prefix(case, smaller):
    log_probs, token_ids, budget = case
    smaller = min(smaller, budget)
    large, small = build(case), build((log_probs, token_ids, smaller))
    for field in ("tokens", "parents", "depths", "scores"):
        assert torch.equal(getattr(large, field)[:, : smaller + 1], getattr(small, field))


@settings(max_examples=60)
@given(marginals())
def test_never_promises_less_than_the_chain(case):
    """With as many nodes as the chain of argmaxes has, the tree commits at least as much in expectation."""
    log_probs, _, budget = case
    length = min(budget, log_probs.shape[1])
    chain = log_probs[:, :length, 0].cumsum(dim=1).exp().sum(dim=1)
    assert (build(case).scores[:, 1:].exp().sum(dim=1) >= chain * (1 - 1e-5)).all()


@settings(max_examples=60)
@given(marginals())
def test_mask_and_positions(case):
    tree = build(case)
    bs, num_nodes = tree.tokens.shape
    for b in range(bs):
        for node in range(num_nodes):
            expected = ancestors_or_self(tree.parents[b], node)
            assert set(tree.mask[b, node].nonzero().flatten().tolist()) == expected
            assert int(tree.depths[b, node]) == len(expected) - 1


def test_mask_check_catches_a_causal_mask():
    """Negative control: in a branching tree the causal mask lets siblings be seen."""
    parents = torch.tensor([[0, 0, 0, 1]])
    mask = utils.build_ancestor_mask(parents, 2)
    causal = torch.ones(4, 4, dtype=torch.bool).tril()
    assert not torch.equal(mask[0], causal)
    assert mask[0].tolist() == [
        [True, False, False, False],
        [True, True, False, False],
        [True, False, True, False],
        [True, True, False, True],
    ]


def test_token_zero_is_a_token():
    log_probs = torch.log(torch.tensor([[[0.9, 0.1]]]))
    tree = build((log_probs, torch.tensor([[[0, 3]]]), 2), root=0)
    assert tree.tokens.tolist() == [[0, 0, 3]]
    _path, commit_lens, tokens = utils.walk_ddtree(tree, torch.tensor([[0, 7, 8]]), 2)
    assert commit_lens.tolist() == [2]
    assert tokens[0].tolist() == [0, 7]


def test_padding_nodes_are_never_accepted():
    # One depth and two tokens: nodes 3 and 4 of a budget of 4 do not exist.
    log_probs = torch.log(torch.tensor([[[0.5, 0.5]]]))
    tree = build((log_probs, torch.tensor([[[1, 2]]]), 4), root=9)
    assert (tree.scores[0, 3:] == NEG_INF).all()
    assert not tree.mask[0, :3, 3:].any(), "no node sees a padding node"
    target = torch.full((1, 5), 9)  # the padding nodes' token
    _, commit_lens, tokens = utils.walk_ddtree(tree, target, 2)
    assert commit_lens.tolist() == [1]
    assert tokens[0, 0] == 9


def target_choices(tree, generator):
    """Choices that follow a child most of the time, so that paths get long."""
    bs, num_nodes = tree.tokens.shape
    target = torch.randint(0, 40, (bs, num_nodes), generator=generator)
    for b in range(bs):
        for node in range(num_nodes):
            children = (tree.parents[b] == node).nonzero().flatten().tolist()
            children = [c for c in children if c]
            if children and torch.rand((), generator=generator) < 0.8:
                pick = children[int(torch.randint(0, len(children), (), generator=generator))]
                target[b, node] = tree.tokens[b, pick]
    return target


@settings(max_examples=100)
@given(marginals(), st.integers(0, 2**31))
def test_walk_and_commit(case, seed):
    tree = build(case)
    num_depths, budget = case[0].shape[1], case[2]
    generator = torch.Generator().manual_seed(seed)
    bs, num_nodes = tree.tokens.shape
    target = target_choices(tree, generator)
    path_len = utils.ddtree_path_len(num_depths, budget)
    path, commit_lens, tokens = utils.walk_ddtree(tree, target, path_len)
    # Scattered slots, as they are after a few allocations.
    slots = torch.randperm(bs * num_nodes, generator=generator).view(bs, num_nodes) + 1
    source, dest, draft_dest = utils.ddtree_commit_slots(path, commit_lens, slots)
    kv = torch.zeros(bs * num_nodes + 1, dtype=torch.int64)
    kv[slots] = torch.arange(bs * num_nodes).view(bs, num_nodes)
    kv[dest] = kv[source]
    for b in range(bs):
        valid = (tree.scores[b] > NEG_INF).tolist()
        expected = walk(tree.tokens[b], tree.parents[b], valid, target[b])
        n = int(commit_lens[b])
        assert path[b, :n].tolist() == expected
        assert path[b, n:].tolist() == list(range(n, path_len))
        assert tokens[b, :n].tolist() == [int(target[b, node]) for node in expected]
        moved = kv[slots[b, :n]].tolist()
        assert moved == [b * num_nodes + node for node in expected]
        assert draft_dest[b].tolist() == slots[b, :n].tolist() + [0] * (path_len - n)


def test_commit_check_catches_a_prefix_gather():
    """Negative control: keeping the first nodes is not keeping the path's nodes."""
    log_probs = torch.log(torch.tensor([[[0.6, 0.4], [0.9, 0.1]]]))
    tree = build((log_probs, torch.tensor([[[1, 2], [3, 4]]]), 4))
    # Follow the second sibling and its child.
    second = tree.tokens[0].tolist().index(2)
    child = next(n for n in range(5) if tree.parents[0, n] == second and tree.tokens[0, n] == 3)
    target = torch.zeros(1, 5, dtype=torch.int64)
    target[0, 0], target[0, second], target[0, child] = 2, 3, 7
    path, _commit_lens, tokens = utils.walk_ddtree(tree, target, 3)
    assert path[0].tolist() == [0, second, child]
    assert path[0].tolist() != [0, 1, 2]
    assert tokens[0].tolist() == [2, 3, 7]
    hidden = torch.arange(5.0).view(1, 5, 1)
    kept = utils.gather_path(hidden, path)
    assert kept.flatten().tolist() == [0.0, float(second), float(child)]
    assert not torch.equal(kept, hidden[:, :3])


def test_verify_mask_layout():
    tree_mask = torch.tensor([[[True, False], [True, True]], [[True, False], [True, True]]])
    flat = utils.build_verify_mask(tree_mask, torch.tensor([3, 1]))
    assert flat.shape == (2 * (3 + 2) + 2 * (1 + 2),)
    assert flat[:5].tolist() == [True, True, True, True, False]
    assert flat[5:10].tolist() == [True] * 5
    assert flat[10:13].tolist() == [True, True, False]


def test_expected_lens_are_prefix_sums():
    scores = torch.log(torch.tensor([[1.0, 0.5, 0.25, 0.125]]))
    lens = utils.ddtree_expected_lens(scores, (0, 1, 3))
    assert torch.allclose(lens, torch.tensor([[1.0, 1.5, 1.875]]))


def test_top_tokens_of_bfloat16_are_not_rounded_again():
    logits = (torch.randn(7, 50) * 8).bfloat16()
    expected = utils.ddtree_top_tokens(logits.float(), 9)
    log_probs, token_ids = utils.ddtree_top_tokens(logits, 9)
    assert torch.equal(log_probs, expected[0]) and log_probs.dtype == torch.float32
    assert torch.equal(logits.gather(1, token_ids), logits.gather(1, expected[1])), "in any order where they are equal"


@settings(max_examples=60)
@given(st.sampled_from([1, 2, 40, 3000]), st.integers(1, 63), st.sampled_from([1, 3, 30, 600]), st.integers(0, 2**31))
def test_top_tokens_are_normalised(vocab, num_tokens, scale, seed):
    logits = torch.randn(4, vocab, generator=torch.Generator().manual_seed(seed)) * scale
    log_probs, token_ids = utils.ddtree_top_tokens(logits, num_tokens)
    assert log_probs.shape == (4, min(num_tokens, vocab))
    assert (log_probs[:, :-1] >= log_probs[:, 1:]).all()
    assert (log_probs <= 0).all(), "a child above its parent would come before it"
    exact = logits.double().log_softmax(-1)
    # Four roundings: of the sum, its log, the log of the sum as a whole, and the difference; each of 2^-24 of numbers
    # up to the largest logit and the log of the vocabulary.
    bound = 4 * 2**-24 * (float(logits.abs().max()) + math.log(vocab) + 1)
    assert (log_probs - exact.gather(1, token_ids)).abs().max() <= bound
    assert torch.equal(exact.gather(1, token_ids), exact.sort(dim=-1, descending=True).values[:, :num_tokens])
