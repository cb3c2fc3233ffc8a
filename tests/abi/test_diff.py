import io
import json
import os
import shutil
from pathlib import Path

import pytest
from abi.fixtures import Venv, make_venv
from rich.console import Console

from ddtree_deploy.abi.diff import FileDifference, PackageDifference, difference, op_diff
from ddtree_deploy.abi.report import render_difference
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.codec import to_dict
from ddtree_deploy.errors import InputError


def package(venv: Venv, name: str, version: str, text: str = "", tag: str = "") -> None:
    venv.install(name, version + tag, [venv.write(f"{name}/__init__.py", text)])


@pytest.fixture
def left(tmp_path: Path) -> Venv:
    venv = make_venv(tmp_path / "releases/one")
    for name in ("engine", "kept", "moved", "gone"):
        package(venv, name, "1.0", f"{name} one\n")
    package(venv, "built", "2.0", "old\n", "+cu128")
    return venv


@pytest.fixture
def right(left: Venv, tmp_path: Path) -> Venv:
    """A release made as releases are: most files are the same inode."""
    root = tmp_path / "releases/two"
    shutil.copytree(left.root, root, copy_function=os.link)
    venv = Venv(root)
    for name in ("moved", "gone", "built"):
        shutil.rmtree(venv.site / name)
        shutil.rmtree(next(venv.site.glob(f"{name}-*")))
    package(venv, "moved", "1.1", "moved two\n")
    package(venv, "new", "0.1")
    package(venv, "built", "2.0", "new\n", "+cu130")
    patched = venv.site / "engine/__init__.py"
    patched.unlink()
    patched.write_text("engine two\n")  # of the same size
    venv.write("engine/ddtree.py", "new file\n")
    (root / ".ddtree").mkdir()
    (root / ".ddtree/release.json").write_text(json.dumps({"id": "two", "profile": "p", "patch_set": "s"}))
    return venv


def test_packages_and_the_files_that_no_package_explains(left: Venv, right: Venv) -> None:
    found = difference(str(left.root), str(right.root))
    assert found.packages == [
        PackageDifference("replace", "built", "2.0+cu128", "2.0+cu130", "cu128", "cu130", 1),
        PackageDifference("remove", "gone", "1.0", None, None, None, 1),
        PackageDifference("replace", "moved", "1.0", "1.1", None, None, 1),
        PackageDifference("add", "new", None, "0.1", None, None, 1),
    ]
    assert found.files == [
        FileDifference("change", "engine/__init__.py", "engine"),
        FileDifference("add", "engine/ddtree.py", None),
    ]
    assert (found.right.release, found.right.profile) == ("two", "p")
    assert found.unchanged_packages == 2 and not found.same


def test_an_environment_does_not_differ_from_itself_nor_from_its_copy(left: Venv, tmp_path: Path) -> None:
    shutil.copytree(left.root, tmp_path / "copy")
    for other in (left.root, tmp_path / "copy"):
        assert difference(str(left.root), str(other)).same


def test_releases_are_found_by_their_ids(left: Venv, right: Venv, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to("releases/two")
    by_id = op_diff({"root": str(tmp_path), "left": "one", "right": "two"}, silent)
    current = op_diff({"root": str(tmp_path), "left": "one", "right": "current"}, silent)
    assert by_id["packages"] == current["packages"] and len(by_id["packages"]) == 4


@pytest.mark.parametrize(
    ("params", "id"),
    [
        ({"left": "one"}, "bad-params"),
        ({"left": "one", "right": "two"}, "bad-params"),
        ({"left": "one", "right": "absent", "root": "{root}"}, "no-release"),
        ({"left": "/absent", "right": "/absent"}, "no-environment"),
    ],
)
def test_what_is_not_there_is_said(left: Venv, tmp_path: Path, params: dict[str, str], id: str) -> None:
    with pytest.raises(InputError) as error:
        op_diff({key: value.replace("{root}", str(tmp_path)) for key, value in params.items()}, silent)
    assert error.value.id == id
    if id == "no-release":
        assert error.value.hint == "there are: one"


def test_names_and_versions_are_whole_in_40_columns() -> None:
    side = {"release": "one", "path": "/one", "torch": None, "abi_tag": None}
    names = {"name": "nvidia-cuda-runtime-with-a-long-name", "old_version": "13.0.99.1234567", "old_abi": "cu130"}
    package = {**names, "change": "replace", "files": 4, "new_version": "13.1.80.7654321", "new_abi": None}
    counts = {"unchanged_packages": 0, "unchanged_files": 0}
    stream = io.StringIO()
    found = {"left": side, "right": side, "packages": [package], "files": [], **counts}
    render_difference(Console(file=stream, width=40), found)
    assert "…" not in stream.getvalue()


def test_it_is_drawn_with_signs_versions_and_tags(left: Venv, right: Venv) -> None:
    stream = io.StringIO()
    found = to_dict(difference(str(left.root), str(right.root)))
    render_difference(Console(file=stream, width=160), found, host="gpu1")
    text = stream.getvalue()
    assert text.startswith("gpu1: ") and "+ engine/ddtree.py" in text
    assert "4 packages and 2 other files differ; 2 packages" in text
