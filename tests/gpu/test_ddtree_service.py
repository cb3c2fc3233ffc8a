"""A DDTREE service beside plain decoding on one GPU: lossless, right samples, no leaks."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import service
from service import BOUND, NUM_DRAWS, NUM_PROMPTS, NUM_REQUESTS, gaps, outputs, prompts, tokens_per_step

from ddtree_deploy.verify.gpu.reference import Reference, bias, frequency_and_presence, not_before
from ddtree_deploy.verify.gpu.server import Client
from ddtree_deploy.verify.gpu.statistics import chi_square
from ddtree_deploy.verify.gpu.storm import storm

pytestmark = [
    pytest.mark.skipif(not (service.PAIR and service.PROMPTS), reason="DDTREE_GPU_PAIR, DDTREE_GPU_PROMPTS not set"),
    pytest.mark.timeout(1800),
]
FEW = min(NUM_PROMPTS, 24)


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    """(DDTREE, plain decoding)"""
    if os.environ.get("DDTREE_GPU_RUNNING"):
        port, log, plain_port, plain_log = os.environ["DDTREE_GPU_RUNNING"].split(",")
        yield Client(int(port), Path(log)), Client(int(plain_port), Path(plain_log))
        return
    folder = tmp_path_factory.mktemp("gpu")
    started = [service.start(folder, "ddtree", *service.DDTREE), service.start(folder, "plain")]
    try:
        for server in started:
            server.wait()
        yield tuple(started)
    finally:
        for server in started:
            server.stop()


@pytest.fixture(scope="module")
def plain_outputs(servers):
    _, plain = servers
    return outputs(plain.generate_all(prompts(NUM_PROMPTS), 32))


def in_order(engine) -> None:
    """Nothing is left, and the log has no trouble."""
    assert engine.wait_until_idle()["num_used_tokens"] == 0
    engine.flush()
    assert engine.trouble() == []


@pytest.mark.parametrize("concurrency", [1, 16])
def test_greedy_differs_only_at_near_ties(servers, plain_outputs, concurrency):
    ddtree, plain = servers
    inputs = prompts(NUM_PROMPTS)
    answers = ddtree.generate_all(inputs, concurrency)
    found = gaps(plain, inputs, outputs(answers), plain_outputs)
    print(
        f"\nconcurrency {concurrency}: {NUM_PROMPTS - len(found)} of {NUM_PROMPTS} identical, "
        f"largest gap {max(found, default=0):.4f}, {tokens_per_step(answers):.3f} tokens per verify step"
    )
    assert max(found, default=0) <= BOUND


def test_sampled_tokens_fit_the_target(servers):
    """Chi-square of the first three tokens; the last two are chosen in trees."""
    ddtree, plain = servers
    ids, top_k = prompts(4)[3], 4
    probabilities = {
        (a, b, c): pa * pb * pc
        for a, pa in service.next_token_probabilities(plain, ids, top_k).items()
        for b, pb in service.next_token_probabilities(plain, [*ids, a], top_k).items()
        for c, pc in service.next_token_probabilities(plain, [*ids, a, b], top_k).items()
    }
    answers = ddtree.generate_all([ids] * NUM_DRAWS, 32, max_new_tokens=3, temperature=1.0, top_k=top_k)
    counts = Counter(tuple(output) for output in outputs(answers))
    stray = sum(n for triple, n in counts.items() if triple not in probabilities)
    assert stray <= 0.01 * NUM_DRAWS, "near-ties at rank k only"
    fit = chi_square(counts, probabilities)
    print(f"\nchi2 {fit.chi2:.1f} over {fit.freedom} degrees of freedom, bound {fit.bound:.1f}")
    assert fit.freedom >= 2
    assert fit.fits


STOP = 202  # a line break, which answers of code have many of
PENALTIES = {
    "frequency and presence": (
        {"frequency_penalty": 0.5, "presence_penalty": 0.3},
        frequency_and_presence(0.5, 0.3),
    ),
    "bias": ({"logit_bias": {"120": 4.0, str(STOP): -100.0}}, bias({120: 4.0, STOP: -100.0})),
    "min_new_tokens": (
        {"min_new_tokens": 30, "stop_token_ids": [STOP], "ignore_eos": False},
        not_before(30, [STOP, 0]),
    ),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_penalties_and_bias_hold_at_every_node(servers, name):
    """Judged by transformers in float32: plain decoding tells no logits with penalties in them."""
    ddtree, _ = servers
    sampling, adjust = PENALTIES[name]
    inputs = prompts(min(FEW, 12))
    got = outputs(ddtree.generate_all(inputs, 4, **{"max_new_tokens": 60, **sampling}))
    judge = Reference(Path(str(service.PAIR)) / "target")
    rows = judge.gaps(inputs, got, [adjust] * len(inputs))
    free = max(max(row) for row in judge.gaps(inputs, got))
    same = sum(max(row) == 0.0 for row in rows)
    worst = max(max(row) for row in rows)
    print(f"\n{name}: {same} of {len(inputs)} have best tokens alone, largest gap {worst:.4f}, {free:.2f} without")
    assert worst <= BOUND
    assert free > BOUND, "the penalty changed an answer"


def test_stops_at_every_depth(servers):
    ddtree, _ = servers
    ids = prompts(6)[5]
    full = ddtree.generate(ids)["output_ids"]
    for length in range(1, 18):
        answer = ddtree.generate(ids, max_new_tokens=length)
        assert len(answer["output_ids"]) == length
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
    for at in range(1, 18):
        answer = ddtree.generate(ids, stop_token_ids=[full[at]], ignore_eos=False)["output_ids"]
        assert answer[-1] == full[at] and full[at] not in answer[:-1]


def test_second_turn_reuses_the_cache(servers, plain_outputs):
    """Draft and target KV of committed paths in the radix cache are right."""
    ddtree, plain = servers
    first = prompts(min(FEW, 8))
    ddtree.flush()
    answers = ddtree.generate_all(first, 4)
    second = [[*ids, *answer[:40]] for ids, answer in zip(first, outputs(answers))]
    warm = ddtree.generate_all(second, 4, max_new_tokens=80)
    ddtree.flush()
    cold = ddtree.generate_all(second, 4, max_new_tokens=80)
    cached = sum(answer["meta_info"]["cached_tokens"] for answer in warm)
    assert cached > sum(map(len, first)), "also tokens that the first turn committed"
    expected = outputs(plain.generate_all(second, 8, max_new_tokens=80))
    for found in (gaps(plain, second, outputs(one), expected) for one in (warm, cold)):
        assert max(found, default=0) <= BOUND
    print(f"\n{cached} tokens cached; tokens per step {tokens_per_step(warm):.3f}, {tokens_per_step(cold):.3f} without")
    assert tokens_per_step(warm) > 0.9 * tokens_per_step(cold), "the draft's KV in the cache is right"


def test_streamed_answers_grow(servers, plain_outputs):
    ddtree, plain = servers
    inputs = prompts(min(FEW, 8))
    with ThreadPoolExecutor(4) as pool:
        streams = list(pool.map(ddtree.stream, inputs))
    for pieces in streams:
        assert len(pieces) > 2
        texts = [piece["text"] for piece in pieces]
        assert all(longer.startswith(shorter.rstrip("�")) for shorter, longer in zip(texts, texts[1:]))
        assert [piece["meta_info"]["finish_reason"] is not None for piece in pieces] == [False] * (len(pieces) - 1) + [
            True
        ]
    got = [list(pieces[-1]["output_ids"]) for pieces in streams]
    assert max(gaps(plain, inputs, got, plain_outputs[: len(inputs)]), default=0) <= BOUND


def test_mixed_batch_keeps_greedy_answers(servers, plain_outputs):
    """Greedy, sampled, penalised and biased requests in one batch do not disturb each other."""
    ddtree, plain = servers
    inputs = prompts(FEW)
    kinds = (
        {},
        {"temperature": 0.9, "top_p": 0.9},
        {"frequency_penalty": 0.6},
        {"temperature": 1.0, "top_k": 5, "logit_bias": {"120": 3.0}},
    )
    work = [(ids, kind) for ids in inputs for kind in kinds]
    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(lambda one: ddtree.generate(one[0], **one[1]), work))
    got = outputs(answers)[:: len(kinds)]
    found = gaps(plain, inputs, got, plain_outputs[:FEW])
    print(f"\n{FEW - len(found)} of {FEW} greedy answers identical in a mixed batch")
    assert max(found, default=0) <= BOUND
    in_order(ddtree)


BOLD = ["--schedule-conservativeness", "0.01"]  # starts requests that will not find room for their answers


@pytest.mark.parametrize(
    ("tokens", "arguments"),
    [(2200, BOLD), (2200, [*BOLD, "--chunked-prefill-size", "64"]), (60000, ["--chunked-prefill-size", "64"])],
    ids=["retraction", "retraction-and-chunks", "chunks"],
)
def test_a_pool_under_pressure_and_prompts_in_chunks(servers, plain_outputs, tmp_path, tokens, arguments):
    """Requests lose their KV and start again; prompts are prefilled 64 tokens at a time."""
    _, plain = servers
    inputs = prompts(FEW)
    server = service.start(tmp_path, "pressed", *service.DDTREE, *arguments, tokens=tokens)
    try:
        server.wait()
        got = outputs(server.generate_all(inputs, 16))
        found = gaps(plain, inputs, got, plain_outputs[:FEW])
        log = server.log.read_text("utf-8", "replace")
        retracted = log.count("Retract requests")
        print(f"\n{FEW - len(found)} of {FEW} identical, {retracted} retractions")
        assert max(found, default=0) <= BOUND
        assert (retracted > 0) == (tokens < 10000)
        in_order(server)
        assert server.alive()
    finally:
        server.stop()


def test_many_requests_with_aborts_leave_nothing_behind(servers, plain_outputs):
    """The scheduler's idle check ends the server over a leaked KV slot."""
    ddtree, plain = servers
    inputs = prompts(min(NUM_PROMPTS, 64))
    endings = storm(ddtree, inputs, NUM_REQUESTS)
    print(f"\n{dict(endings)}")
    assert set(endings) <= {"length", "stop", "abort"}
    assert endings["abort"] > 0
    in_order(ddtree)
    got = [list(ddtree.generate(inputs[0])["output_ids"])]
    assert max(gaps(plain, inputs[:1], got, plain_outputs[:1]), default=0) <= BOUND
    in_order(ddtree)


