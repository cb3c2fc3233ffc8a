from __future__ import annotations

from pathlib import Path

import pytest
import venvs
from venv_fixtures import base, root, wheels

__all__ = ["base", "donor", "native", "own_home", "root", "wheels"]


@pytest.fixture(autouse=True)
def own_home(home: Path) -> Path:
    """Hashes are kept there."""
    return home


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = {"native/__init__.py": "V = 3\n", "native/lib.so": "\x7fELF" + "x" * 300_000}
    return venvs.make_wheel(tmp_path_factory.mktemp("native"), "native", "3.0", files)


@pytest.fixture
def donor(tmp_path: Path, wheels: dict[str, Path], native: Path) -> Path:
    """A donor venv: two packages, one of them with a script, a data file, a link and a shared object."""
    path = venvs.make_filled_venv(tmp_path / "donor", wheels["lib-2"], wheels["extra"], native)
    (path / venvs.SITE / "some_lib" / "link.py").symlink_to("new.py")
    with (path / venvs.SITE / "some_lib-2.0.dist-info" / "RECORD").open("a") as record:
        record.write("some_lib/link.py,,\n")
    return path
