"""One limit for inventory, plan, launch and engine."""

from __future__ import annotations

import re

from ddtree_deploy.plan.inputs import BUDGET_MAX
from ddtree_deploy.resources import data_dir


def test_the_limit_is_the_engines() -> None:
    source = (data_dir("patches") / "sglang-0.5.11" / "files" / "ddtree_utils.py").read_text("utf-8")
    assert re.findall(r"^MAX_DDTREE_BUDGET = (\d+)$", source, re.MULTILINE) == [str(BUDGET_MAX)]
