"""Versions: their order, and what markers ask."""

from __future__ import annotations

import pytest
from packaging.markers import Marker

from ddtree_deploy.errors import InputError
from ddtree_deploy.versions import marker_environment, version_key


def test_versions_are_ordered_by_their_numbers() -> None:
    assert sorted(["3.10", "3.4.30", "3.9"], key=version_key) == ["3.4.30", "3.9", "3.10"]


@pytest.mark.parametrize(
    ("python", "full"), [("3.11", "3.11.0"), ("3.11.2", "3.11.2"), ("3.13.0rc1", "3.13.0"), ("3", "3.0.0")]
)
def test_markers_are_evaluated_for_that_python(python: str, full: str) -> None:
    found = marker_environment(python, "aarch64")
    assert (found["python_full_version"], found["python_version"]) == (full, full.rpartition(".")[0])
    assert Marker("platform_machine == 'aarch64' and sys_platform == 'linux'").evaluate(found)


def test_what_is_no_version() -> None:
    with pytest.raises(InputError) as caught:
        marker_environment("three", "x86_64")
    assert caught.value.id == "bad-python-version"
