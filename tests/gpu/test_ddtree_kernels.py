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
@pytest.mark.parametrize("budget", [15, 63])
def test_build_and_walk(kind, bs, num_depths, vocab, budget):
    assert kernels.check_build_and_walk(DEVICE, kind, bs, num_depths, vocab, budget) >= 1


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("num_splits", kernels.SPLITS)
@pytest.mark.parametrize("dtype", sorted(kernels.BOUNDS))
@pytest.mark.parametrize("shape", SHAPES)
def test_tree_attention(shape, dtype, num_splits, masked):
    kernels.check_attention(DEVICE, dtype, shape, num_splits, masked)


def test_poisoned_sibling_does_not_move_the_other_branch():
    kernels.check_poisoned_sibling(DEVICE)


def test_padding_rows_do_not_disturb_the_others():
    kernels.check_padding_rows(DEVICE)


@pytest.mark.parametrize("heads", [(16, 64), (8, 128), (2, 64)], ids=str)
def test_moving_kv_in_place(heads):
    """A slot of a path may be source and target: the path moves to the front of its own tree's slots."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    num_heads, head_dim = heads
    pool = MHATokenToKVPool(
        4096, 1, torch.bfloat16, num_heads, head_dim, 6, DEVICE, False, enable_kv_cache_copy=True
    )  # fmt: skip
    buffers = [*pool.k_buffer, *pool.v_buffer]
    generator = torch.Generator().manual_seed(0)
    for round_ in range(100):
        for buffer in buffers:
            buffer.normal_()
        bs, path_len = (1, 3, 32)[round_ % 3], 16
        source, target = [], []
        for row in range(bs):
            first = 1 + 64 * row
            source.append(first + torch.randperm(63, generator=generator)[: path_len - 1].sort().values)
            target.append(first + torch.arange(path_len - 1))
        source, target = torch.cat(source).to(DEVICE), torch.cat(target).to(DEVICE)
        expected = []
        for buffer in buffers:
            expected.append(buffer.clone())
            expected[-1][target] = buffer[source]
        pool.move_kv_cache(target, source)
        assert all(torch.equal(a, b) for a, b in zip(expected, buffers)), f"round {round_}, {bs} requests"


def test_what_verify_runs():
    assert "disturb nobody" in kernels.run(DEVICE)
