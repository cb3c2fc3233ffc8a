"""What depends on ranks: two processes with gloo, each with its shard of the real vocab-parallel head."""

import multiprocessing
import socket
import traceback
from types import SimpleNamespace

import pytest
import torch
from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo
from sglang.srt.speculative import ddtree_sampling, ddtree_step, ddtree_top_scores
from sglang.srt.speculative import ddtree_utils as utils

HIDDEN, DEPTHS = 8, 3


def make_head(vocab, org, kind):
    """The whole weight [vocab, H] and draft features [2 * L, H], the same on all ranks."""
    generator = torch.Generator().manual_seed(vocab)
    weight = torch.randn(vocab, HIDDEN, generator=generator)
    hidden = torch.randn(2 * DEPTHS, HIDDEN, generator=generator)
    if kind == "ties":  # small whole numbers: equal logits in both shards
        weight, hidden = weight.round(), hidden.round()
    elif kind == "zero":  # token 0 is the most probable one everywhere
        weight[0] = 3 * hidden.sum(0)
        hidden = hidden.sum(0).repeat(2 * DEPTHS, 1)
    return weight, hidden


def tree_of(log_probs, token_ids, budget):
    shape = (2, DEPTHS, -1)
    return utils.build_ddtree(
        log_probs=log_probs.view(shape),
        token_ids=token_ids.view(shape),
        root_tokens=torch.tensor([0, 5]),
        budget=budget,
    )


def _rank(rank, world, port, case, queue):
    try:
        queue.put((rank, _run(rank, world, port, case)))
    except Exception:
        queue.put((rank, traceback.format_exc()))


def _run(rank, world, port, case):
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.vocab_parallel_embedding import ParallelLMHead
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    set_global_server_args_for_scheduler(ServerArgs(model_path="dummy", device="cpu"))
    parallel_state.init_distributed_environment(
        world_size=world, rank=rank, local_rank=rank, backend="gloo", distributed_init_method=f"tcp://127.0.0.1:{port}"
    )
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=world, backend="gloo")
    vocab, org, budget, kind = case
    weight, hidden = make_head(vocab, org, kind)
    head = ParallelLMHead(vocab, HIDDEN, params_dtype=torch.float32, org_num_embeddings=org)
    shard = head.shard_indices
    head.weight.data.fill_(50.0)  # padding rows would win every comparison
    num_org, num_added = shard.num_org_elements, shard.num_added_elements
    start = shard.org_vocab_start_index
    head.weight.data[:num_org] = weight[start : start + num_org]
    padded, start = shard.num_org_elements_padded, shard.added_vocab_start_index
    head.weight.data[padded : padded + num_added] = weight[start : start + num_added]

    step = object.__new__(ddtree_step.DDTreeStep)
    grouped = num_org >= 32768  # as on a GPU
    step.top_scores = ddtree_top_scores.ddtree_top_scores_triton if grouped else utils.ddtree_top_scores
    step.lm_head = head
    tree = tree_of(*step._top_tokens(hidden, budget), budget)

    # A sampler that chooses differently on each rank.
    batch = SimpleNamespace(seq_lens=torch.tensor([3, 4]), sampling_info=_sampling_info())
    chosen = ddtree_sampling.choose_target_tokens(
        batch=batch,
        tree=tree,
        logits=torch.zeros(tree.tokens.numel(), vocab),
        sampler=lambda *args, **kwargs: torch.full((tree.tokens.numel(),), 7 + rank, dtype=torch.int32),
        tp_group=parallel_state.get_tp_group(),
    )
    return [x.tolist() for x in tree], chosen.unique().tolist(), num_org + num_added


def _sampling_info():
    ones = torch.ones(2, 1)
    return SamplingBatchInfo(
        temperatures=ones,
        top_ps=ones[:, 0],
        top_ks=ones[:, 0].int(),
        min_ps=ones[:, 0],
        is_all_greedy=False,
        need_top_p_sampling=False,
        need_top_k_sampling=False,
        need_min_p_sampling=False,
        vocab_size=8,
        penalizer_orchestrator=SimpleNamespace(is_required=False),
    )


def run_ranks(case, world=2):
    # Forked: the engine is imported already.
    context = multiprocessing.get_context("fork")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    queue = context.Queue()
    ranks = [context.Process(target=_rank, args=(rank, world, port, case, queue)) for rank in range(world)]
    for process in ranks:
        process.start()
    results = dict(queue.get(timeout=120) for _ in ranks)
    for process in ranks:
        process.join(30)
    for result in results.values():
        assert not isinstance(result, str), result
    return [results[rank] for rank in range(world)]


@pytest.mark.parametrize(("vocab", "org", "budget", "kind"), [
    (100, 100, 7, "smooth"),  # padded to 128: shards of 64 and 36
    (100, 100, 60, "smooth"),  # more tokens wanted than the second shard has
    (64, 64, 63, "zero"),
    (140, 100, 40, "smooth"),  # 40 added tokens, after the padding of the first 100
    (96, 96, 30, "ties"),
    (40, 40, 63, "smooth"),  # the second shard has 8 tokens only; fewer than the budget in all
    (20, 20, 7, "smooth"),  # the second shard has none
    (70001, 70001, 63, "smooth"),  # shards of which the best tokens are found by groups
])  # fmt: skip
def test_tree_of_two_ranks_is_the_tree_of_one(vocab, org, budget, kind):
    (first, chosen, size), (second, also_chosen, other_size) = run_ranks((vocab, org, budget, kind))
    assert first == second, "the ranks agree"
    assert size + other_size == vocab and chosen == also_chosen == [7]

    weight, hidden = make_head(vocab, org, kind)
    expected = tree_of(*utils.ddtree_top_tokens(hidden @ weight.T, budget), budget)
    tree = utils.DDTree(*map(torch.tensor, first))
    torch.testing.assert_close(tree.scores, expected.scores)
    assert (tree.tokens[tree.scores > float("-inf")] < vocab).all()
    if kind != "ties":  # equal logits may come in any order
        for name in ("tokens", "parents", "depths", "mask"):
            assert torch.equal(getattr(tree, name), getattr(expected, name)), name
    if kind == "zero":
        assert tree.tokens[0, 1] == 0 and tree.parents[0, 2] == 1, "token 0 is a token, and its children hang below it"
