import pytest
from sglang.srt.speculative.ddtree_budget import AutoBudget, FixedBudget, auto_shapes

# Milliseconds measured on one GPU at context lengths 256 and 4096.
COSTS = {
    (1, 0): [4.8, 5.0], (1, 7): [5.7, 6.1], (1, 15): [5.7, 6.0], (1, 31): [6.0, 6.5], (1, 63): [6.2, 7.1],
    (16, 0): [5.1, 8.5], (16, 7): [6.9, 11.4], (16, 15): [8.7, 12.7], (16, 31): [12.7, 20.3],
    (32, 0): [5.3, 9.4], (32, 7): [9.8, 19.3],
}  # fmt: skip
SIZES = (0, 7, 15, 31, 63)
# What good drafts promise for each size, the bonus token included.
PROMISED = (1.0, 3.4, 4.1, 4.5, 4.8)


def learned(promise=PROMISED, share=1.0, steps=200):
    budget = AutoBudget(COSTS, [256, 4096], 63)
    for _ in range(steps):
        budget.update(63, promise, 1 + share * (promise[-1] - 1))
    return budget


def test_fixed():
    budget = FixedBudget(31)
    assert budget.choose(1, 100) == budget.choose(64, 100000) == 31
    assert budget.sizes == (31,)


def test_large_trees_where_they_are_cheap_and_small_ones_where_not():
    budget = learned()
    assert budget.choose(1, 256) == 63
    assert budget.choose(16, 256) == 7
    assert budget.choose(9, 256) == 7, "padded to the next measured batch size"


def test_plain_decoding_where_drafts_do_not_pay():
    useless = learned(promise=(1.0, 1.05, 1.06, 1.07, 1.08))
    assert useless.choose(32, 256) == 0
    assert useless.choose(1, 256) == 0
    # The draft promises much, the target takes little of it.
    assert learned(share=0.02).choose(32, 256) == 0


def test_a_broken_tree_does_not_end_drafting():
    """One logit of +inf makes its row's probabilities NaN, which count as the smallest whole number."""
    budget = learned()
    budget.update(63, (-(2.0**43),) * len(SIZES), 1.0)
    budget.update(63, (2.0**43,) * len(SIZES), 5.0)
    for _ in range(100):
        best = budget.choose(1, 256)
        budget.update(best, PROMISED[: SIZES.index(best) + 1], PROMISED[SIZES.index(best)])
    assert budget.choose(1, 256) == 63


def test_longer_contexts_cost_more():
    budget = learned()
    assert budget.cost(16, 7, 4096) == pytest.approx(11.4)
    assert budget.cost(16, 7, 256) < budget.cost(16, 7, 1000) < budget.cost(16, 7, 8000)
    assert budget.cost(16, 63, 256) == float("inf"), "not captured"


def test_steps_of_small_trees_scale_the_larger_estimates():
    budget = learned()
    before = dict(budget.drafts)
    for _ in range(200):
        budget.update(7, (*PROMISED[:1], 1 + (PROMISED[1] - 1) / 2), 1.0)
    assert budget.drafts[63] == pytest.approx(before[63] / 2, rel=0.05)


def test_probes_beyond_the_best_size():
    budget = learned()
    assert len({budget.choose(16, 256) for _ in range(64)}) > 1


def test_shapes():
    shapes = auto_shapes([1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 32], 63)
    assert {bs for bs, _ in shapes} == {1, 2, 3, 4, 6, 8, 16, 24, 32}
    assert {b for bs, b in shapes if bs == 1} == set(SIZES)
    assert max(bs * (b + 1) for bs, b in shapes) <= 1024
    assert {(32, 0), (32, 7)} <= set(shapes)


def test_batches_beyond_the_captured_ones_do_not_verify_too_much():
    """They run eagerly; with trees of 63 nodes the logits of 200 requests would take gigabytes."""
    costs = {(bs, b): [5.0 + b / 100] for bs in (1, 4) for b in SIZES}
    budget = AutoBudget(costs, [256], 63)
    for _ in range(50):
        budget.update(63, PROMISED, PROMISED[-1])
    assert budget.choose(4, 256) == 63
    assert budget.choose(16, 256) == 63
    assert budget.choose(48, 256) == 15
    assert budget.choose(200, 256) == 7
