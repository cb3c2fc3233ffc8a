"""docs/abi.md lists every case, and nothing that is no test."""

from __future__ import annotations

import re
from pathlib import Path

from abi.cases import CASES
from abi.test_real_wheels import BROKEN

from ddtree_deploy.abi.explain import EXPLANATIONS

DOCS = (Path(__file__).parents[2] / "docs/abi.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in DOCS.partition("\n## Every case\n")[2].partition("\n## ")[0].splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| case"))
]


def test_every_row_is_a_test_and_every_test_a_row() -> None:
    documented = [(name, id.strip("`"), severity, when) for name, id, severity, when, *_ in ROWS]
    expected = [(case.name.replace("-", " "), case.id, case.severity, case.when.replace("-", " ")) for case in CASES]
    assert documented == expected


def test_the_last_columns_are_what_each_case_asserts() -> None:
    """Found with nothing imported, and no error or warning in the clean twin: test_abi_cases.py, for every case."""
    assert {(row[-2], row[-1]) for row in ROWS} == {("yes", "0")}


def test_every_id_has_a_case_or_is_said_to_have_none() -> None:
    without = set(re.findall(r"`([a-z-]+)`", DOCS.partition("Ids that have no row")[2].partition("\n\n")[0]))
    assert {case.id for case in CASES} | without == set(EXPLANATIONS)


def test_what_real_wheels_are_said_to_show_is_what_their_test_expects() -> None:
    section = DOCS.partition("\n## Real wheels\n")[2].partition("\n## ")[0]
    for _, _, expected in BROKEN.values():
        assert all(f"`{id}`" in section for id in expected)
