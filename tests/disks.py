"""Small disks, for tests of full and read-only ones."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    options = getattr(request, "param", "size=2m")
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode != 0:
        pytest.skip("may not mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write into the disk of ``folder`` until it takes no byte more; removing the file that is returned makes room."""
    path = folder / "fill"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as stream:
        while stream.write(bytes(1 << 16)):
            pass
    return path
