import ast
import textwrap

import pytest

from ddtree_deploy.survey.masks import implies_tree, mask_use


@pytest.mark.parametrize(
    ("test", "held", "expected"),
    [
        ("self.topk > 1", True, True),
        ("self.topk > 1", False, False),
        ("topk >= 2", True, True),
        ("self.topk <= 1", False, True),
        ("self.topk < 2", False, True),
        ("not self.topk > 1", False, True),
        ("mode and self.topk > 1", True, True),
        ("mode or self.topk > 1", True, False),
        ("self.topk <= 1 or mode", False, True),
        ("self.topk > 0", True, False),
        ("self.topk == 1", False, False),
        ("size > 1", True, False),
        ("self.topk > limit", True, False),
    ],
)
def test_implies_tree(test, held, expected):
    assert implies_tree(ast.parse(test, mode="eval").body, held) is expected


def use(source):
    return mask_use(ast.parse(textwrap.dedent(source)).body)


@pytest.mark.parametrize(
    ("body", "reads", "gated"),
    [
        ("x = spec_info.custom_mask", 1, False),
        ("x = forward_batch.spec_info.custom_mask[0]", 1, False),
        ("x = getattr(spec_info, 'custom_mask', None)", 1, False),
        ("x = self.metadata.custom_mask", 0, False),
        ("spec_info.custom_mask = x", 0, False),
        ("x = spec_info.custom_mask if self.topk > 1 else None", 1, True),
        ("if self.topk <= 1:\n    pass\nelse:\n    x = spec_info.custom_mask", 1, True),
        ("if self.topk <= 1:\n    return\nx = spec_info.custom_mask", 1, True),
        ("if self.topk <= 1:\n    y = 1\nx = spec_info.custom_mask", 1, False),
        ("a, m = spec_info.generate_attn_arg_prefill()\nplan(a, m)", 1, False),
        ("a, m = spec_info.generate_attn_arg_prefill()\nplan(a)", 0, False),
        ("m = spec_info.generate_attn_arg_prefill()", 0, False),
    ],
)
def test_reads(body, reads, gated):
    found = use("def f(self):\n" + textwrap.indent(body, "    "))
    assert len(found.reads) == reads
    assert all(read.gated is gated for read in found.reads)
    assert bool(found.dropped) == ("generate" in body and not reads)


def test_a_gate_ends_with_its_block():
    found = use(
        """
        class A:
            def f(self):
                if mode:
                    if self.topk <= 1:
                        return
                    a = spec_info.custom_mask
                b = spec_info.custom_mask

            def capture_graph(self):
                c = spec_info.custom_mask
        """
    )
    assert [(read.gated, read.graph) for read in found.reads] == [(True, False), (False, False), (False, True)]
