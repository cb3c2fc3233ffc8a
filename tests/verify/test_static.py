"""Files as provisioned or not; the audit itself is tested with ``abi``."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

import pytest
from release_double import fill, make_venv, site_packages

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.verify.model import CheckResult
from ddtree_deploy.verify.static import changed_files


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A venv with an engine that has a RECORD, a patched file, a new file and a shim."""
    path = fill(make_venv(tmp_path / "r1"))
    site = site_packages(path)
    engine = sorted((site / "sglang").rglob("*.py"))
    rows = []
    for file in engine:
        digest = base64.urlsafe_b64encode(hashlib.sha256(file.read_bytes()).digest()).rstrip(b"=").decode()
        rows.append(f"{file.relative_to(site)},sha256={digest},{file.stat().st_size}\n")
    info = site / "sglang-0.5.11.dist-info"
    info.mkdir()
    (info / "RECORD").write_text("".join(rows) + "sglang-0.5.11.dist-info/RECORD,,\n../../../bin/sglang,sha256=xx,1\n")
    shim = path / "lib" / "ddtree-shims" / "libcuda.so.1"
    shim.parent.mkdir()
    shim.write_bytes(b"ELF")
    files = [
        {"change": "patch", "path": "sglang/srt/speculative/spec_info.py"},
        {"change": "new", "path": "sglang/srt/speculative/ddtree_utils.py"},
        {"change": "shim", "path": "lib/ddtree-shims/libcuda.so.1"},
    ]
    for change in files:
        base = path if change["change"] == "shim" else site
        change["sha256_after"] = sha256(base / change["path"])
    record = {"engine": "sglang", "site_packages": str(site.relative_to(path)), "files": files}
    return fill(path, {}, record)


def check(release: Path) -> CheckResult:
    return changed_files(release, silent)


def test_untouched(release: Path) -> None:
    result = check(release)
    assert result.status == "ok", result
    engine = list((release / "lib").rglob("sglang/**/*.py"))
    assert result.data["files"] == len(engine) + 1  # and the shim


@pytest.mark.parametrize(
    "name",
    [
        "sglang/srt/speculative/spec_info.py",
        "sglang/srt/speculative/ddtree_utils.py",
        "sglang/srt/speculative/dflash_worker.py",  # not patched: the engine's own RECORD knows it
        "../../ddtree-shims/libcuda.so.1",
    ],
)
def test_an_edited_file_is_named(release: Path, name: str) -> None:
    path = (site_packages(release) / name).resolve()
    path.write_bytes(path.read_bytes() + b"\n")
    result = check(release)
    assert (result.status, result.cause) == ("failed", "changed-files")
    assert result.detail == f"changed: {path.relative_to(release)}"
    assert result.hint


def test_a_missing_file_is_named(release: Path) -> None:
    (site_packages(release) / "sglang/srt/speculative/ddtree_utils.py").unlink()
    assert "missing: " in check(release).summary


def test_a_venv_that_is_not_ours_is_not_judged(tmp_path: Path) -> None:
    assert check(make_venv(tmp_path / "v")).status == "skipped"
