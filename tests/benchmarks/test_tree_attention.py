"""Which cuts of the attention kernel are tried; that it gives the same with each is checked where it runs."""

import pytest
import tree_attention


@pytest.mark.parametrize("name", tree_attention.SHAPES)
def test_cuts_fit_the_shape(name):
    shape = tree_attention.SHAPES[name]
    cuts = list(tree_attention.cuts(shape))
    assert len(cuts) == len(set(cuts)) > 20
    assert all(16 <= block_m < 2 * max(16, shape.rows) for block_m, *_ in cuts), "no block of mostly empty rows"
    assert {splits for *_, splits in cuts} == {1, 2, 4, 8}


def test_shapes_are_those_of_the_engine():
    for shape in tree_attention.SHAPES.values():
        assert shape.heads % shape.kv_heads == 0
        assert shape.rows == shape.num_q * shape.heads / shape.kv_heads
