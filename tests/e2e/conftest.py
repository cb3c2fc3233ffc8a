from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.base_venv import make_plain_venv
from e2e.fixtures import host_entry, supported
from e2e.program import Program
from e2e.refused import QUICK
from e2e.small import Small, make_small
from processes import mentioning


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = supported()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1800))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    small = make_small(tmp_path / "small")
    yield small
    assert mentioning(str(small.folder)) == {}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """One with a release, for commands that need one."""
    small = make_small(tmp_path_factory.mktemp("released"))
    small.program().run(*QUICK, code=0)
    return small


@pytest.fixture
def cpu(tmp_path: Path) -> tuple[Path, Program]:
    """A base venv without packages, and the CPU profile on it; never provisioned."""
    base = make_plain_venv(tmp_path / "base")
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text("hosts:\n" + host_entry("box", tmp_path / "root", base, "18030-18039"), "utf-8")
    return base, Program(inventory)
