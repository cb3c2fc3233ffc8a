"""Fixtures of tests that work on a small real base venv; a conftest imports those that its folder needs."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

import pytest
import venvs

__all__ = ["base", "root", "wheels"]


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Dict[str, Path]:
    return venvs.demo_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def base(tmp_path: Path, wheels: Dict[str, Path]) -> Path:
    """A venv with two packages, installed by uv."""
    return venvs.make_filled_venv(tmp_path / "base", wheels["engine-1"], wheels["lib-1"])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"
