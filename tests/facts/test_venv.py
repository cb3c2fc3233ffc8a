"""What a base venv is, what is wrong with it, and when its fingerprint changes."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_deploy.facts.venv import probe_venv


def test_a_good_venv(venv: Path, site: Path, install) -> None:
    install("foo", "1.0")
    found = probe_venv(str(venv))
    assert found.problem is None
    assert (found.path, found.prefix, found.site_packages) == (str(venv), str(venv), str(site))
    assert found.python == platform.python_version()
    assert found.base_prefix == sys.base_prefix
    assert found.home
    assert [package.name for package in found.packages] == ["foo"]
    files = [path for path in venv.rglob("*") if path.is_symlink() or not path.is_dir()]
    real = [path for path in files if not any(parent.is_symlink() for parent in path.parents if venv in parent.parents)]
    assert found.files == len(real)
    assert found.bytes == sum(path.lstat().st_size for path in real)


def test_home_is_expanded(venv: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(venv.parent))
    assert probe_venv("~/base/").path == str(venv)


def problem(path: Path) -> str:
    found = probe_venv(str(path))
    assert found.problem
    return found.problem


def test_nothing_there(tmp_path: Path) -> None:
    found = probe_venv(str(tmp_path / "none"))
    assert (found.exists, found.problem) == (False, "there is no such folder")
    (tmp_path / "file").write_text("")
    assert "not a folder" in problem(tmp_path / "file")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    assert "gone" in problem(tmp_path / "link")


def test_not_a_venv(venv: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "pyvenv.cfg" in problem(tmp_path / "empty")
    (venv / "pyvenv.cfg").unlink()
    assert "pyvenv.cfg" in problem(venv)


def test_a_conda_environment(venv: Path) -> None:
    (venv / "pyvenv.cfg").unlink()
    (venv / "conda-meta").mkdir()
    assert "conda" in problem(venv)


def test_system_site_packages(venv: Path) -> None:
    assert not probe_venv(str(venv)).system_site_packages
    config = venv / "pyvenv.cfg"
    text = config.read_text().replace("include-system-site-packages = false", "Include-System-Site-Packages=True")
    config.write_text(text)
    assert probe_venv(str(venv)).system_site_packages


def test_no_python(venv: Path) -> None:
    for path in (venv / "bin").glob("python*"):
        path.unlink()
    assert "no bin/python" in problem(venv)


def test_a_python_that_was_removed(venv: Path) -> None:
    for path in (venv / "bin").glob("python*"):
        path.unlink()
    (venv / "bin" / "python").symlink_to("/opt/python3.8/bin/python3.8")
    found = probe_venv(str(venv))
    assert "/opt/python3.8/bin/python3.8" in str(found.problem)
    assert found.fingerprint, "its files are read all the same"


@pytest.mark.parametrize("script", ["#!/bin/sh\necho broken >&2; exit 3\n", "#!/bin/sh\necho hello\n", "nonsense"])
def test_a_python_that_does_not_run(venv: Path, script: str) -> None:
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").write_text(script)
    (venv / "bin" / "python").chmod(0o755)
    assert "does not run" in problem(venv)


def test_packages_of_another_python(venv: Path) -> None:
    (library,) = venv.glob("lib/python3*")
    library.rename(library.with_name("python3.8"))
    assert "python3.8" in problem(venv)


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read(venv: Path) -> None:
    venv.chmod(0)
    try:
        assert "cannot be read" in problem(venv)
    finally:
        venv.chmod(0o755)


def test_the_fingerprint_changes_with_what_makes_the_environment(venv: Path, site: Path, install) -> None:
    seen = []

    def look() -> None:
        seen.append(probe_venv(str(venv)).fingerprint)

    look()
    info = install("foo", "1.0", files={"foo/__init__.py": b"1", "foo/E=1,N=2.json": b"{}"})
    record = info / "RECORD"
    record.write_text(record.read_text().replace("foo/E=1,N=2.json", '"foo/E=1,N=2.json"'))
    look()
    (info / "RECORD").write_text((info / "RECORD").read_text().replace("sha256=", "sha256=0", 1))
    look()
    install("bar", "2.0")
    look()
    (site / "extra.pth").write_text("/srv/somewhere\n")
    look()
    (venv / "pyvenv.cfg").write_text((venv / "pyvenv.cfg").read_text() + "prompt = x\n")
    look()
    record.write_text(record.read_text() + "foo/__pycache__/x.pyc,,\n")
    look()
    before = seen[-1]
    (site / "foo" / "__pycache__").mkdir()
    (site / "foo" / "__pycache__" / "x.pyc").write_bytes(b"compiled")
    assert probe_venv(str(venv)).fingerprint == before, "byte code is nothing of its own"
    (site / "foo" / "__pycache__" / "x.pyc").unlink()
    assert probe_venv(str(venv)).fingerprint == before
    for name in ("__init__.py", "E=1,N=2.json"):  # its metadata stays
        (site / "foo" / name).unlink()
        look()
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize(
    "change",
    [
        "echo >> $S/foo/__init__.py",
        "echo > $S/new.py",
        "mkdir $S/package && echo > $S/package/__init__.py",
        "echo > $V/bin/script",
        "ln -s /srv/other $S/checkout",
        "ln -sfn /srv/third $S/link",
        "mkdir -p $V/src/project && echo > $V/src/project/module.py",
        "rm $S/unowned.py",
    ],
)
def test_files_of_no_record_and_edited_ones_change_the_fingerprint(
    venv: Path, site: Path, install, change: str
) -> None:
    install("foo", "1.0", files={"foo/__init__.py": b"1"})
    (site / "unowned.py").write_text("1")
    (site / "link").symlink_to("/srv/first")
    before = probe_venv(str(venv)).fingerprint
    subprocess.run(["sh", "-ec", change], check=True, env={**os.environ, "V": str(venv), "S": str(site)})
    assert probe_venv(str(venv)).fingerprint != before


def test_what_comes_and_goes_does_not_change_the_fingerprint(venv: Path, site: Path, install) -> None:
    install("foo", "1.0", files={"foo/__init__.py": b"1"})
    before = probe_venv(str(venv)).fingerprint
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    subprocess.run([venv / "bin" / "python", "-c", "import foo"], check=True, env=environment)
    assert list((site / "foo" / "__pycache__").iterdir())
    for name in ("foo/.cache/data", "foo/.nfs0001", "foo/x.pyc", "foo/run.log", "foo/x.lock", ".git/index", "run.pid"):
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text("1")
    (site / "empty").mkdir()
    os.mkfifo(site / "pipe")
    (site / "foo" / "__init__.py").touch()
    assert probe_venv(str(venv)).fingerprint == before


def test_a_copy_has_the_same_fingerprint(venv: Path, install) -> None:
    """The same content on another host: other times, other inodes, another order of directory entries."""
    install("foo", "1.0", files={f"foo/{letter}.py": b"1" for letter in "zyxabc"})
    before = probe_venv(str(venv)).fingerprint
    venv.rename(venv.with_name("old"))
    shutil.copytree(venv.with_name("old"), venv, symlinks=True, copy_function=shutil.copyfile)
    for file in (venv / "bin").iterdir():
        if not file.is_symlink():
            file.chmod(0o755)
    assert probe_venv(str(venv)).fingerprint == before


def test_nothing_is_written(venv: Path, install) -> None:
    install("foo", "1.0")
    before = {path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in [venv, *venv.rglob("*")]}
    probe_venv(str(venv))
    assert {path: (path.lstat().st_mtime_ns, path.lstat().st_ino) for path in [venv, *venv.rglob("*")]} == before
