"""One check for inventory, plan and launch, with the engine's limits."""

from __future__ import annotations

import re

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.load import load_inventory
from ddtree_deploy.plan.inputs import BUDGET_MAX, parse_budget
from ddtree_deploy.resources import data_dir


def test_the_limit_is_the_engines() -> None:
    source = (data_dir("patches") / "sglang-0.5.11" / "files" / "ddtree_utils.py").read_text("utf-8")
    assert re.findall(r"^MAX_DDTREE_BUDGET = (\d+)$", source, re.MULTILINE) == [str(BUDGET_MAX)]


def test_the_shipped_example_has_budgets_that_launch_takes() -> None:
    inventory = load_inventory(data_dir("inventory") / "example.yaml")
    found = [host.budget for host in inventory.select(["all"])]
    assert "auto" in found
    assert [parse_budget(budget) for budget in found if budget is not None] == [b for b in found if b is not None]


@pytest.mark.parametrize("value", [1, "1", 31, BUDGET_MAX, str(BUDGET_MAX), "auto"])
def test_budgets(value: int | str) -> None:
    assert str(parse_budget(value)) == str(value)


@pytest.mark.parametrize(
    ("value", "id"),
    [(0, "budget-out-of-range"), ("-1", "budget-out-of-range"), (BUDGET_MAX + 1, "budget-out-of-range")]
    + [(bad, "budget-invalid") for bad in (True, "", "many", "7.5", "Auto", " 31", "9" * 5000)],
)
def test_wrong_budgets(value: int | str, id: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_budget(value)
    assert caught.value.id == id and caught.value.hint
