"""Tokens per verify step and losslessness on the nano pair; see docs/acceptance.md."""

from __future__ import annotations

from pathlib import Path

import pytest
from engine.reference import AUTHORS, PlainReference, check_mixed_batch, check_row, ddtree_args, dflash_args
from engine.support import Server, prompts, tokens_per_step


def test_chain(scratch: Path, plain: PlainReference) -> None:
    with Server(scratch, *dflash_args()) as server:
        check_row(server, plain, "chain", (4,))


@pytest.mark.parametrize(("budget", "args"), [
    (7, ["--disable-radix-cache", "--page-size", "64"]),
    pytest.param(15, ["--page-size", "16"], marks=pytest.mark.slow),
    pytest.param(31, ["--page-size", "64"], marks=pytest.mark.slow),
])  # fmt: skip
def test_budgets_and_pages(scratch: Path, plain: PlainReference, budget: int, args: list[str]) -> None:
    with Server(scratch, *ddtree_args(budget), *args) as server:
        check_row(server, plain, budget, (4,))


def test_answers_end_where_the_pool_cannot_hold_their_tree(scratch: Path, plain: PlainReference) -> None:
    """Not in an abort, as when a request runs into the end of the pool; with whole pages, prefilled in chunks."""
    args = ["--page-size", "16", "--chunked-prefill-size", "256", "--disable-radix-cache"]
    server = Server(scratch, *ddtree_args(63), *args)
    server.command[server.command.index("--max-total-tokens") + 1] = "2048"
    with server:
        check_row(server, plain, 63, (4,))
        answer = server.generate(plain.long_prompt, max_new_tokens=5000)
        assert answer["output_ids"][: len(plain.long_answer)] == plain.long_answer
        assert answer["meta_info"]["finish_reason"]["type"] == "length"
        # A step needs a tree of 64 nodes, a draft block further on if it runs ahead.
        assert len(plain.long_prompt) + len(answer["output_ids"]) == 2048 - 80 - 1
        server.flush()
        log = server.log.read_text(errors="replace")
        assert "leak" not in log and "Traceback" not in log


def test_tensor_parallel(scratch: Path, plain: PlainReference) -> None:
    """Two ranks: the answers of plain decoding on one, the steps of one, and samples on which the ranks agree."""
    server = Server(scratch, *ddtree_args(15), "--tp-size", "2")
    server.env["SGLANG_CPU_OMP_THREADS_BIND"] = "0|1"  # without it the engine wants a NUMA node per rank
    with server:
        check_row(server, plain, 15, (4,))
        check_mixed_batch(server, plain)
        sampled = server.generate_all([plain.sampling_prompt] * 12, 4, max_new_tokens=40, temperature=1.0)
        assert len({tuple(answer["output_ids"]) for answer in sampled}) > 6
        server.flush()
        assert server.generate(plain.prompts[0])["output_ids"] == plain.outputs[0]
        log = server.log.read_text(errors="replace")
        assert "leak" not in log and "Traceback" not in log


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
    """The checks above catch a wrong mask, a wrong KV gather and a wrong feature gather; without, the same engine is
    right."""
    some = plain.prompts[:8]
    seen = {}
    defect = scratch / "defect"
    defect.write_text("")
    server = Server(scratch, *ddtree_args(31))
    path = Path(__file__).parent / "negative"
    server.env.update(DDTREE_BREAK=str(defect), PYTHONPATH=f"{path}:{server.env['PYTHONPATH']}")
    with server:
        for name in ("causal-mask", "prefix-kv", "prefix-hidden", ""):
            defect.write_text(name)
            answers = server.generate_all(some, 4)
            server.flush()
            equal = sum(a["output_ids"] == b for a, b in zip(answers, plain.outputs, strict=False))
            seen[name] = (equal, tokens_per_step(answers))
            print(f"{name or 'right'}: {equal} of {len(some)} answers equal, {seen[name][1]:.3f} tokens per step")
    assert seen[""][0] == len(some)
    assert seen["causal-mask"][0] < len(some)
    assert seen["prefix-kv"][0] < len(some)
    # Text stays right with the wrong features; only acceptance shows it.
    assert seen["prefix-hidden"][0] == len(some)
    assert seen["prefix-hidden"][1] < 0.95 * AUTHORS[31]


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
