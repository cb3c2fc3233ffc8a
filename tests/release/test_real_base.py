"""Clone, overlay and prune on a real environment: nothing of it ever changes. Takes packages from the index.

``DDTREE_TEST_BASE`` names an environment to use as it is, the 8 GB of the engine for example; without it one is made.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Dict, List, Tuple

import pytest
import venvs

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.facts.venv import probe_venv
from ddtree_deploy.plan.model import Precondition
from ddtree_deploy.release.executor import apply_plan
from ddtree_deploy.release.files import sha256_file
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.prune import prune, remove_release
from ddtree_deploy.release.store import current_release

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
PACKAGES = [
    "numpy",
    "scipy",
    "requests",
    "ipykernel",
    "setuptools",
    "wheel",
    "pip",
    "pandas",
    "jupyter-core",
    "httpx[cli]",
]


@pytest.fixture
def real_base(tmp_path: Path) -> Path:
    given = os.environ.get("DDTREE_TEST_BASE")
    if given:
        return Path(given)
    base = venvs.make_venv(tmp_path / "real-base")
    venvs.run(
        [venvs.UV, "pip", "install", "--quiet", "--link-mode", "copy", "--python", base / "bin" / "python", *PACKAGES]
    )
    venvs.run([base / "bin" / "python", "-m", "ipykernel", "install", "--prefix", base])
    return base


def fingerprint(folder: Path) -> Dict[str, Tuple[int, int, int, str]]:
    """Mode, mtime, link count and sha256 of everything."""
    found = {}
    for path, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            full = Path(path, name)
            info = full.lstat()
            digest = ""
            if stat.S_ISREG(info.st_mode):
                digest = sha256_file(full)
            links = info.st_nlink if stat.S_ISREG(info.st_mode) else 0
            found[str(full.relative_to(folder))] = (info.st_mode, info.st_mtime_ns, links, digest)
    return found


def without_links(state: Dict[str, Tuple[int, int, int, str]]) -> Dict[str, Tuple[int, int, str]]:
    return {path: (mode, mtime, digest) for path, (mode, mtime, _, digest) in state.items()}


def test_real_environment(real_base: Path, root: Path, wheels: Dict[str, Path]) -> None:
    if real_base.stat().st_dev != root.parent.stat().st_dev:
        root = real_base.parent / f"ddtree-test-root-{os.getpid()}"
    before = fingerprint(real_base)
    venv = probe_venv(str(real_base))
    check = Precondition("venv-fingerprint", {"path": str(real_base), "fingerprint": venv.fingerprint})
    clone = venvs.clone_action(real_base, "real-1", "d" * 64, [check])
    site = str(Path(venv.site_packages or "").relative_to(real_base))
    clone.params["site_packages"] = clone.params["record"]["site_packages"] = site
    overlay = venvs.overlay_action(
        [("some-lib", "2.0", [venvs.sha256(wheels["lib-2"])])],
        ["numpy", "requests"],
        {"kind": "wheelhouse"},
        [wheels["lib-2"]],
    )
    overlay.params["site_packages"] = site
    blobs = {venvs.sha256(wheels["lib-2"]): str(wheels["lib-2"])}
    plan = venvs.make_plan(root, real_base, "real-1", [clone, overlay, venvs.activate_action()])
    try:
        result = apply_plan({"plan": plan, "blobs": blobs}, silent)
        release = root / "releases" / "real-1"
        assert result["actions"][0]["result"]["method"] in ("hardlink", "reflink")
        assert not (release / site / "numpy").exists()
        for needle in {str(real_base), str(real_base.resolve())}:
            assert _grep(release, needle) == []
        where = venvs.run([release / "bin" / "python", "-c", "import sys, some_lib; print(sys.prefix, some_lib.VALUE)"])
        assert where.stdout.split() == [str(release), "2"]
        for name in ("wheel", "httpx", "jupyter"):
            if (release / "bin" / name).exists():
                venvs.run([release / "bin" / name, "--help"])
        assert without_links(fingerprint(real_base)) == without_links(before)
        assert current_release(Layout(root)) == "real-1"
        prune(str(root), 0, silent)
        assert release.is_dir()
        remove_release(Layout(root), "real-1")
        after = fingerprint(real_base)
        if os.environ.get("DDTREE_TEST_BASE"):  # its files may be linked from elsewhere, where others work meanwhile
            assert without_links(after) == without_links(before)
        else:
            assert after == before  # the link counts too
    finally:
        if root.exists():
            venvs.remove(root)


def _grep(folder: Path, needle: str) -> List[str]:
    found = []
    for path, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            full = Path(path, name)
            if full.is_symlink():
                if needle in str(full.readlink()):
                    found.append(str(full))
            elif full.is_file() and needle.encode() in full.read_bytes():
                found.append(str(full))
    return found
