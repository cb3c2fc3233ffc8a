"""A root with a release of the stand-in engine, and a clean end for whatever a test has started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import small_disk
from served_host import Host

__all__ = ["host", "small_disk"]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    one = Host(tmp_path / "root")
    yield one
    one.stop()
