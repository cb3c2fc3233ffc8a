"""How many nodes to verify in the next step.

A fixed budget is the same in every step. `auto` takes the captured size with the most
expected tokens per millisecond: the tree's own probabilities say what each size commits,
and a table measured at start says what it costs at this batch size and context length.
It ends at plain decoding (0 nodes) where drafting does not pay.
"""

from __future__ import annotations

from typing import Dict, List, Sequence, Tuple

AUTO_BUDGETS = (0, 7, 15, 31, 63)
# Beyond this many verified tokens a step is bound by arithmetic and grows with each.
AUTO_MAX_TOKENS = 1024
_DECAY = 0.9
_PROBE_INTERVAL = 32


def auto_allows(bs: int, budget: int) -> bool:
    """Whether `auto` may use this size; batches beyond the captured ones ask, too."""
    return budget <= AUTO_BUDGETS[1] or bs * (budget + 1) <= AUTO_MAX_TOKENS


class FixedBudget:
    """The same budget in every step."""

    def __init__(self, budget: int):
        self.sizes: Tuple[int, ...] = (budget,)
        self.max_budget = budget

    def choose(self, bs: int, mean_context: float) -> int:
        return self.max_budget

    def update(self, budget: int, expected: Sequence[float], committed: float) -> None:
        pass


class AutoBudget:
    """Expected tokens per millisecond, from the cost table and past trees.

    The estimate for a step comes from the trees of earlier ones, so choosing needs no
    readback between draft and verify.

    Args:
        costs: milliseconds of a step by (batch size, budget), one value per entry of
            `contexts`.
        contexts: mean context lengths of the measurements, rising.
        max_budget: the largest budget.
    """

    def __init__(
        self,
        costs: Dict[Tuple[int, int], List[float]],
        contexts: Sequence[int],
        max_budget: int,
    ):
        self.costs = costs
        self.contexts = list(contexts)
        self.max_budget = max_budget
        self.sizes = tuple(sorted({budget for _, budget in costs}))
        self.batch_sizes = sorted({bs for bs, _ in costs})
        # Drafts committed per request and step by the draft's own probabilities; before
        # the first tree, a guess that makes the first steps draft.
        self.drafts = {budget: 0.75 * budget**0.4 for budget in self.sizes}
        # How much of that the target accepts.
        self.acceptance = 1.0
        self._steps = 0

    def cost(self, bs: int, budget: int, mean_context: float) -> float:
        """Milliseconds of a step, linear in the context length between measurements."""
        padded = next((x for x in self.batch_sizes if x >= bs), self.batch_sizes[-1])
        measured = self.costs.get((padded, budget))
        if measured is None or not auto_allows(bs, budget):
            return float("inf")
        if len(measured) == 1:
            return measured[0]
        low, high = self.contexts[0], self.contexts[-1]
        slope = (measured[-1] - measured[0]) / (high - low)
        return measured[0] + max(slope, 0.0) * (mean_context - low)

    def choose(self, bs: int, mean_context: float) -> int:
        """The budget of the next step for `bs` requests."""
        self._steps += 1
        rates = {
            budget: (1.0 + self.acceptance * self.drafts[budget])
            / self.cost(bs, budget, mean_context)
            for budget in self.sizes
        }
        best = max(rates, key=rates.__getitem__)
        if self._steps % _PROBE_INTERVAL == 0:
            # Look beyond the best size now and then: smaller trees tell nothing of it.
            larger = [
                b for b in self.sizes if b > best and rates[b] > 0.7 * rates[best]
            ]
            return larger[0] if larger else best
        return best

    def update(self, budget: int, expected: Sequence[float], committed: float) -> None:
        """Learn from a step.

        Args:
            budget: of the step.
            expected: mean tokens per request that the trees promised for each size up to
                `budget`, the bonus token included.
            committed: mean tokens per request that were committed.
        """
        if budget == 0:
            return
        before = self.drafts[budget]
        # Not a number (one broken row of logits) must not end drafting for good.
        expected = [min(max(x, 1.0), s + 1.0) for s, x in zip(self.sizes, expected)]
        for size, value in zip(self.sizes, expected):
            self.drafts[size] += (1 - _DECAY) * (value - 1.0 - self.drafts[size])
        scale = self.drafts[budget] / max(before, 1e-6)
        for size in self.sizes:
            if size > budget:
                self.drafts[size] *= scale
        promised = expected[-1] - 1.0
        if promised > 1e-3:
            ratio = min(max((committed - 1.0) / promised, 0.0), 4.0)
            self.acceptance += (1 - _DECAY) * (ratio - self.acceptance)


def auto_shapes(capture_bs: Sequence[int], max_budget: int) -> List[Tuple[int, int]]:
    """(batch size, budget) pairs that `auto` captures.

    Batch sizes are thinned out to steps of about a third; large trees are left out where
    the batch alone fills the GPU.
    """
    kept: List[int] = []
    for bs in sorted(capture_bs):
        if not kept or bs >= 1.3 * kept[-1] or bs == max(capture_bs):
            kept.append(bs)
    sizes = [b for b in AUTO_BUDGETS if b <= max_budget]
    return [
        (bs, budget)
        for bs in kept
        for budget in sizes
        if auto_allows(bs, budget)
    ]
