"""Runs the unit tests of the patched engine with a release's python.

A release has torch and the engine but no pytest; this environment has pytest but no
torch. The test packages are pure Python, so links to them are enough.
"""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
from engine.support import PACKAGES, cpu_env, engine_python

UNIT = Path(__file__).parent / "unit"


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_unit_tests_pass_in_the_release(tmp_path: Path) -> None:
    links = tmp_path / "packages"
    links.mkdir()
    for name in PACKAGES:
        spec = importlib.util.find_spec(name.removesuffix(".py"))
        if spec is None or spec.origin is None:
            continue  # packaging and pygments are in the release, some others are optional
        origin = Path(spec.origin)
        (links / name).symlink_to(origin.parent if origin.name == "__init__.py" else origin)
    env = cpu_env(tmp_path)
    env["PYTHONPATH"] = os.pathsep.join([str(links), env["PYTHONPATH"]])
    done = subprocess.run(
        [engine_python(), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, f"--rootdir={UNIT}", UNIT],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=580,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "skipped" not in done.stdout.splitlines()[-1]
