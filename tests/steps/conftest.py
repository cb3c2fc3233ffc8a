from __future__ import annotations

import sys
from pathlib import Path
from typing import Dict

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "release"))

import venvs


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    return venvs.demo_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def base(tmp_path: Path, wheels: Dict[str, Path]) -> Path:
    path = venvs.make_venv(tmp_path / "base")
    venvs.install(path, wheels["engine-1"], wheels["lib-1"])
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"
