"""What the service tests share: settings from the environment, servers, and plain decoding as the judge.

DDTREE_GPU_BUDGET, DDTREE_GPU_BACKEND and DDTREE_GPU_PAGE_SIZE choose what runs; DDTREE_GPU_ARGUMENTS (``--tp 2``) adds
to the arguments of the DDTREE servers. DDTREE_GPU_COUNTS is how many prompts, draws and random requests
(200,2000,1000). DDTREE_GPU_RUNNING=port,log,port,log takes a DDTREE and a plain server that somebody else started.
DDTREE_GPU_DEVICE=cpu rehearses everything with CPU servers in float32; give it few counts.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddtree_deploy.verify.gpu.server import Client, Server, free_ports

PAIR, PROMPTS = (
    os.path.realpath(os.environ[name]) if os.environ.get(name) else None
    for name in ("DDTREE_GPU_PAIR", "DDTREE_GPU_PROMPTS")
)
ON_CPU = os.environ.get("DDTREE_GPU_DEVICE") == "cpu"
BUDGET = os.environ.get("DDTREE_GPU_BUDGET", "31" if ON_CPU else "auto")
BACKEND = os.environ.get("DDTREE_GPU_BACKEND", "torch_native" if ON_CPU else "triton")
PAGE_SIZE = os.environ.get("DDTREE_GPU_PAGE_SIZE", "1")
NUM_PROMPTS, NUM_DRAWS, NUM_REQUESTS = map(int, os.environ.get("DDTREE_GPU_COUNTS", "200,2000,1000").split(","))
# Two answers may differ where plain decoding's logits are within rounding. bf16 logits of about 16 to 32 have steps of
# 0.125.
BOUND = 1e-3 if ON_CPU else 0.25
COMMON = [
    "--attention-backend", BACKEND, "--page-size", PAGE_SIZE, "--disable-piecewise-cuda-graph", "--sleep-on-idle",
    "--sampling-backend", "pytorch", "--skip-server-warmup",
]  # fmt: skip
DEVICE = (
    ["--device", "cpu", "--dtype", "float32", "--disable-overlap-schedule"]
    if ON_CPU
    else ["--mem-fraction-static", "0.9", "--cuda-graph-max-bs", "32"]
)
DDTREE = [
    "--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", f"{PAIR}/draft",
    "--speculative-ddtree-budget", BUDGET, *shlex.split(os.environ.get("DDTREE_GPU_ARGUMENTS", "")),
]  # fmt: skip


def start(folder: Path, name: str, *arguments: str, tokens: int = 60000, without: Sequence[str] = ()) -> Server:
    """A server whose KV pool holds ``tokens``, ``without`` some of the common flags; call its ``wait`` and ``stop``."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", f"{PAIR}/target", "--port", str(port)]
    command += [flag for flag in [*COMMON, *DEVICE] if flag not in without]
    command += ["--max-total-tokens", str(tokens), *arguments]
    environment = {**os.environ, "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1"}
    return Server(command, port, folder / f"{name}.log", environment)


def prompts(count: int) -> list[list[int]]:
    """``count`` different ones: those of the file, then the same cut shorter."""
    base = json.loads(Path(str(PROMPTS)).read_text())
    return [base[i % len(base)][: len(base[i % len(base)]) - 3 * (i // len(base))] for i in range(count)]


def outputs(answers: Sequence[dict[str, Any]]) -> list[list[int]]:
    return [list(answer["output_ids"]) for answer in answers]


def gaps(
    plain: Client, inputs: Sequence[Sequence[int]], got: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]
) -> list[float]:
    """Of each answer that differs from plain decoding's: how far apart plain decoding's logits of the two tokens are,
    where they first differ."""
    found = []
    for ids, a, b in zip(inputs, got, expected):
        assert len(a) == len(b)
        at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)
        if at is None:
            continue
        answer = plain.generate([*ids, *b[:at]], max_new_tokens=1, return_logprob=True, top_logprobs_num=5)
        tops = {token: logprob for logprob, token, _ in answer["meta_info"]["output_top_logprobs"][0]}
        found.append(max(tops.values()) - tops.get(a[at], -math.inf))
    return found


def tokens_per_step(answers: Sequence[dict[str, Any]]) -> float:
    tokens = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return tokens / sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)


def next_token_probabilities(plain: Client, ids: Sequence[int], top_k: int) -> dict[int, float]:
    """At temperature 1 under top-k, by plain decoding."""
    answer = plain.generate(ids, max_new_tokens=1, return_logprob=True, top_logprobs_num=top_k)
    tops = {token: math.exp(p) for p, token, _ in answer["meta_info"]["output_top_logprobs"][0]}
    return {token: p / sum(tops.values()) for token, p in tops.items()}
