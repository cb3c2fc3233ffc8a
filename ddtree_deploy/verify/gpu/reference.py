"""The target by transformers, in float32 on the CPU: what the engine's answers are judged by.

It shares no code with the engine. Runs in the release's Python.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Callable, Dict, List, Sequence, Tuple

Tokens = Sequence[int]
# Changes the logits [tokens, vocabulary] at which the tokens of an answer were chosen, in place.
Adjust = Callable[[Any, Tokens], None]
_BATCH = 4  # sequences that are evaluated at once


class Reference:
    def __init__(self, target: Path) -> None:
        self.torch = importlib.import_module("torch")
        # The model is so small that threads gain nothing, and beside two engines that poll they wait for one another:
        # on a host of 16 cores 24 answers took 11 s with 16 threads and 1 s with one.
        self.torch.set_num_threads(1)
        transformers = importlib.import_module("transformers")
        transformers.utils.logging.disable_progress_bar()
        self.model = transformers.AutoModelForCausalLM.from_pretrained(str(target), dtype=self.torch.float32).eval()

    def logits(self, sequences: Sequence[Tokens]) -> List[Any]:
        """Per sequence [tokens, vocabulary]: after each of its tokens. Causal: padding behind them changes nothing."""
        found: List[Any] = []
        for start in range(0, len(sequences), _BATCH):
            part = sequences[start : start + _BATCH]
            longest = max(map(len, part))
            ids = self.torch.tensor([[*sequence, *[0] * (longest - len(sequence))] for sequence in part])
            with self.torch.inference_mode():
                logits = self.model(ids, use_cache=False).logits
            found += [row[: len(sequence)].clone() for row, sequence in zip(logits, part)]
        return found

    def gaps(
        self, prompts: Sequence[Tokens], answers: Sequence[Tokens], adjust: Sequence[Adjust] = ()
    ) -> List[List[float]]:
        """How far below the best token's logit that of each token of each answer is, the tokens before it given.

        0.0 is the best token itself. ``adjust``, one per answer, are the penalties that were asked for.
        """
        found = []
        sequences = [[*prompt, *answer] for prompt, answer in zip(prompts, answers)]
        for number, logits in enumerate(self.logits(sequences)):
            prompt, answer = prompts[number], answers[number]
            rows = logits[len(prompt) - 1 : len(prompt) - 1 + len(answer)].clone()
            if adjust:
                adjust[number](rows, answer)
            chosen = rows.gather(1, self.torch.tensor([list(answer)]).view(-1, 1)).view(-1)
            found.append((rows.max(dim=1).values - chosen).tolist())
        return found

    def greedy(self, prompt: Tokens, count: int) -> Tuple[List[int], float]:
        """The best ``count`` tokens, and the smallest distance of a best logit from the second best on the way."""
        tokens: List[int] = []
        margin = float("inf")
        ids, past = self.torch.tensor([list(prompt)]), None
        with self.torch.inference_mode():
            for _ in range(count):
                out = self.model(ids, past_key_values=past, use_cache=True)
                top = out.logits[0, -1].topk(2)
                margin = min(margin, float(top.values[0] - top.values[1]))
                tokens.append(int(top.indices[0]))
                ids, past = top.indices[:1].view(1, 1), out.past_key_values
        return tokens, margin

    def probabilities(self, sequences: Sequence[Tokens], temperature: float, top_k: int) -> List[Dict[int, float]]:
        """After each sequence, the probability of each token that may come."""
        found = []
        for logits in self.logits(sequences):
            top = logits[-1].topk(top_k)
            shares = (top.values / temperature).softmax(dim=0)
            found.append(dict(zip(top.indices.tolist(), shares.tolist())))
        return found

    def paths(
        self, prompt: Tokens, length: int, temperature: float, top_k: int, least: float
    ) -> Dict[Tuple[int, ...], float]:
        """The continuations of ``length`` tokens with a probability of at least ``least``."""
        paths: Dict[Tuple[int, ...], float] = {(): 1.0}
        for _ in range(length):
            following = self.probabilities([[*prompt, *path] for path in paths], temperature, top_k)
            paths = {
                (*path, token): p * share
                for (path, p), shares in zip(paths.items(), following)
                for token, share in shares.items()
                if p * share >= least
            }
        return paths


def frequency_and_presence(frequency: float, presence: float) -> Adjust:
    """``frequency`` for each time that a token is in the answer already, ``presence`` once."""

    def adjust(rows: Any, answer: Tokens) -> None:
        for at, token in enumerate(answer):
            first = token not in answer[:at]
            rows[at + 1 :, token] -= frequency + (presence if first else 0.0)

    return adjust


def bias(values: Dict[int, float]) -> Adjust:
    def adjust(rows: Any, answer: Tokens) -> None:
        for token, value in values.items():
            rows[:, token] += value

    return adjust


def not_before(count: int, stops: Sequence[int]) -> Adjust:
    """``min_new_tokens``: no stop token among the first ``count``."""

    def adjust(rows: Any, answer: Tokens) -> None:
        for token in stops:
            rows[:count, token] = float("-inf")

    return adjust
