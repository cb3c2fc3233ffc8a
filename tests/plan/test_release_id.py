from __future__ import annotations

from typing import Any

import pytest
from planning import inputs_of

from ddtree_deploy.plan.release_id import inputs_digest, release_id

SAME: list[dict[str, Any]] = [
    {},
    {"facts": {"hostname": "other", "kernel": "7", "boot_id": "x", "driver": "590.1", "root": "/srv/ddtree"}},
    {"settings": {"host": "other", "budget": "31"}},
    {"source": {"location": "https://mirror.example/simple"}},
    {"facts": {"partial": ["x.partial"], "current": "y"}},
]
OTHER: list[dict[str, Any]] = [
    {"facts": {"base": {"fingerprint": "f2"}}},
    {"profile": {"digest": "p2"}},
    {"patch_set": {"digest": "s2"}},
    {"patch_set": None},
    {"source": {"kind": "wheelhouse"}},
    {"playbook": {"steps": [{"step": "clone"}, {"step": "activate"}]}},
    {"source": {"kind": "donor"}, "donor": {"base": {"fingerprint": "d1"}}},
    {"source": {"kind": "donor"}, "donor": {"base": {"fingerprint": "d2"}}},
]


@pytest.mark.parametrize("patch", SAME)
def test_what_does_not_change_a_release_does_not_change_its_id(patch: dict[str, Any]) -> None:
    assert inputs_digest(inputs_of(patch)) == inputs_digest(inputs_of())


def test_whatever_changes_a_release_changes_its_id() -> None:
    digests = {inputs_digest(inputs_of(patch)) for patch in [{}, *OTHER]}
    assert len(digests) == 1 + len(OTHER)


def test_the_id_says_what_is_inside() -> None:
    digest = inputs_digest(inputs_of())
    assert release_id("engine-1.0-cu130", digest) == f"engine-1.0-cu130-{digest[:12]}"
