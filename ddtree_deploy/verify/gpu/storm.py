"""Random requests with aborts, after which nothing may be left behind. Standard library only."""

from __future__ import annotations

import contextlib
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List, Sequence, Tuple

from ddtree_deploy.verify.gpu.server import Client, EngineFailed


def random_requests(prompts: Sequence[Sequence[int]], count: int, seed: int = 0) -> List[Tuple[Dict[str, Any], float]]:
    """(request, seconds after which it is aborted; 0 for never). Every fourth is aborted, and too long to be done."""
    rng = random.Random(seed)
    requests: List[Tuple[Dict[str, Any], float]] = []
    for number in range(count):
        aborted = number % 4 == 0
        sampling: Dict[str, Any] = {
            "max_new_tokens": 800 if aborted else rng.randrange(1, 120),
            "temperature": rng.choice([0, 0.8]),
            "top_p": 0.95,
            "ignore_eos": aborted,
        }
        if number % 7 == 0:
            sampling["frequency_penalty"] = 0.4  # these do not run ahead of the host
        body = {"input_ids": list(rng.choice(prompts)), "sampling_params": sampling, "rid": f"storm-{seed}-{number}"}
        requests.append((body, rng.uniform(0.01, 0.2) if aborted else 0.0))
    return requests


def storm(engine: Client, prompts: Sequence[Sequence[int]], count: int, concurrency: int = 24) -> Counter[str]:
    """Send them, and count how they ended: ``stop``, ``length``, ``abort``, or an HTTP status."""

    def ask(request: Tuple[Dict[str, Any], float]) -> str:
        body, abort_after = request
        timer = threading.Timer(abort_after, abort, [body["rid"]])
        if abort_after:
            timer.start()
        status, answer = engine.post("/generate", body)
        timer.cancel()
        return str(answer["meta_info"]["finish_reason"]["type"]) if status == 200 else f"HTTP {status}"

    def abort(rid: str) -> None:
        with contextlib.suppress(EngineFailed):
            engine.post("/abort_request", {"rid": rid})

    with ThreadPoolExecutor(concurrency) as pool:
        return Counter(pool.map(ask, random_requests(prompts, count)))
