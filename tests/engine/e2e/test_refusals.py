"""Arguments that are refused at start, by name and with a remedy."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from engine.reference import ddtree_args
from engine.support import Server, cpu_env, engine_python

CASES = {
    "budget-zero": (["--speculative-ddtree-budget", "0"], "--speculative-ddtree-budget must be at least 1"),
    "budget-negative": (["--speculative-ddtree-budget", "-1"], "--speculative-ddtree-budget must be at least 1"),
    "budget-huge": (["--speculative-ddtree-budget", "100000"], "--speculative-ddtree-budget must be at most"),
    "budget-word": (["--speculative-ddtree-budget", "many"], "--speculative-ddtree-budget must be"),
    "backend": (["--attention-backend", "triton"], "--attention-backend torch_native"),
    "draft-tokens": (["--speculative-num-draft-tokens", "16"], "leave it out"),
    "draft-window": (["--speculative-dflash-draft-window-size", "64"], "--speculative-dflash-draft-window-size"),
    "kv-dtype": (["--kv-cache-dtype", "fp8_e5m2"], "--kv-cache-dtype auto"),
    "pipeline": (["--pipeline-parallel-size", "2"], "pp_size == 1"),
    "no-draft": (["--speculative-draft-model-path", ""], None),
    "dflash-with-budget": (["--speculative-algorithm", "DFLASH"], "requires --speculative-algorithm DDTREE"),
}

DERIVED = ("speculative_num_draft_tokens", "speculative_dflash_block_size", "speculative_eagle_topk", "page_size")

SCRIPT = (
    f"""
import json, sys
DERIVED = {DERIVED}
"""
    + """
from sglang.srt.server_args import prepare_server_args
for name, args in json.load(sys.stdin).items():
    try:
        taken = prepare_server_args(args)
        print(json.dumps([name, None, {key: getattr(taken, key) for key in DERIVED}]))
    except (ValueError, SystemExit, AssertionError) as error:
        print(json.dumps([name, f"{type(error).__name__}: {error}", None]))
"""
)


@pytest.fixture(scope="module")
def answers(scratch: Path) -> dict[str, tuple[str | None, dict[str, int] | None]]:
    base = Server(scratch).command[3:]
    cases = {name: [*base, *ddtree_args(31), *args] for name, (args, _) in CASES.items()}
    cases.update({f"budget {budget}": [*base, *ddtree_args(budget), "--page-size", "16"] for budget in (7, 16, 63)})
    done = subprocess.run(
        [engine_python(), "-c", SCRIPT],
        input=json.dumps(cases),
        env=cpu_env(scratch),
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('["')]
    assert len(lines) == len(cases), done.stdout[-2000:] + done.stderr[-3000:]
    return {name: (error, derived) for name, error, derived in lines}


@pytest.mark.parametrize("name", [name for name, (_, expected) in CASES.items() if expected])
def test_refused_with_a_remedy(answers: dict[str, tuple[str | None, dict[str, int] | None]], name: str) -> None:
    error, _ = answers[name]
    expected = CASES[name][1]
    assert error is not None, "accepted"
    assert error.startswith("ValueError") and expected in error, error


def test_sizes_of_the_tree_and_of_the_draft_block(
    answers: dict[str, tuple[str | None, dict[str, int] | None]],
) -> None:
    """The target verifies budget + 1 tokens, and buffers hold a draft block at least; the block stays the draft's."""
    for budget, draft_tokens in ((7, 16), (16, 17), (63, 64)):
        error, derived = answers[f"budget {budget}"]
        assert error is None and derived is not None
        assert [derived[key] for key in DERIVED] == [draft_tokens, 16, 1, 16]


def test_budget_beyond_the_kv_pool_is_refused(scratch: Path) -> None:
    """The pool's size is only known once the model is loaded: the start fails then."""
    server = Server(scratch, *ddtree_args(300))
    server.command[server.command.index("--max-total-tokens") + 1] = "256"
    with pytest.raises(AssertionError, match=r"--speculative-ddtree-budget 300 needs \d+ KV slots"), server:
        pass
