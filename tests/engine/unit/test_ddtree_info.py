"""Slot reservation and truncation of a committed path."""

import random
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.mem_cache import allocator
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative import ddtree_info


class Pool:
    """Hands out slots 1, 2, 3, ...; page_size 1."""

    def __init__(self, size):
        self.free_slots = list(range(1, size + 1))

    def available_size(self):
        return len(self.free_slots)

    def alloc(self, num):
        if num > len(self.free_slots):
            return None
        taken, self.free_slots = self.free_slots[:num], self.free_slots[num:]
        return torch.tensor(taken, dtype=torch.int64)


def make_batch(lens, pool):
    rows = [2, 0, 1]
    reqs = [SimpleNamespace(kv_committed_len=n, kv_allocated_len=n, req_pool_idx=row) for n, row in zip(lens, rows)]
    req_to_token = torch.zeros(len(lens) + 2, 64, dtype=torch.int32)
    tree_cache = SimpleNamespace(
        token_to_kv_pool_allocator=pool,
        is_chunk_cache=lambda: True,
        available_and_evictable_str=lambda: "",
        pretty_print=lambda: None,
    )
    return SimpleNamespace(
        reqs=reqs,
        seq_lens_cpu=torch.tensor(lens),
        device="cpu",
        req_to_token_pool=SimpleNamespace(req_to_token=req_to_token),
        req_pool_indices=torch.tensor(rows[: len(lens)]),
        tree_cache=tree_cache,
        batch_size=lambda: len(lens),
    )


def test_reserve_covers_the_tree_and_only_grows_by_what_was_committed():
    pool = Pool(100)
    batch = make_batch([5, 0, 9], pool)
    assert ddtree_info.ddtree_new_slots(batch.reqs, 8, 1) == 24
    ddtree_info.reserve_tree_slots(batch, 8, 1)
    assert [r.kv_allocated_len for r in batch.reqs] == [13, 8, 17]
    table = batch.req_to_token_pool.req_to_token
    assert table[2, 5:13].tolist() == list(range(1, 9))
    assert table[0, 0:8].tolist() == list(range(9, 17))
    assert table[1, 9:17].tolist() == list(range(17, 25))

    for req, commit in zip(batch.reqs, (3, 1, 0)):
        req.kv_committed_len += commit
    batch.seq_lens_cpu += torch.tensor([3, 1, 0])
    assert ddtree_info.ddtree_new_slots(batch.reqs, 8, 1) == 4
    ddtree_info.reserve_tree_slots(batch, 8, 1)
    assert pool.available_size() == 100 - 28
    assert table[2, 13:16].tolist() == [25, 26, 27]
    assert table[0, 8].tolist() == 28
    assert table[2, 5:13].tolist() == list(range(1, 9)), "earlier slots stay"


def test_whole_pages_are_reserved():
    reqs = [SimpleNamespace(kv_committed_len=17, kv_allocated_len=17)]
    assert ddtree_info.ddtree_new_slots(reqs, 32, 16) == 64 - 32


