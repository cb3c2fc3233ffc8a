from __future__ import annotations

import re

import pytest

from ddtree_deploy.verify.noise import Rule, classify, load_rules


def kinds(lines: list[str], cuda: str | None) -> list[str]:
    return [line.kind for line in classify(lines, {"torch_cuda": cuda}, load_rules())]


NOTICE = "2026-05-01 WARNING compilation_context.py:70: Failed to get device capability: SM 12.x requires CUDA >= 12.9."


@pytest.mark.parametrize(
    ("cuda", "kind"), [("13.0", "noise"), ("12.9", "noise"), ("12.8", "warning"), (None, "unknown")]
)
def test_the_same_line_is_noise_or_trouble(cuda: str | None, kind: str) -> None:
    (line,) = classify([NOTICE], {"torch_cuda": cuda}, load_rules())
    assert line.kind == kind
    assert (line.reason is None) == (kind == "unknown")


def test_torchaos_warning_takes_its_source_line_along() -> None:
    lines = [
        "/r/site-packages/torchao/quantization/quant_api.py:1731: SyntaxWarning: invalid escape sequence '\\.'",
        "  .. note::",
        "RuntimeError: something else",
    ]
    assert kinds(lines, "13.0") == ["noise", "noise", "unknown"]
    other = lines[0].replace("torchao", "mine")
    assert kinds([other], "13.0") == ["unknown"]


def test_every_rule_says_why_and_where_from() -> None:
    rules = load_rules()
    assert len({rule.id for rule in rules}) == len(rules)
    for rule in rules:
        re.compile(rule.pattern)
        assert len(rule.reason) > 20
        assert rule.source


def test_first_rule_that_holds_wins_and_an_inner_match_restarts() -> None:
    rules = [
        Rule("a", "start", "noise", "r", "s", lines=3),
        Rule("b", "bad", "warning", "r", "s"),
        Rule("c", "bad|other", "noise", "r", "s"),
    ]
    lines = ["start", "bad", "after", "other"]
    assert [line.rule for line in classify(lines, {}, rules)] == ["a", "b", None, "c"]


@pytest.mark.parametrize(("gpus", "kind"), [("0", "noise"), ("2", "warning"), (None, "unknown")])
def test_what_an_engine_says_without_a_gpu_is_trouble_where_there_is_one(gpus: str | None, kind: str) -> None:
    lines = ["…/awq.py:52: UserWarning: Only CUDA, HIP and XPU support AWQ currently.", "  warnings.warn(", "other"]
    found = classify(lines, {"gpus": gpus}, load_rules())
    assert [line.kind for line in found] == [kind, kind, "unknown"]
