import pytest
from sglang.srt.speculative.ddtree_args import parse_ddtree_budget
from sglang.srt.speculative.ddtree_utils import MAX_DDTREE_BUDGET
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


@pytest.mark.parametrize("value", ["1", 7, "63", MAX_DDTREE_BUDGET])
def test_budget(value):
    assert parse_ddtree_budget(value) == int(value)


@pytest.mark.parametrize("value", ["0", -1, 100000, "many", "1.5", ""])
def test_bad_budget_names_the_flag(value):
    with pytest.raises(ValueError, match="--speculative-ddtree-budget"):
        parse_ddtree_budget(value)


def test_algorithm():
    ddtree = SpeculativeAlgorithm.from_string("DDTREE")
    assert ddtree.is_ddtree() and ddtree.is_dflash()
    assert not SpeculativeAlgorithm.DFLASH.is_ddtree()
    assert not ddtree.supports_spec_v2()
