"""Session fixtures: one real release, provisioned by the real command line, for all end-to-end tests."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from e2e.base_venv import UV, make_base_venv
from e2e.program import PROJECT, Program, Ran, end, kill_with_agent
from e2e.snapshot import Entry, snapshot
from processes import mentioning, wait_until
from shared import is_made, made_once

PAIR = PROJECT / "pairs" / "nano"
ENGINE = "DDTREE_ENGINE_PYTHON"
PROFILE = "sglang-0.5.11-cpu"
HOST = """\
  {name}:
    connection: {connection}
    root: {root}
    base: {base}
    profile: sglang-0.5.11-cpu
    model: {pair}/target
    draft: {pair}/draft
    budget: 31
    ports: {ports}
    launch_timeout: 300
"""


@dataclass(frozen=True)
class LocalRelease:
    """The session's release and what was seen while it came to be."""

    program: Program
    folder: Path
    root: Path
    base: Path
    base_before: dict[str, Entry]
    planned: Ran  # plan --json, before anything was done
    interrupted: Ran  # a provision that was killed while uv worked
    after_kill: list[Path]  # what it left under the root
    provisioned: Ran  # provision --json
    engine: Path  # a copy of the release, for tests of the engine while others do with the release what they like

    @property
    def id(self) -> str:
        return str(self.provisioned.host["result"]["release_id"])

    @property
    def path(self) -> Path:
        return self.root / "releases" / self.id

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def current(self) -> str:
        return (self.root / "current").readlink().name


def host_entry(name: str, root: Path, base: Path, ports: str, connection: str = "local", more: str = "") -> str:
    entry = HOST.format(name=name, root=root, base=base, pair=PAIR, ports=ports, connection=connection)
    return entry + "".join(f"    {line}\n" for line in more.splitlines())


@pytest.fixture(scope="session")
def workdir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all workers on the file system of uv's cache, so that releases of 8 GB are hard links."""

    def make() -> Path:
        cache = Path(subprocess.run([UV, "cache", "dir"], check=True, capture_output=True, text=True).stdout.strip())
        cache.mkdir(parents=True, exist_ok=True)
        folder = tmp_path_factory.mktemp("e2e")
        if folder.stat().st_dev != cache.stat().st_dev:
            folder = Path(tempfile.mkdtemp(prefix="ddtree-e2e-", dir=cache.parent))
        folder.chmod(0o755)
        return folder

    return made_once("workdir", make)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Neither that folder nor a process that was started from it outlives the session."""
    if not hasattr(config, "workerinput") and is_made("workdir"):
        folder: Path = made_once("workdir", Path)
        for pid in mentioning(str(folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def local_release(workdir: Path) -> LocalRelease:
    """The CPU profile on this machine: planned, killed while uv works, and provisioned."""
    return made_once("release", lambda: _make_release(workdir / "local"))


def _make_release(folder: Path) -> LocalRelease:
    folder.mkdir()
    root, base = folder / "root", make_base_venv(folder / "base", folder / "outer")
    inventory = folder / "hosts.yaml"
    inventory.write_text("hosts:\n" + host_entry("box", root, base, "18000-18009"), "utf-8")
    program = Program(inventory)
    before = snapshot(base)
    planned = program.run("plan", "box", "--json")
    interrupted = _killed_while_uv_works(program, root)
    left = sorted(root.rglob("*.partial"))
    provisioned = program.run("provision", "box", "--json", timeout=1500, code=0)
    engine = folder / "engine"
    _copy((root / "current").resolve(), engine)
    return LocalRelease(program, folder, root, base, before, planned, interrupted, left, provisioned, engine)


def _copy(release: Path, to: Path) -> None:
    """Of hard links where the release has some itself, so that no link count says what it would not say otherwise."""
    shutil.copytree(
        release,
        to,
        symlinks=True,
        copy_function=lambda old, new: (os.link if Path(old).stat().st_nlink > 1 else shutil.copy2)(old, new),
    )
    # Its record names its own folder: the environment of an engine from there is none of a service of the release.
    record = to / ".ddtree" / "release.json"
    text = record.read_text("utf-8").replace(str(release), str(to))
    record.unlink()
    record.write_text(text, "utf-8")


@pytest.fixture(scope="session")
def engine_release(request: pytest.FixtureRequest) -> str:
    """The python of a release with the engine, in the environment variable too: the one that it names, else ours."""
    if not os.environ.get(ENGINE):
        if reason := supported():
            pytest.skip(reason)
        release: LocalRelease = request.getfixturevalue("local_release")
        os.environ[ENGINE] = str(release.engine / "bin" / "python")
    return os.environ[ENGINE]


def _killed_while_uv_works(program: Program, root: Path) -> Ran:
    process = program.start("provision", "box", "--json")
    try:
        wait_until(
            lambda: (
                process.poll() is not None or list(root.glob("cache/staging/*.partial/lib/python3*/site-packages/*"))
            ),
            "uv at work",
            600,
        )
        kill_with_agent(process.pid)
        out, err = process.communicate(timeout=60)
        wait_until(lambda: not mentioning(str(root)), "the end of what the agent had started")
    finally:
        end(process)
    return Ran(process.returncode, out, err, 0.0)


def supported() -> str | None:
    """Why the profile cannot be provisioned here, if it cannot."""
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        return "the CPU profile is for Linux on x86_64"
    return None