@pytest.mark.parametrize("page_size", [1, 4, 16, 64])
def test_pages_over_many_steps(page_size):
    """The engine's own allocator: every slot has one owner, the scheduler's forecast is exact, nothing is lost."""
    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", device="cpu", attention_backend="torch_native"))
    kinds = (allocator.TokenToKVPoolAllocator, allocator.PagedTokenToKVPoolAllocator)
    args = (torch.float32, "cpu", None, False)
    pool = kinds[0](4096, *args) if page_size == 1 else kinds[1](4096, page_size, *args)
    rng, lens, num_slots = random.Random(page_size), [1, 37, 64], 24
    batch = make_batch([0, 0, 0], pool)
    batch.req_to_token_pool.req_to_token = torch.zeros(5, 512, dtype=torch.int32)
    pool.page_size = page_size
    table = batch.req_to_token_pool.req_to_token

    def check():
        owned = [table[row, : req.kv_allocated_len] for row, req in zip([2, 0, 1], batch.reqs)]
        for slots in owned:
            assert (slots % page_size == torch.arange(len(slots)) % page_size).all(), "pages are whole"
        pages = torch.cat([slots[::page_size] // page_size for slots in owned])
        assert len(pages.unique()) == len(pages) and (torch.cat(owned) >= page_size * (page_size > 1)).all()

    def grow(num):
        # The scheduler's forecast is made with the committed lengths.
        before, forecast = pool.available_size(), ddtree_info.ddtree_new_slots(batch.reqs, num, page_size)
        ddtree_info.reserve_tree_slots(batch, num, page_size)
        assert before - pool.available_size() == forecast
        check()

    for req, length in zip(batch.reqs, lens):  # the prompts
        slots = (
            pool.alloc(length)
            if page_size == 1
            else pool.alloc_extend(*[torch.tensor([x]) for x in (0, 0, length, length)], torch.tensor([-1]), length)
        )
        row = [2, 0, 1][batch.reqs.index(req)]
        table[row, :length] = slots.int()
        req.kv_committed_len = req.kv_allocated_len = length
    batch.seq_lens_cpu = torch.tensor(lens)
    for _ in range(25):
        grow(num_slots)
        commits = [rng.randrange(0, 17) for _ in lens]
        kept = [table[row].clone() for row in (2, 0, 1)]
        for req, commit in zip(batch.reqs, commits):
            req.kv_committed_len += commit
        batch.seq_lens_cpu += torch.tensor(commits)
        for row, slots, req in zip((2, 0, 1), kept, batch.reqs):
            assert torch.equal(table[row, : req.kv_allocated_len], slots[: req.kv_allocated_len])
    for row, req in zip([2, 0, 1], batch.reqs):
        pool.free(table[row, : req.kv_allocated_len].long())
    assert pool.available_size() == 4096


@pytest.mark.parametrize("page_size", [4, 16])
def test_the_allocation_kernel_of_a_gpu_gives_the_same_slots(page_size):
    """In Triton's interpreter, against the torch version that a CPU uses."""
    starts, ends = torch.tensor([0, 5, 16, 31, 7]), torch.tensor([3, 40, 16, 33, 8])
    last_loc = torch.tensor(
        [-1, 4, page_size * 40 - 1, 30 % page_size + page_size * 50, 6 % page_size + page_size * 60]
    )
    pages = torch.arange(100, 140)
    num = int((ends - starts).sum())
    expected, got = torch.full((num,), -5), torch.full((num,), -7)
    allocator.alloc_extend_naive(starts, ends, last_loc, pages, expected, page_size, "cpu")
    allocator.alloc_extend_kernel[(5,)](starts, ends, last_loc, pages, got, 8, page_size)
    assert torch.equal(expected, got)


class Req:
    def __init__(self, stop_after=None):
        self.output_ids, self.stop_after = [1], stop_after
        self.kv_committed_len = 10
        self.spec_verify_ct = self.spec_accepted_drafts = 0
        self.histogram = []

    def check_finished(self):
        self.done = self.stop_after is not None and len(self.output_ids) > self.stop_after

    def finished(self):
        return self.done

    def update_spec_acceptance_histogram(self, accepted):
        self.histogram.append(accepted)


@pytest.mark.parametrize("depth", range(5))
def test_stop_inside_the_path_truncates_output_and_kv_together(depth):
    stopping, going = Req(stop_after=depth + 1), Req()
    commits = [[5, 24, 20, 21, 22, 23, 24, 99], [2, 31, 30, 31, 99, 99, 99, 99]]
    waiting = Req()
    commits.append([0, 0])
    accepted = ddtree_info.append_committed_tokens([stopping, going, waiting], commits)
    assert stopping.output_ids == [1, *range(20, 21 + depth)]
    assert stopping.kv_committed_len == 10 + depth + 1
    assert going.output_ids == [1, 30, 31] and going.kv_committed_len == 12
    assert accepted == [depth, 1, 0]
    assert waiting.output_ids == [1] and waiting.spec_verify_ct == 0
