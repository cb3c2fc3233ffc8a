from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "release"))

import venvs


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HOME of its own: hashes are kept there, and nobody's keys are used."""
    folder = tmp_path / "controller-home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("DDTREE_KNOWN_HOSTS", raising=False)
    return folder


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return venvs.demo_wheels(tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def base(tmp_path: Path, wheels: dict[str, Path]) -> Path:
    path = venvs.make_venv(tmp_path / "base")
    venvs.install(path, wheels["engine-1"], wheels["lib-1"])
    return path


@pytest.fixture
def donor(tmp_path: Path, wheels: dict[str, Path]) -> Path:
    """A donor venv: two packages, one of them with a script, a data file, a link and a shared object."""
    path = venvs.make_venv(tmp_path / "donor")
    native = venvs.make_wheel(
        tmp_path / "w", "native", "3.0", {"native/__init__.py": "V = 3\n", "native/lib.so": "\x7fELF" + "x" * 300_000}
    )
    venvs.install(path, wheels["lib-2"], wheels["extra"], native)
    (path / venvs.SITE / "some_lib" / "link.py").symlink_to("new.py")
    with (path / venvs.SITE / "some_lib-2.0.dist-info" / "RECORD").open("a") as record:
        record.write("some_lib/link.py,,\n")
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"
