"""A base venv that belongs to somebody else, and a small disk: real users and file systems, so root is needed."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, Iterator

import elftools
import packaging
import pytest
import venvs

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import StepError
from ddtree_deploy.release.executor import apply_plan

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

RUN = """
import json, sys
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.release.executor import apply_plan
print(json.dumps(apply_plan(json.load(open(sys.argv[1])), silent)))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def python_of(user: str) -> str:
    """A Python that ``user`` may run: this one's may lie below root's home."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        # By a shell: a program that may not be run is an error of this process otherwise.
        tried = ["sh", "-c", '"$0" -c "import sys; assert sys.version_info >= (3, 9)"', python]
        if subprocess.run(tried, user=user, cwd="/", capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip(f"no Python here that {user} may run")


@pytest.mark.parametrize("user", ["nobody"])
def test_an_ordinary_user_clones_the_venv_of_root(open_folder: Path, wheels: Dict[str, Path], user: str) -> None:
    base = venvs.make_venv(open_folder / "base")
    venvs.install(base, wheels["engine-1"])
    (base / venvs.SITE / "locked").mkdir()
    (base / venvs.SITE / "locked" / "file.txt").write_text(str(base))
    (base / venvs.SITE / "locked").chmod(0o555)
    subprocess.run(["chmod", "-R", "go+rX", str(base)], check=True)
    root = open_folder / "root"
    root.mkdir()
    os.chown(root, pwd.getpwnam(user).pw_uid, -1)
    before = venvs.tree_state(base)
    plan = venvs.make_plan(
        root, base, "test-1", [venvs.clone_action(base, "test-1", "d" * 64), venvs.activate_action()]
    )
    arguments = open_folder / "params.json"
    arguments.write_text(json.dumps({"plan": plan}))
    source = Path(__file__).parent.parent.parent
    code = open_folder / "code"
    sources = shutil.ignore_patterns("__pycache__")  # others are writing there
    shutil.copytree(source / "ddtree_deploy", code / "ddtree_deploy", ignore=sources)
    for package in (packaging, elftools):  # this Python's own may lie where the user may not look
        shutil.copytree(Path(package.__file__).parent, code / package.__name__, ignore=sources)
    done = subprocess.run(
        [python_of(user), "-c", RUN, str(arguments)],
        user=user,
        cwd="/",
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(code), "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)["actions"][0]["result"]["counts"]
    protected = Path("/proc/sys/fs/protected_hardlinks").read_text().strip() == "1"
    assert (counts.get("copy", 0) > 0) == protected
    release = root / "releases" / "test-1"
    assert venvs.run([release / "bin" / "engine"]).stdout.startswith("engine 1.0")
    assert (release / venvs.SITE / "locked" / "file.txt").read_text() == str(release)
    assert venvs.tree_state(base) == before


def test_disk_that_is_full_before(base: Path, small_disk: Path) -> None:
    (base / "big").write_bytes(b"x" * (4 << 20))
    action = venvs.clone_action(base, "test-1", "d" * 64)
    with pytest.raises(StepError, match="are missing") as caught:
        apply_plan({"plan": venvs.make_plan(small_disk, base, "test-1", [action])}, silent)
    assert caught.value.id == "no-space"
    assert caught.value.details["missing_bytes"] > 2 << 20
    assert list((small_disk / "releases").iterdir()) == []


def test_disk_that_gets_full_meanwhile(base: Path, small_disk: Path) -> None:
    (base / "big").write_bytes(b"x" * (4 << 20))
    action = venvs.clone_action(base, "test-1", "d" * 64)
    action.params["method"] = "copy"  # the planner knew, and the space it saw is gone
    with pytest.raises(StepError, match="no space left") as caught:
        apply_plan({"plan": venvs.make_plan(small_disk, base, "test-1", [action])}, silent)
    assert caught.value.id == "no-space"
    assert list((small_disk / "releases").iterdir()) == []
    (base / "big").unlink()
    apply_plan(
        {"plan": venvs.make_plan(small_disk, base, "test-1", [action, venvs.activate_action()])}, silent
    )  # a copy on another file system
    assert venvs.run([small_disk / "current" / "bin" / "engine"]).stdout.startswith("engine 1.0")


@pytest.mark.parametrize("small_disk", ["nr_inodes=24"], indirect=True)
def test_a_file_system_without_inodes(base: Path, small_disk: Path) -> None:
    for number in range(30):
        (base / f"file{number}").touch()
    action = venvs.clone_action(base, "test-1", "d" * 64)
    with pytest.raises(StepError, match="no inodes left") as caught:
        apply_plan({"plan": venvs.make_plan(small_disk, base, "test-1", [action])}, silent)
    assert (caught.value.id, caught.value.details["free_inodes"]) == ("no-space", 0)
    assert "more bytes" not in caught.value.message
