"""Versions: their order, and what markers ask."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from packaging.markers import Marker

from ddtree_deploy.errors import InputError
from ddtree_deploy.release.donor import same_public
from ddtree_deploy.versions import equal_versions, marker_environment, same_version, version_key


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


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("2.11", "2.11.0", True),
        ("0.5.11.0", "0.5.11", True),
        ("1.0rc1", "1.0.RC1", True),
        ("1.0+cu130", "1.0.0+CU130", True),
        ("1.0", "1.0+cu130", False),
        ("2.1", "2.10", False),
        ("1.0", "1.0.post1", False),
        ("nightly", "nightly", True),
        ("nightly", "1.0", False),
    ],
)
def test_versions_are_equal_by_pep_440(left: str, right: str, equal: bool) -> None:
    assert equal_versions(left, right) is equal_versions(right, left) is equal


@pytest.mark.parametrize("same", [same_version, same_public])
def test_what_an_index_leaves_out_does_not_count(same: Callable[[str, str], bool]) -> None:
    assert same("2.11.0", "2.11") and same("2.11.0+cu130", "2.11") and same("2.11", "2.11.0+cu130")
    assert same("2.11.0+cu130", "2.11+cu130") and not same("2.11.0+cu130", "2.11+cu128")
    assert not same("2.11.1+cu130", "2.11")


@pytest.mark.parametrize(
    ("installed", "same"),
    [("0.5.11+cu130", True), ("0.5.11+cpu", True), ("0.5.11+local", False), ("0.5.11+cu130.git1a2b3c", False)],
)
def test_a_local_part_is_a_cuda_build_s_or_somebody_s_own(installed: str, same: bool) -> None:
    assert same_version(installed, "0.5.11") is same_version("0.5.11", installed) is same
