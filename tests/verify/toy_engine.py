"""A model of 128 tokens in pure Python and an engine that serves it, right or with a defect: test doubles.

They prove that each check of ``verify --gpu`` can fail, and for its own reason; nothing about SGLang or torch.
"""

from __future__ import annotations

import functools
import math
import random
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddtree_deploy.verify.gpu.reference import Adjust, Reference
from ddtree_deploy.verify.gpu.server import Client

VOCABULARY = 128
OFTEN = 12  # tokens below come often, so that penalties add up
SEED = 7  # one whose greedy answers have no near-ties where stops are tried
ACCEPTED = 4.11  # tokens per verify step that the small size expects


@functools.cache
def _after(last: tuple[int, ...]) -> tuple[float, ...]:
    rng = random.Random(repr((SEED, *last)))
    return tuple(rng.gauss(5 if token < OFTEN else 0, 3) for token in range(VOCABULARY))


def logits(sequence: Sequence[int]) -> list[float]:
    """A function of the last two tokens."""
    return list(_after(tuple(sequence[-2:])))


class Column(list[float]):
    def __add__(self, value: Any) -> Column:
        return Column(each + value for each in self)

    def __sub__(self, value: Any) -> Column:
        return self + -value

    __iadd__ = __add__  # type: ignore[assignment]
    __isub__ = __sub__


class Rows(list[list[float]]):
    """As much of a tensor of logits as penalties need: ``rows[2:, token] -= 0.5``, ``rows[:9, token] = -inf``."""

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, tuple):
            return Column(row[key[1]] for row in super().__getitem__(key[0]))
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        rows = super().__getitem__(key[0])
        values = value if isinstance(value, Column) else [value] * len(rows)
        for row, each in zip(rows, values, strict=True):
            row[key[1]] = each


class ToyReference(Reference):
    def __init__(self) -> None:
        pass

    def gaps(
        self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], adjust: Sequence[Adjust] = ()
    ) -> list[list[float]]:
        found = []
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            rows = Rows(logits([*prompt, *answer[:at]]) for at in range(len(answer)))
            if adjust:
                adjust[number](rows, answer)
            found.append([max(row) - row[token] for row, token in zip(rows, answer, strict=True)])
        return found

    def greedy(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        tokens: list[int] = []
        margin = math.inf
        for _ in range(count):
            row = logits([*prompt, *tokens])
            best, second = sorted(range(VOCABULARY), key=row.__getitem__)[:-3:-1]
            margin = min(margin, row[best] - row[second])
            tokens.append(best)
        return tokens, margin

    def probabilities(
        self, sequences: Sequence[Sequence[int]], temperature: float, top_k: int
    ) -> list[dict[int, float]]:
        return [shares(logits(sequence), temperature, top_k) for sequence in sequences]


def shares(row: list[float], temperature: float, top_k: int) -> dict[int, float]:
    top = sorted(range(VOCABULARY), key=row.__getitem__)[: -top_k - 1 : -1]
    weights = {token: math.exp((row[token] - row[top[0]]) / temperature) for token in top}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


class ToyEngine(Client):
    """Answers as the real one does. ``defect`` is what it does wrong."""

    def __init__(self, folder: Path, defect: str = "") -> None:
        super().__init__(0, folder / "toy.log")
        self.log.write_text("Scheduler hit an exception: CUDA error\n" if defect == "dead" else "ready\n")
        self.defect = defect
        self._rng = random.Random(1)
        self._aborted: set[str] = set()
        self._cache: set[tuple[int, ...]] = set()
        self._stormed = False  # random requests have come
        self._lock = threading.Lock()

    def wait_until_idle(self, limit_s: float = 0.0) -> dict[str, Any]:
        return super().wait_until_idle(0.0)

    def try_asking(self, path: str, body: Any, timeout: float) -> tuple[int, Any]:
        if self.defect == "dead":
            raise ConnectionRefusedError("Connection refused")
        if path == "/generate":
            with self._lock:
                return self._generate(body)
        if path == "/abort_request":
            self._aborted.add(body["rid"])
        if path == "/flush_cache" and self.defect != "cache-outlives-flush":
            self._cache.clear()
        return 200, {"loads": [self._loads()]}

    def _loads(self) -> dict[str, int]:
        used = 7 if self.defect == "leaked-slots" and self._stormed else 0
        total = 900 if self.defect == "smaller-pool" and self._stormed else 1000
        return {
            "num_running_reqs": int(self.defect == "stuck-request" and self._stormed),
            "num_waiting_reqs": 0,
            "num_used_tokens": used,
            "max_total_num_tokens": total,
        }

    def _generate(self, body: dict[str, Any]) -> tuple[int, Any]:
        self._stormed |= "rid" in body
        if self.defect == "internal-error" and "rid" in body:
            return 500, "internal error"
        if self.defect == "traceback" and "rid" in body:
            self.log.write_text("Traceback (most recent call last):\n")
        prompt, sampling = body["input_ids"], body["sampling_params"]
        if sampling["max_new_tokens"] > 300:  # it would still run when the abort comes
            tokens, reason = [], "abort" if self.defect != "abort-ignored" else "length"
        else:
            tokens, reason = self._decode(prompt, sampling)
        cached = len(prompt) - 1 if tuple(prompt) in self._cache and self.defect != "no-cache" else 0
        self._cache.add(tuple(prompt))
        accepted = ACCEPTED * (0.8 if self.defect == "poor-drafts" else 1.0)
        return 200, {
            "output_ids": tokens,
            "meta_info": {
                "finish_reason": {"type": reason},
                "cached_tokens": cached,
                "spec_verify_ct": len(tokens) / accepted,
            },
        }

    def _decode(self, prompt: list[int], sampling: dict[str, Any]) -> tuple[list[int], str]:
        tokens: list[int] = []
        stops = [] if self.defect == "stops-ignored" else sampling.get("stop_token_ids", [])
        limit = sampling["max_new_tokens"]
        if self.defect == "one-too-many":
            limit += 1
        if self.defect == "short-answers" and limit == 48:
            limit = 47
        while len(tokens) < limit:
            token = self._choose(prompt, tokens, sampling)
            tokens.append(token)
            if token in stops:
                if self.defect == "past-the-stop":
                    tokens.append(self._choose(prompt, tokens, sampling))
                return tokens, "length" if self.defect == "wrong-reason" else "stop"
        return tokens, "length"

    def _choose(self, prompt: list[int], tokens: list[int], sampling: dict[str, Any]) -> int:
        row = logits([*prompt, *tokens])
        if self.defect != "penalties-ignored":
            for token, count in Counter(tokens).items():
                times = 1 if self.defect == "counted-once" else count
                row[token] -= sampling.get("frequency_penalty", 0.0) * times + sampling.get("presence_penalty", 0.0)
        if self.defect != "bias-ignored":
            for name, value in (sampling.get("logit_bias") or {}).items():
                row[int(name)] += value
        if len(tokens) < sampling.get("min_new_tokens", 0) and self.defect != "minimum-ignored":
            for token in (0, *sampling["stop_token_ids"]):
                row[token] = -math.inf
        temperature = sampling["temperature"]
        if temperature == 0 or (self.defect == "second-token-greedy" and len(tokens) == 1):
            order = sorted(range(VOCABULARY), key=row.__getitem__, reverse=True)
            return order[1 if self.defect == "wrong-token" and len(tokens) == 30 else 0]
        if self.defect == "temperature-ignored":
            temperature = 1.0
        found = shares(row, temperature, sampling.get("top_k", VOCABULARY))
        return self._rng.choices(list(found), list(found.values()))[0]
