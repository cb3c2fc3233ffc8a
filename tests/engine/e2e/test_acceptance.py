"""Tokens per verify step and losslessness on the nano pair; see docs/acceptance.md."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine.reference import AUTHORS, PlainReference, check_row, ddtree_args, dflash_args
from engine.support import Server, prompts, tokens_per_step


def test_chain(scratch: Path, plain: PlainReference) -> None:
    with Server(scratch, *dflash_args()) as server:
        check_row(server, plain, "chain", (4,))


@pytest.mark.parametrize(("budget", "radix"), [(7, False), (15, True), (63, False)])
def test_budget(scratch: Path, plain: PlainReference, budget: int, radix: bool) -> None:
    args = [] if radix else ["--disable-radix-cache"]
    with Server(scratch, *ddtree_args(budget), *args) as server:
        check_row(server, plain, budget, (4,))


@pytest.mark.slow
@pytest.mark.parametrize("radix", [True, False])
@pytest.mark.parametrize("budget", [1, 2, 3, 7, 15, 16, 31, 63, 127])
def test_full_table(scratch: Path, plain: PlainReference, budget: int, radix: bool) -> None:
    args = [] if radix else ["--disable-radix-cache"]
    with Server(scratch, *ddtree_args(budget), *args) as server:
        if budget in AUTHORS:
            check_row(server, plain, budget, (1, 4))
            return
        for concurrency in (1, 4):
            answers = server.generate_all(plain.prompts, concurrency)
            assert [answer["output_ids"] for answer in answers] == plain.outputs
            print(f"{budget}: {tokens_per_step(answers):.3f} tokens per verify step")
            server.flush()


def test_negative_controls(scratch: Path, plain: PlainReference) -> None:
    """The checks above catch a wrong mask, a wrong KV gather and a wrong feature gather."""
    path = f"{Path(__file__).parent / 'negative'}"
    some = plain.prompts[:8]
    seen = {}
    for defect in ("causal-mask", "prefix-kv", "prefix-hidden"):
        env = {"DDTREE_BREAK": defect}
        server = Server(scratch, *ddtree_args(31))
        server.env.update(env, PYTHONPATH=f"{path}:{server.env['PYTHONPATH']}")
        with server:
            answers = server.generate_all(some, 4)
        equal = sum(a["output_ids"] == b for a, b in zip(answers, plain.outputs, strict=False))
        seen[defect] = (equal, tokens_per_step(answers))
        print(f"{defect}: {equal} of {len(some)} answers equal, {seen[defect][1]:.3f} tokens per step")
    assert seen["causal-mask"][0] < len(some)
    assert seen["prefix-kv"][0] < len(some)
    # Text stays right with the wrong features; only acceptance shows it.
    assert seen["prefix-hidden"][0] == len(some)
    assert seen["prefix-hidden"][1] < 0.95 * AUTHORS[31]


def test_steps_that_run_ahead_of_the_host(scratch: Path, plain: PlainReference) -> None:
    """As with CUDA graphs: the next step is launched before the last one's result is read.

    Requests come, end and are aborted while a step is on its way; greedy answers stay those
    of plain decoding, and the idle check finds no leaked slot.
    """
    server = Server(scratch, *ddtree_args(15), "--max-running-requests", "6")
    path = f"{Path(__file__).parent / 'negative'}"
    server.env.update(DDTREE_BREAK="run-ahead", PYTHONPATH=f"{path}:{server.env['PYTHONPATH']}")
    with server:
        check_row(server, plain, 15, (6,))
        # Requests of different lengths, so that the batch changes in every few steps.
        lengths = [7 + 11 * (i % 9) for i in range(24)]
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda i: server.generate(plain.prompts[i], max_new_tokens=lengths[i]), range(24)))
        for answer, expected, length in zip(answers, plain.outputs, lengths, strict=True):
            assert answer["output_ids"] == expected[:length]
        for params, expected in zip(plain.PENALTIES[:2], plain.penalised, strict=False):
            outputs = server.generate_all(plain.prompts[:4], 4, max_new_tokens=48, **params)
            assert [a["output_ids"] for a in outputs] == expected
        ids = plain.prompts[1]
        for at in range(1, 12):
            answer = server.generate(ids, stop_token_ids=[plain.outputs[1][at]], ignore_eos=False)
            first = plain.outputs[1].index(plain.outputs[1][at])
            assert answer["output_ids"] == plain.outputs[1][: first + 1]

        def abort(i: int) -> None:
            body = {"input_ids": plain.prompts[i % 24], "rid": f"a{i}", "sampling_params": {"max_new_tokens": 100}}
            threading.Timer(0.05 * (i % 5), lambda: server.post("/abort_request", {"rid": f"a{i}"})).start()
            server.post("/generate", body)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(abort, range(24)))
        server.flush()
        assert server.generate(ids)["output_ids"] == plain.outputs[1]
        log = server.log.read_text(errors="replace")
        assert "leak" not in log and "Traceback" not in log


@pytest.mark.parametrize("ahead", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_retraction_and_chunked_prefill(scratch: Path, plain: PlainReference, ahead: bool) -> None:
    """Requests lose their KV and start again, in a small pool, with prompts in chunks of 64 tokens."""
    server = Server(scratch, *ddtree_args(31), "--chunked-prefill-size", "64")
    server.command[server.command.index("--max-total-tokens") + 1] = "1500"
    server.env.update(SGLANG_TEST_RETRACT="1", SGLANG_TEST_RETRACT_INTERVAL="9")
    if ahead:
        path = f"{Path(__file__).parent / 'negative'}"
        server.env.update(DDTREE_BREAK="run-ahead", PYTHONPATH=f"{path}:{server.env['PYTHONPATH']}")
    with server:
        answers = server.generate_all(plain.prompts[:12], 6)
        assert [answer["output_ids"] for answer in answers] == plain.outputs[:12]
        server.flush()
        assert server.generate(plain.prompts[0])["output_ids"] == plain.outputs[0]
        log = server.log.read_text(errors="replace")
        assert "#retracted_reqs: 1" in log
        assert "leak" not in log and "Traceback" not in log


@pytest.mark.slow
def test_bfloat16_differs_only_at_near_ties(scratch: Path) -> None:
    """A token may differ where plain decoding's two best logits are within bf16 rounding."""
    inputs = prompts()
    with Server(scratch, dtype="bfloat16") as server:
        expected = [a["output_ids"] for a in server.generate_all(inputs, 4)]
    with Server(scratch, *ddtree_args(31), dtype="bfloat16") as server:
        got = [a["output_ids"] for a in server.generate_all(inputs, 4)]
    splits = []
    for ids, a, b in zip(inputs, expected, got, strict=True):
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y), None)
        if at is not None:
            splits.append((ids + a[:at], a[at], b[at]))
    print(f"{len(inputs) - len(splits)} of {len(inputs)} answers identical")
    with Server(scratch, dtype="bfloat16") as server:
        for ids, x, y in splits:
            body = {
                "input_ids": ids,
                "sampling_params": {"max_new_tokens": 1, "temperature": 0},
                "return_logprob": True,
                "top_logprobs_num": 2,
            }
            tops = server.post("/generate", body)[1]["meta_info"]["output_top_logprobs"][0]
            assert {token for _, token, _ in tops} == {x, y}
            # One bf16 step is 2^-7 of the logit: 0.125 at the logits of about 16 seen here.
            assert abs(tops[0][0] - tops[1][0]) <= 0.25, tops
