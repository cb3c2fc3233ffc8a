"""The path of a GPU on a CPU: steps and prefills as recordings, ahead of the host, and `auto` (see rehearsal/).

In float32, so every answer must be plain decoding's.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from engine.reference import PlainReference, check_mixed_batch, check_row, ddtree_args
from engine.support import Server


def rehearsal(scratch: Path, budget: int | str, *args: str) -> Server:
    server = Server(scratch, *ddtree_args(budget), "--context-length", "512", *args)
    path = Path(__file__).parent / "rehearsal"
    server.env["PYTHONPATH"] = f"{path}:{server.env['PYTHONPATH']}"
    return server


def outputs(answers: list[dict]) -> list[list[int]]:
    return [answer["output_ids"] for answer in answers]


def check_edges(server: Server, plain: PlainReference) -> list[int]:
    """Prompts of one token to nearly the whole context, where the answer is cut; returns their cached tokens."""
    answers = server.generate_all(plain.edge_prompts, 3, max_new_tokens=32)
    for answer, expected, length in zip(answers, plain.edges, plain.EDGES, strict=True):
        # The engine leaves two positions of the context of 512 free.
        assert answer["output_ids"] == expected[: min(32, 510 - length)]
    return [answer["meta_info"]["cached_tokens"] for answer in answers]


def check_log(server: Server, captured: bool = True) -> str:
    log = server.log.read_text(errors="replace")
    assert "leak" not in log and "Traceback" not in log
    for kind in ("Decode batch", "Prefill batch"):
        assert any(kind in line and "cuda graph: True" in line for line in log.splitlines()) == captured, kind
    return log


def test_captured_steps_that_run_ahead(scratch: Path, plain: PlainReference) -> None:
    """Batches below, at and beyond the captured sizes; requests come, end and are aborted while a step is running."""
    server = rehearsal(scratch, 15, "--cuda-graph-bs", "1", "2", "4", "--max-running-requests", "6")
    server.env["SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY"] = "1"  # every slot is accounted for after every step
    with server:
        check_row(server, plain, 15, (6,))
        check_mixed_batch(server, plain)
        # Requests of different lengths, so that the batch changes in every few steps.
        lengths = [1 + 11 * (i % 9) for i in range(24)]
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda i: server.generate(plain.prompts[i], max_new_tokens=lengths[i]), range(24)))
        for answer, expected, length in zip(answers, plain.outputs, lengths, strict=True):
            assert answer["output_ids"] == expected[:length]
        for params, expected in zip(plain.PENALTIES, plain.penalised, strict=True):
            assert outputs(server.generate_all(plain.prompts[:4], 4, max_new_tokens=48, **params)) == expected
        ids = plain.prompts[1]
        for at in range(1, 12):
            answer = server.generate(ids, stop_token_ids=[plain.outputs[1][at]], ignore_eos=False)
            first = plain.outputs[1].index(plain.outputs[1][at])
            assert answer["output_ids"] == plain.outputs[1][: first + 1]
        server.flush()
        check_edges(server, plain)
        # Once more, with all tokens of a prompt but one in the cache.
        cached = check_edges(server, plain)
        assert cached == [length - 1 for length in plain.EDGES]

        def abort(i: int) -> None:
            body = {"input_ids": plain.prompts[i % 24], "rid": f"a{i}", "sampling_params": {"max_new_tokens": 100}}
            threading.Timer(0.05 * (i % 5), lambda: server.post("/abort_request", {"rid": f"a{i}"})).start()
            server.post("/generate", body)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(abort, range(24)))
        server.flush()
        assert server.generate(ids)["output_ids"] == plain.outputs[1]
        check_log(server)


@pytest.mark.parametrize("captured", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_retraction_chunks_and_pages(scratch: Path, plain: PlainReference, captured: bool) -> None:
    """Requests lose their KV and start again, in a small pool of pages, with prompts in chunks of 64 tokens.

    Captured with `auto`, which takes another size now and then.
    """
    args = ("--page-size", "64", "--chunked-prefill-size", "64", "--max-running-requests", "6")
    if captured:
        server = rehearsal(scratch, "auto", *args, "--cuda-graph-bs", "1", "4")
    else:
        server = Server(scratch, *ddtree_args(31), "--context-length", "512", *args)
    server.command[server.command.index("--max-total-tokens") + 1] = "1280"
    server.env.update(SGLANG_TEST_RETRACT="1", SGLANG_TEST_RETRACT_INTERVAL="9", SGLANG_DEBUG_MEMORY_POOL="1")
    with server:
        assert outputs(server.generate_all(plain.prompts[:12], 6)) == plain.outputs[:12]
        check_edges(server, plain)  # the end of the context: a tree and the rest of a page lie beyond it
        server.flush()
        assert server.generate(plain.prompts[0])["output_ids"] == plain.outputs[0]
        assert "#retracted_reqs: 1" in check_log(server, captured)
