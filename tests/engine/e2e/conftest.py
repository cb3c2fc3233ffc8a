from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine.reference import PlainReference, ddtree_args
from engine.support import Server
from shared import made_once


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.timeout(600))
            if item.get_closest_marker("slow") and not os.environ.get("DDTREE_ENGINE_SLOW"):
                item.add_marker(pytest.mark.skip(reason="DDTREE_ENGINE_SLOW is not set"))


@pytest.fixture(scope="session")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("engine")


@pytest.fixture(scope="session")
def plain(scratch: Path) -> PlainReference:
    """What plain decoding answers, asked once, of a server that then ends."""

    def ask() -> PlainReference:
        with Server(scratch) as server:
            return PlainReference(server)

    return made_once("plain", ask)


@pytest.fixture(scope="class")
def ddtree(scratch: Path, plain: PlainReference) -> Iterator[Server]:
    with Server(scratch, *ddtree_args(31)) as server:
        yield server
