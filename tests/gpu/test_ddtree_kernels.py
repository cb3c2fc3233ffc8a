"""The Triton kernels against their torch versions: the checks of ``verify --gpu`` with more shapes."""

import pytest

from ddtree_deploy.verify.gpu import kernels

DEVICE = "cuda"
SHAPES = [
    (1, 64, 64, 16, 64, 300),
    (1, 16, 32, 8, 128, 5000),
    (3, 32, 8, 2, 64, 77),
    (4, 8, 4, 4, 64, 0 + 4),
    (1, 128, 4, 1, 64, 1000),
]


@pytest.mark.parametrize("kind", kernels.KINDS)
@pytest.mark.parametrize(("bs", "num_depths", "vocab"), [(1, 15, 4096), (3, 15, 300), (2, 1, 5)])
@pytest.mark.parametrize("budget", [1, 15, 63, 127])
def test_build_and_walk(kind, bs, num_depths, vocab, budget):
    assert kernels.check_build_and_walk(DEVICE, kind, bs, num_depths, vocab, budget) >= 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("num_rows", "vocab", "num_tokens"),
    [(15, 1, 1), (15, 300, 63), (3, 8193, 511), (15, 32768, 7), (15, 32768, 511), (5, 151936, 511), (240, 151936, 15)],
)
def test_top_scores(num_rows, vocab, num_tokens, dtype):
    kernels.check_top_scores(DEVICE, dtype, num_rows, vocab, num_tokens)
    kernels.check_top_scores(DEVICE, dtype, num_rows, vocab, num_tokens, scale=0.01)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("num_splits", kernels.SPLITS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_tree_attention(shape, dtype, num_splits, masked):
    kernels.check_attention(DEVICE, dtype, shape, num_splits, masked)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(2, 16, 28, 4, 96, 200), (2, 8, 10, 2, 80, 50), (1, 32, 12, 2, 256, 90)])
def test_heads_of_other_sizes_and_groups_of_other_numbers(shape, dtype):
    kernels.check_attention(DEVICE, dtype, shape, num_splits=4)


def test_poisoned_sibling_does_not_move_the_other_branch():
    kernels.check_poisoned_sibling(DEVICE)


def test_padding_rows_do_not_disturb_the_others():
    kernels.check_padding_rows(DEVICE)


@pytest.mark.parametrize("shape", [(16, 64), (8, 128), (2, 64), (1, 96)], ids=str)
def test_moving_kv_in_place(shape):
    kernels.check_move(DEVICE, shape, num_layers=6, rounds=60)


def test_what_verify_runs():
    assert "KV moves in place" in kernels.run(DEVICE)
