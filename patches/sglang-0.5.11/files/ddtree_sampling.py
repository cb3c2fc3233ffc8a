"""The target's own choice at every node of a draft tree.

DDTree is lossless because each node is decided exactly as plain decoding would decide
it: the same penalties (counting the tokens on the way to the node), logit bias, custom
logit processors and the same sampler, one row per node.
"""

from __future__ import annotations

import dataclasses
from copy import copy
from typing import TYPE_CHECKING, Any, Dict, List, Optional

import torch

from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.sampling.penaltylib import (
    BatchedFrequencyPenalizer,
    BatchedMinNewTokensPenalizer,
    BatchedPresencePenalizer,
    BatchedRepetitionPenalizer,
)
from sglang.srt.speculative.ddtree_utils import DDTree

if TYPE_CHECKING:
    from sglang.srt.distributed import GroupCoordinator
    from sglang.srt.layers.sampler import Sampler
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo


def needs_ddtree_sampler(sampling_info: SamplingBatchInfo) -> bool:
    """Whether an argmax over the raw logits is not enough for this batch."""
    return not sampling_info.is_all_greedy or needs_logit_edits(sampling_info)


def needs_logit_edits(sampling_info: SamplingBatchInfo) -> bool:
    return (
        sampling_info.has_custom_logit_processor
        or sampling_info.logit_bias is not None
        or sampling_info.penalizer_orchestrator.is_required
    )


def choose_target_tokens(
    *,
    batch: ScheduleBatch,
    tree: DDTree,
    logits: torch.Tensor,
    sampler: Sampler,
    tp_group: GroupCoordinator,
) -> torch.Tensor:
    """Decide the next token after every node with the request's sampling parameters.

    Args:
        batch: the decode batch, in the order of `tree`.
        tree: [bs, D] draft trees.
        logits: [bs * D, V] target logits; modified in place.
        sampler: the sampler of the target model runner.
        tp_group: of the target; all ranks get the first one's choices.
    Returns:
        [bs, D] int64 token ids.
    """
    bs, num_nodes = tree.tokens.shape
    sampling_info = batch.sampling_info
    if len(sampling_info) != bs:
        raise RuntimeError(
            "DDTREE verify sampling_info size mismatch: "
            f"len(sampling_info)={len(sampling_info)}, bs={bs}."
        )

    # Same order as plain decoding: penalties and bias, then custom logit processors.
    if sampling_info.penalizer_orchestrator.is_required:
        _apply_tree_penalties(batch.reqs, sampling_info, tree, logits)
    if sampling_info.logit_bias is not None:
        logits.view(bs, num_nodes, -1).add_(sampling_info.logit_bias.unsqueeze(1))
    if sampling_info.has_custom_logit_processor:
        _apply_custom_processors(sampling_info, tree, logits)

    token_ids = sampler(
        LogitsProcessorOutput(next_token_logits=logits),
        _repeat_sampling_info(sampling_info, num_nodes),
        return_logprob=False,
        top_logprobs_nums=[],
        token_ids_logprobs=[],
        positions=(batch.seq_lens.unsqueeze(1) + tree.depths).flatten(),
    )
    # A sample that rounds differently on one rank would send the ranks different ways.
    token_ids = tp_group.broadcast(token_ids.to(torch.int64).contiguous())
    return token_ids.view(bs, num_nodes)


def _repeat_sampling_info(
    sampling_info: SamplingBatchInfo, repeats: int
) -> SamplingBatchInfo:
    """One row per node. Logit edits are already applied and left out."""

    def rows(x):
        return None if x is None else torch.repeat_interleave(x, repeats, dim=0)

    return dataclasses.replace(
        sampling_info,
        temperatures=rows(sampling_info.temperatures),
        top_ps=rows(sampling_info.top_ps),
        top_ks=rows(sampling_info.top_ks),
        min_ps=rows(sampling_info.min_ps),
        sampling_seed=rows(sampling_info.sampling_seed),
        penalizer_orchestrator=None,
        logit_bias=None,
        has_custom_logit_processor=False,
        custom_logit_processor=None,
    )


def _apply_custom_processors(
    sampling_info: SamplingBatchInfo, tree: DDTree, logits: torch.Tensor
) -> None:
    """Call custom logit processors with one row per node.

    A processor that looks at its request finds the output ids that plain decoding would
    have after the tokens on the way to the node. What it writes to the request's
    attributes or parameters is lost.
    """
    bs, num_nodes = tree.tokens.shape
    logits = logits.view(bs, num_nodes, -1)
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    for processor, batch_mask in sampling_info.custom_logit_processor.values():
        for row in batch_mask.nonzero().flatten().tolist():
            paths: List[List[int]] = [[]]
            for node in range(1, num_nodes):
                paths.append(paths[parents[row][node]] + [tokens[row][node]])
            params = [_params_at(sampling_info.custom_params[row], p) for p in paths]
            logits[row] = processor(logits[row], params)


