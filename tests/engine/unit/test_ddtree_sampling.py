"""Penalties at tree nodes equal those of plain decoding after the same tokens."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.sampling import penaltylib
from sglang.srt.speculative import ddtree_sampling
from sglang.srt.speculative import ddtree_utils as utils

VOCAB = 12


def make_req(output_ids, **params):
    defaults = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
        "stop_token_ids": {3},
    }
    return SimpleNamespace(
        output_ids=list(output_ids),
        sampling_params=SimpleNamespace(**{**defaults, **params}),
        tokenizer=SimpleNamespace(additional_stop_token_ids=None, eos_token_id=0),
    )


def orchestrator_for(reqs):
    batch = SimpleNamespace(reqs=reqs, device="cpu")

    # The orchestrator keeps a weak reference only.
    class Batch:
        pass

    holder = Batch()
    holder.reqs, holder.device = batch.reqs, "cpu"
    orchestrator = penaltylib.BatchedPenalizerOrchestrator(
        vocab_size=VOCAB,
        batch=holder,
        penalizers={
            penaltylib.BatchedFrequencyPenalizer,
            penaltylib.BatchedMinNewTokensPenalizer,
            penaltylib.BatchedPresencePenalizer,
            penaltylib.BatchedRepetitionPenalizer,
        },
    )
    return holder, orchestrator


def make_tree():
    # Siblings, a repeated token on one path, and the same token on two branches.
    tokens = torch.tensor([[4, 5, 6, 5, 4, 0]] * 2)
    parents = torch.tensor([[0, 0, 0, 1, 2, 3]] * 2)
    depths = torch.tensor([[0, 1, 1, 2, 2, 3]] * 2)
    mask = utils.build_ancestor_mask(parents, 3)
    return utils.DDTree(tokens, parents, depths, torch.zeros(2, 6), mask)


@pytest.mark.parametrize(
    "params",
    [
        {"frequency_penalty": 0.7},
        {"presence_penalty": 0.4},
        {"repetition_penalty": 1.3},
        {"min_new_tokens": 5},
        {"frequency_penalty": 0.2, "presence_penalty": -0.3, "min_new_tokens": 4},
    ],
)
def test_penalties_follow_the_path(params):
    reqs = [make_req([5, 4], **params), make_req([7, 7, 4])]
    _holder, orchestrator = orchestrator_for(reqs)
    tree = make_tree()
    logits = torch.randn(2 * 6, VOCAB, generator=torch.Generator().manual_seed(0))
    raw = logits.clone().view(2, 6, VOCAB)
    ddtree_sampling._apply_tree_penalties(reqs, SimpleNamespace(penalizer_orchestrator=orchestrator), tree, logits)
    for b in range(2):
        for node in range(6):
            path = [n for n in range(1, 6) if tree.mask[b, node, n]]
            extra = [int(tree.tokens[b, n]) for n in path]
            # Plain decoding: feed the same tokens one by one, for this request alone.
            alone = [make_req([], **vars(reqs[b].sampling_params))]
            _keep, plain = orchestrator_for(alone)
            for token in reqs[b].output_ids + extra:
                plain.cumulate_output_tokens(torch.tensor([token]))
            expected = raw[b, node : node + 1].clone()
            for cls in orchestrator.penalizers:  # the same order
                plain.penalizers[cls].apply(expected)
            got = logits.view(2, 6, VOCAB)[b, node]
            torch.testing.assert_close(got, expected[0], msg=f"request {b}, node {node}")
