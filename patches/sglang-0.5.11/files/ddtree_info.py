from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, List

import torch

from sglang.srt.mem_cache.common import (
    alloc_paged_token_slots_extend,
    alloc_token_slots,
    get_last_loc,
)
from sglang.srt.speculative.ddtree_utils import DDTree, build_verify_mask
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.utils.common import ceil_align

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):
    """Inputs for a target-model verify forward over a draft tree (spec-v1).

    `draft_token_num` is the number of nodes D including the root, `positions` are
    prefix length + depth (not + node index), and `tree_mask` is the ancestor-or-self
    mask. Backends that read `custom_mask` need `build_custom_mask`; the DDTree attention
    backend reads `tree_mask` itself.
    """

    tree_mask: torch.Tensor | None = None  # [bs, D, D] bool

    @classmethod
    def from_tree(cls, tree: DDTree, prefix_lens: torch.Tensor) -> DDTreeVerifyInput:
        """Describe the verify forward of `tree` after `prefix_lens` [bs] cached tokens."""
        return cls(
            draft_token=tree.tokens.flatten(),
            positions=(prefix_lens.unsqueeze(1) + tree.depths).flatten(),
            draft_token_num=tree.tokens.shape[1],
            tree_mask=tree.mask,
        )

    def build_custom_mask(self, prefix_lens_cpu: torch.Tensor) -> None:
        """Fill `custom_mask` for backends with the flat layout. Runs on the host."""
        self.custom_mask = build_verify_mask(self.tree_mask, prefix_lens_cpu)


def reserve_tree_slots(batch: ScheduleBatch, num_slots: int, page_size: int) -> None:
    """Give every request KV slots for `num_slots` tokens past its committed length.

    Slots of rejected nodes are not freed after a step: they stay at the request's next
    positions in `req_to_token` and are written again by the next tree. So a step only
    allocates as many slots as the last one committed, and never returns any before the
    request ends (`release_kv_cache` frees the part past `kv_committed_len`).

    Args:
        batch: the decode batch; `kv_allocated_len` of its requests is updated.
        num_slots: tokens to cover per request, at least the nodes of the largest tree.
        page_size: of the KV pool; whole pages are reserved if it is above 1.
    Raises:
        RuntimeError: if the pool is exhausted (the scheduler retracts before that).
    """
    starts = [req.kv_allocated_len for req in batch.reqs]
    ends = [
        max(start, ceil_align(int(seq_len) + num_slots, page_size))
        for start, seq_len in zip(starts, batch.seq_lens_cpu.tolist(), strict=True)
    ]
    num_new = sum(ends) - sum(starts)
    if num_new == 0:
        return

    req_to_token = batch.req_to_token_pool.req_to_token
    if page_size == 1:
        slots = alloc_token_slots(batch.tree_cache, num_new)
    else:
        # Two tensors: a row of one is aligned for even batches only, and the allocator's
        # kernel would be compiled for both.
        starts_cpu = torch.tensor(starts, dtype=torch.int64)
        ends_cpu = torch.tensor(ends, dtype=torch.int64)
        starts_gpu = _to_device(starts_cpu, batch.device)
        slots = alloc_paged_token_slots_extend(
            batch.tree_cache,
            starts_gpu,
            starts_cpu,
            _to_device(ends_cpu, batch.device),
            ends_cpu,
            get_last_loc(req_to_token, batch.req_pool_indices, starts_gpu),
            num_new,
        )
    # `assign_req_to_token_pool` would be compiled anew for batch sizes and for how its
    # arguments are aligned, hundreds of milliseconds each in the middle of serving.
    width = req_to_token.shape[1]
    cells = [
        req.req_pool_idx * width + position
        for req, start, end in zip(batch.reqs, starts, ends)
        for position in range(start, end)
    ]
    cells = _to_device(torch.tensor(cells, dtype=torch.int64), batch.device)
    req_to_token.view(-1)[cells] = slots.to(req_to_token.dtype)
    for req, end in zip(batch.reqs, ends):
        req.kv_allocated_len = end


def _to_device(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Without waiting for the device."""
    if device == "cpu":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def ddtree_new_slots(reqs: List, num_slots: int, page_size: int) -> int:
    """KV slots that `reserve_tree_slots` will allocate in the next decode step."""
    return sum(
        max(
            0,
            ceil_align(req.kv_committed_len + num_slots, page_size)
            - ceil_align(req.kv_allocated_len, page_size),
        )
        for req in reqs
    )


def append_committed_tokens(reqs: List[Req], commits: List[List[int]]) -> List[int]:
    """Append the committed tokens to the requests, up to the first that ends one.

    A stop token, stop string or `max_new_tokens` inside the path truncates the output
    and the committed KV at the same node. The request leaves the batch then, so the
    device state past that node is never read.

    Args:
        reqs: the requests of the decode batch.
        commits: per request [commit_len, next root, token, token, ...]; tokens past
            commit_len are ignored. A commit_len of 0 means that no step ran.
    Returns:
        accepted drafts per request
    """
    num_accepted_drafts_per_req: List[int] = []
    for req, (commit_len, _, *tokens) in zip(reqs, commits, strict=True):
        if commit_len == 0:
            num_accepted_drafts_per_req.append(0)
            continue

        appended = 0
        for token_id in tokens[:commit_len]:
            req.output_ids.append(token_id)
            appended += 1
            req.check_finished()
            if req.finished():
                break

        req.kv_committed_len += appended
        accepted = max(0, appended - 1)
        num_accepted_drafts_per_req.append(accepted)
        req.spec_verify_ct += 1
        req.spec_accepted_drafts += accepted
        req.update_spec_acceptance_histogram(accepted)

    return num_accepted_drafts_per_req