def _params_at(
    params: Optional[Dict[str, Any]], path: List[int]
) -> Optional[Dict[str, Any]]:
    """A processor's parameters at a node, with the tokens of `path` as output, too."""
    if params is None:
        return None
    params = dict(params)
    req = params.get("__req__")
    if req is not None:
        params["__req__"] = req = copy(req)
        req.output_ids = req.output_ids + path
    return params


def _apply_tree_penalties(
    reqs: List[Req],
    sampling_info: SamplingBatchInfo,
    tree: DDTree,
    logits: torch.Tensor,
) -> None:
    """Apply penalties as plain decoding would after the path to each node.

    What needs a copy of the logits takes one request at a time: the logits are the
    largest tensor of a step.

    The penalizers accumulate one token per step and request, which speculative decoding
    does not feed. They are evaluated here from the requests' output ids: first for all
    rows with the counts of the committed tokens, then again for the tokens of the tree,
    whose counts are higher below the nodes that carry them.
    """
    bs, num_nodes = tree.tokens.shape
    device = logits.device
    penalizers = sampling_info.penalizer_orchestrator.penalizers
    logits = logits.view(bs, num_nodes, -1)
    vocab_size = logits.shape[-1]

    counts = _output_counts(reqs, vocab_size, device)
    # Tokens on the path to each node; the root is already counted. [bs, D, D]
    on_path = tree.mask.clone()
    on_path[:, :, 0] = False
    path_tokens = tree.tokens.unsqueeze(1).expand(-1, num_nodes, -1)
    same = tree.tokens.unsqueeze(2) == tree.tokens.unsqueeze(1)
    path_counts = on_path.float() @ same.float() + counts.gather(
        1, tree.tokens
    ).unsqueeze(1)
    path_logits = logits.gather(2, path_tokens)

    for cls, penalizer in penalizers.items():
        if not penalizer.is_prepared():
            continue
        if cls is BatchedMinNewTokensPenalizer:
            # Counts output tokens, not token ids: the same for all tokens of a row.
            num_output = torch.tensor(
                [len(req.output_ids) for req in reqs], device=device
            ).unsqueeze(1)
            too_short = num_output + tree.depths < penalizer.min_new_tokens
            too_short = too_short.unsqueeze(2)
            stop_penalties = penalizer.stop_token_penalties
            for row in range(bs):
                logits[row].add_(torch.where(too_short[row], stop_penalties[row], 0.0))
            path_penalties = stop_penalties.gather(1, tree.tokens).unsqueeze(1)
            path_logits = path_logits + torch.where(too_short, path_penalties, 0.0)
        elif cls is BatchedFrequencyPenalizer:
            weight = penalizer.frequency_penalties.unsqueeze(1)
            logits.sub_(weight * counts.unsqueeze(1))
            path_logits = path_logits - weight * path_counts
        elif cls is BatchedPresencePenalizer:
            weight = penalizer.presence_penalties.unsqueeze(1)
            logits.sub_(weight * (counts > 0).unsqueeze(1))
            path_logits = path_logits - weight * (path_counts > 0)
        elif cls is BatchedRepetitionPenalizer:
            weight = penalizer.repetition_penalties.unsqueeze(1)
            for row in range(bs):
                logits[row].copy_(_scale(logits[row], weight[row], counts[row] > 0))
            path_logits = _scale(path_logits, weight, path_counts > 0)
        else:
            raise RuntimeError(f"DDTREE does not support the penalizer {cls.__name__}.")

    # `path_counts` is exact for every token of the tree, on the path or not, so tokens
    # that stand on several nodes of a row write the same value.
    logits.scatter_(2, path_tokens, path_logits)


def _output_counts(
    reqs: List[Req], vocab_size: int, device: torch.device
) -> torch.Tensor:
    """[bs, V] float32: how often each token stands in the output of each request."""
    rows = [i for i, req in enumerate(reqs) for _ in req.output_ids]
    cols = [token for req in reqs for token in req.output_ids]
    counts = torch.zeros((len(reqs), vocab_size), dtype=torch.float32, device=device)
    index = torch.tensor([rows, cols], dtype=torch.int64).to(device)
    return counts.index_put_(
        (index[0], index[1]), torch.ones((), device=device), accumulate=True
    )


def _scale(
    logits: torch.Tensor, weight: torch.Tensor, where: torch.Tensor
) -> torch.Tensor:
    scaled = torch.where(logits < 0, logits * weight, logits / weight)
    return torch.where(where, scaled, logits)
