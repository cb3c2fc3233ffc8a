"""A wheelhouse is read once, cheap checks first; damage is told from another build."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from small_wheels import sha256, wheel

from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.errors import InputError
from ddtree_deploy.profiles.model import LockedPackage
from ddtree_deploy.profiles.wheelhouse import corruption, read_wheelhouse


def locked(path: Path, name: str = "foo", version: str = "1.0") -> list[LockedPackage]:
    return [LockedPackage(name, version, [sha256(path)])]


def fails(folder: Path, packages: list[LockedPackage] | None = None) -> InputError:
    with pytest.raises(InputError) as caught:
        read_wheelhouse(folder, packages or [])
    assert caught.value.exit_code == 3
    return caught.value


def flip(path: Path, wanted: bytes) -> None:
    """Change one byte of a stored file, as a bad disk or transfer does: size and zip directory stay."""
    data = bytearray(path.read_bytes())
    data[data.index(wanted)] ^= 1
    path.write_bytes(data)


def test_wheels(tmp_path: Path) -> None:
    first = wheel(tmp_path, "Foo_Bar", "1.0")
    second = wheel(tmp_path, "torch", "2.11.0+cu128", tag="cp311-cp311-manylinux_2_28_x86_64")
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "foo-1.0.tar.gz").write_text("x")
    wheels = read_wheelhouse(tmp_path)
    assert [(item.path, item.name, item.version, item.sha256, item.bytes) for item in wheels] == [
        (str(first), "foo-bar", "1.0", sha256(first), first.stat().st_size),
        (str(second), "torch", "2.11.0+cu128", sha256(second), second.stat().st_size),
    ]


def test_only_the_profile_s_packages_are_read(tmp_path: Path) -> None:
    path = wheel(tmp_path, "foo", "1.0")
    other = wheel(tmp_path, "foo", "2.0")
    (tmp_path / "stranger-1.0-py3-none-any.whl").write_bytes(b"not a zip")
    assert [item.path for item in read_wheelhouse(tmp_path, locked(path))] == [str(path), str(other)]


@pytest.mark.parametrize("version", ["1.0", "1", "1.0.0"])
def test_damage_is_looked_for_however_the_lock_writes_the_version(tmp_path: Path, version: str) -> None:
    path = wheel(tmp_path, "foo", "1.0", body=b"contents")
    packages = locked(path, version=version)
    flip(path, b"contents")
    assert fails(tmp_path, packages).id == "wheel-corrupt"


def test_progress_counts_every_byte(tmp_path: Path) -> None:
    paths = [wheel(tmp_path, name, "1.0", body=b"x" * 100_000) for name in ("a", "b")]
    seen: list[Progress] = []
    read_wheelhouse(tmp_path, on_progress=seen.append)
    total = sum(path.stat().st_size for path in paths)
    assert seen[-1] == Progress("hash", "", total, total, 2, 2, True)
    assert [step.done_bytes for step in seen] == sorted(step.done_bytes for step in seen)


def test_missing_empty_or_a_file(tmp_path: Path) -> None:
    assert fails(tmp_path / "none").id == "wheelhouse-missing"
    assert fails(tmp_path).id == "wheelhouse-empty"
    (tmp_path / "file").write_text("x")
    assert fails(tmp_path / "file").id == "wheelhouse-missing"


@pytest.mark.parametrize("name", ["foo.whl", "foo-1.0.whl", "foo-x.y-py3-none-any.whl", "foo 1.0-1-py3-none-any.whl"])
def test_not_a_name(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(wheel(tmp_path / "other", "foo", "1.0").read_bytes())
    error = fails(tmp_path)
    assert (error.id, error.where) == ("wheel-bad-name", str(tmp_path / name))


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "page", "no metadata", "folder"])
def test_damage_that_shows_at_once(damage: str, tmp_path: Path) -> None:
    path = wheel(tmp_path, "foo", "1.0", body=b"x" * 5000)
    data = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    elif damage == "no metadata":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("foo/__init__.py", "")
    else:
        path.write_bytes({"empty": b"", "text": b"hello", "page": b"<html>404</html>"}.get(damage, data[:-200]))
    error = fails(tmp_path)
    assert (error.id, error.where) == ("wheel-corrupt", str(path))


def test_flipped_byte_is_damage(tmp_path: Path) -> None:
    path = wheel(tmp_path, "foo", "1.0", body=b"content of the module")
    packages = locked(path)
    flip(path, b"content of the module")
    error = fails(tmp_path, packages)
    assert (error.id, error.where) == ("wheel-corrupt", str(path))
    assert "__init__.py" in error.message


def test_record_that_does_not_match_is_damage(tmp_path: Path) -> None:
    path = wheel(tmp_path, "foo", "1.0", body=b"original")
    packages = locked(path)
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    files["foo/__init__.py"] = b"replaced"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    error = fails(tmp_path, packages)
    assert error.id == "wheel-corrupt"
    assert "RECORD" in error.message
    del files["foo/__init__.py"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert "missing" in fails(tmp_path, packages).message
    del files["foo-1.0.dist-info/RECORD"]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    assert "no RECORD" in fails(tmp_path, packages).message


def test_another_build_is_no_damage(tmp_path: Path) -> None:
    path = wheel(tmp_path, "foo", "1.0")
    packages = [LockedPackage("foo", "1.0", ["0" * 64])]
    assert [item.sha256 for item in read_wheelhouse(tmp_path, packages)] == [sha256(path)]  # the planner refuses it
    assert corruption(path) is None


def test_all_damage_is_reported(tmp_path: Path) -> None:
    (tmp_path / "bad.whl").write_bytes(b"")
    for name in ("a", "b"):
        wheel(tmp_path, name, "1.0").write_bytes(b"x")
    error = fails(tmp_path)
    assert [entry["id"] for entry in error.details["errors"]] == ["wheel-bad-name", "wheel-corrupt", "wheel-corrupt"]
