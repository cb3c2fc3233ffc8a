from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree_deploy.release.journal import Journal, activation_stack, read_journal


def test_lines_have_time_run_and_event(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append("begin", action="01-clone", where="caf\udce9")
    journal.append("end", action="01-clone")
    first, second = read_journal(tmp_path / "journal.jsonl")
    assert first["event"] == "begin"
    assert first["run"] == second["run"]
    assert first["ts"].endswith("Z")
    assert first["where"] == "caf\udce9"


@pytest.mark.parametrize("torn", ['{"ts": "x", "event": "beg', "{", '"text"', "\x00\x00\x00", '{"event": "x"'])
def test_a_torn_last_line_is_tolerated_and_not_glued_to_the_next(tmp_path: Path, torn: str) -> None:
    path = tmp_path / "journal.jsonl"
    Journal(path).append("begin", action="a")
    with path.open("a") as stream:
        stream.write(torn)
    Journal(path).append("end", action="a")
    assert [entry["event"] for entry in read_journal(path)] == ["begin", "end"]
    assert json.loads(path.read_text().splitlines()[-1])["event"] == "end"


def test_no_journal_yet(tmp_path: Path) -> None:
    assert read_journal(tmp_path / "journal.jsonl") == []


@pytest.mark.parametrize(
    ("events", "stack"),
    [
        ([("a", "provision")], ["a"]),
        ([("a", "provision"), ("b", "provision"), ("c", "provision")], ["a", "b", "c"]),
        ([("a", "provision"), ("b", "provision"), ("a", "rollback")], ["a"]),
        ([("a", "provision"), ("b", "provision"), ("c", "provision"), ("b", "rollback")], ["a", "b"]),
        ([("a", "provision"), ("b", "provision"), ("a", "rollback"), ("b", "rollback")], ["a", "b"]),
        ([("a", "provision"), ("b", "provision"), ("a", "provision")], ["b", "a"]),
        ([("a", "provision"), ("a", "provision")], ["a"]),
        ([("a", "provision"), ("b", "provision"), ("c", "provision"), ("b", None)], ["a", "c"]),
        ([("a", "provision"), ("b", "provision"), ("a", None), ("a", "provision")], ["b", "a"]),
        ([("a", None)], []),
    ],
)
def test_activation_stack(events: list, stack: list) -> None:
    """Without a ``by`` it was pruned."""
    entries = [{"event": "activated" if by else "pruned", "release": release, "by": by} for release, by in events]
    assert activation_stack([{"event": "begin"}, *entries]) == stack
