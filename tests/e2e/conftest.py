from __future__ import annotations

from pathlib import Path

import pytest
from e2e.fixtures import supported


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = supported()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.timeout(1800))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))
