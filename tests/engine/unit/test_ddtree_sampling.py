"""Penalties at tree nodes equal those of plain decoding after the same tokens."""

from types import SimpleNamespace

import pytest
import torch
from sglang.srt.sampling import custom_logit_processor, penaltylib
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
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


class ThinkingBudget(custom_logit_processor.ThinkingBudgetLogitProcessor):
    THINKING_START_TOKEN_ID, THINKING_END_TOKEN_ID, NEW_LINE_TOKEN_ID = 7, 6, 5


@pytest.mark.parametrize("budget", range(5))
def test_custom_processors_see_the_output_at_each_node(budget):
    """The engine's own processor ends thinking by the output so far, which is another one at every node."""
    tree = make_tree()
    reqs = [SimpleNamespace(origin_input_ids=[7], output_ids=[4, 2], rid=0), SimpleNamespace(output_ids=[1])]
    params = [{"thinking_budget": budget, "__req__": reqs[0]}, None]
    info = SamplingBatchInfo(
        temperatures=torch.ones(2, 1),
        top_ps=torch.ones(2),
        top_ks=torch.ones(2).int(),
        min_ps=torch.zeros(2),
        is_all_greedy=True,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        vocab_size=VOCAB,
        penalizer_orchestrator=SimpleNamespace(is_required=False),
        has_custom_logit_processor=True,
        custom_params=params,
        custom_logit_processor={0: (ThinkingBudget(), torch.tensor([True, False]))},
    )
    logits = torch.randn(2 * 6, VOCAB, generator=torch.Generator().manual_seed(1))
    raw = logits.clone().view(2, 6, VOCAB)
    chosen = ddtree_sampling.choose_target_tokens(
        batch=SimpleNamespace(reqs=reqs, sampling_info=info, seq_lens=torch.tensor([3, 3])),
        tree=tree,
        logits=logits,
        sampler=lambda output, *_, **__: output.next_token_logits.argmax(-1),
        tp_group=SimpleNamespace(broadcast=lambda x: x),
    )
    for node in range(6):
        path = [int(tree.tokens[0, n]) for n in range(1, 6) if tree.mask[0, node, n]]
        plain = SimpleNamespace(origin_input_ids=[7], output_ids=[4, 2, *path])
        expected = ThinkingBudget()(raw[0, node : node + 1].clone(), [{"thinking_budget": budget, "__req__": plain}])
        assert int(chosen[0, node]) == int(expected.argmax()), f"node {node}, path {path}"
    assert torch.equal(chosen[1], raw[1].argmax(-1)), "the other request has no processor"
    assert reqs[0].output_ids == [4, 2]
