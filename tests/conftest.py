"""For all tests. Those of the real engine get its release; provisioned on demand, once in a session."""

from __future__ import annotations

import pytest

pytest_plugins = ["e2e.fixtures"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("engine") and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "engine_release")
