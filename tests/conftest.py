"""For all tests. Those of the real engine get its release; provisioned on demand, once in a session."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import tempfile
from pathlib import Path

import pytest

pytest_plugins = ["e2e.fixtures", "e2e.units"]

with contextlib.suppress(ImportError):  # the python of a release reads this too, and may have none
    from hypothesis import HealthCheck, settings

    # The same examples in every run, however long a busy machine takes for them.
    settings.register_profile("tests", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("tests")

# A shell's `&` starts programs that ignore SIGINT, and theirs do too: no test of Ctrl-C could pass.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """One folder for all workers, for what is compiled once in a session: shared objects, and for the fast tests our
    sources, which hundreds of processes import. No byte code lies beside a source. (End-to-end tests run installers,
    which would write that folder into what they install.)"""
    if not hasattr(config, "workerinput"):
        folder = tempfile.mkdtemp(prefix="ddtree-tests-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ["DDTREE_TESTS_CACHE"] = folder
        if config.option.markexpr == "not e2e":
            os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Folders ``e2e`` hold end-to-end tests alone: they are not read, only to be left out."""
    return True if collection_path.name == "e2e" and config.option.markexpr == "not e2e" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("engine") and isinstance(item, pytest.Function):
            item.fixturenames.insert(0, "engine_release")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HOME of its own for a test, so that nobody's keys, agent, known_hosts and caches are used."""
    folder = tmp_path / "controller-home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / ".cache"))
    (folder / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(folder / "tmp"))  # the agent's second choice of a cache is there
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.delenv("DDTREE_KNOWN_HOSTS", raising=False)
    return folder
