"""Chi-square of counts against probabilities. Standard library only."""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple

LEAST = 8.0  # expected draws of a cell; what is rarer is counted together


class Fit(NamedTuple):
    chi2: float
    freedom: int
    bound: float  # what chi2 exceeds once in 100,000 honest runs

    @property
    def fits(self) -> bool:
        return self.chi2 < self.bound


def chi_square(counts: Mapping[Any, int], probabilities: Mapping[Any, float], spread: float = 0.0) -> Fit:
    """How ``counts`` fit ``probabilities``, which need not name all outcomes: the rest is one cell.

    ``spread``: the relative error that a probability may have, from rounding in the engine. It makes chi-square larger
    by ``draws * spread ** 2`` (the noncentrality), which the bound allows for, twice.
    """
    draws = sum(counts.values())
    cells = {outcome: p for outcome, p in probabilities.items() if draws * p >= LEAST}
    pairs = [(counts.get(outcome, 0), draws * p) for outcome, p in cells.items()]
    rest = draws * (1.0 - sum(cells.values()))
    if rest >= 1.0:
        pairs.append((draws - sum(seen for seen, _ in pairs), rest))
    chi2 = sum((seen - expected) ** 2 / expected for seen, expected in pairs)
    freedom = max(len(pairs) - 1, 1)
    # Wilson and Hilferty's approximation of the quantile, 4.3 standard deviations out.
    bound = freedom * (1 - 2 / (9 * freedom) + 4.3 * (2 / (9 * freedom)) ** 0.5) ** 3
    return Fit(chi2, freedom, bound + 2 * draws * spread**2)