def test_edges_of_what_is_captured_and_of_the_context(servers, tmp_path):
    """Prompts about as long as the longest captured prefill, more requests than a captured batch has, answers that the
    context's end cuts, pages of 64; and a start without the option that keeps piecewise graphs away."""
    _, plain = servers
    context = 640
    arguments = ["--context-length", str(context), "--page-size", "64"]
    arguments += [] if service.ON_CPU else ["--cuda-graph-max-bs", "4", "--disable-radix-cache"]
    server = service.start(tmp_path, "edges", *service.DDTREE, *arguments, without=["--disable-piecewise-cuda-graph"])
    material = [token for ids in prompts(24) for token in ids]
    inputs = [material[start : start + length] for start, length in enumerate([254, 255, 256, 257, 258, 511, 513] * 2)]
    inputs += [material[start : start + context - left] for start, left in enumerate([180, 100, 64, 40, 20, 8])]

    def wanted(ids):
        return min(160, context - len(ids))

    try:
        server.wait()
        expected = outputs(plain.generate_all(inputs, 8))
        for concurrency in (1, 3, 12):
            with ThreadPoolExecutor(concurrency) as pool:
                answers = list(pool.map(lambda ids: server.generate(ids, max_new_tokens=wanted(ids)), inputs))
            got = outputs(answers)
            assert {answer["meta_info"]["finish_reason"]["type"] for answer in answers} == {"length"}
            for ids, output in zip(inputs, got):
                assert wanted(ids) - 6 <= len(output) <= wanted(ids)
            cut = [full[: len(output)] for full, output in zip(expected, got)]
            found = gaps(plain, inputs, got, cut)
            print(
                f"\nconcurrency {concurrency}: {len(inputs) - len(found)} of {len(inputs)} identical; "
                f"{[len(output) for output in got[-6:]]} tokens before the end of a context of {context}"
            )
            assert max(found, default=0) <= BOUND
            in_order(server)
    finally:
        server.stop()
