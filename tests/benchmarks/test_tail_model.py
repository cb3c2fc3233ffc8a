"""The model of a short workload, on cases that can be reckoned by hand."""

from __future__ import annotations

import pytest
import tail_model


def cost(running: int, budget: int) -> float:
    return {0: 5.0, 15: 6.0, 63: 7.0}[budget] + (0.0 if budget < 63 else running)


EASY, HARD = {15: 4.0, 63: 8.0}, {15: 2.0, 63: 2.5}


def test_one_request_at_a_time():
    played = tail_model.play([{15: 3.0}] * 2, 1, cost, prefill_ms=10.0)
    assert played.steps == 2 * 53 and played.prefill_ms == 20.0  # 159 tokens follow the prefill's, 3 a step
    assert played.ms == pytest.approx(20 + 106 * 6)
    assert played.tokens_per_s(2) == pytest.approx(1000 * 320 / played.ms)


def test_the_last_requests_run_with_empty_slots():
    played = tail_model.play([EASY, HARD], 2, lambda running, budget: 6.0, prefill_ms=0.0)
    assert played.steps == pytest.approx(64)  # of the hard one, at the better budget: 159 / 2.5
    assert played.full_ms == pytest.approx(6.0 * 20)  # 159 / 8
    full = tail_model.play([EASY, HARD], 2, lambda running, budget: 6.0, prefill_ms=0.0, full=True)
    assert full.ms < played.ms


def test_a_batch_between_two_measured_sizes_costs_the_larger():
    found = tail_model.cost_of({"1,0": [4.0, 5.0], "4,0": [4.4, 6.0], "1,15": [6.0]})
    assert found(1, 0) == 4.0 and found(3, 0) == 4.4 and found(9, 0) == 4.4
    assert found(4, 15) == float("inf")


def test_the_budget_with_the_most_tokens_per_millisecond():
    # One easy request: 8 tokens in 8 ms against 4 in 6.
    assert tail_model.best_budget(cost, [EASY], [EASY]) == 63
    # Four hard ones: 2.5 in 11 ms against 2 in 6.
    assert tail_model.best_budget(cost, [HARD] * 4, [HARD] * 4) == 15


def test_requests_of_a_result_file():
    results = {
        "sweep": {
            "servers": {
                "ddtree 15": {"cells": {"T=0 c=4": {"verify_steps": [53, 30]}}},
                "ddtree 63": {"cells": {"T=0 c=4": {"verify_steps": [40, 20]}}},
            }
        }
    }
    requests = tail_model.rates_of(results, 4)
    assert requests[0] == {0: 1.0, 15: 3.0, 63: 159 / 40} and requests[1][63] == 159 / 20
    table = {f"{bs},{b}": [5.0 + b / 30] for bs in (1, 2, 4) for b in (0, 15, 63)}
    found = tail_model.report(requests, 2, tail_model.cost_of(table), prefill_ms=7.0)
    assert found["as it is"] < found["without tail"] < found["without tail and prefill"]
