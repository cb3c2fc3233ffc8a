"""A small released engine as a wheel and as an installed tree, and a patch set for it."""

import zipfile

import pytest
from patching_tree import EDITS, NEW, RELEASED, install

from ddtree_deploy.patching.export import export


@pytest.fixture
def wheel(tmp_path):
    path = tmp_path / "sglang-0.5.11-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in RELEASED.items():
            archive.writestr(name, content)
        archive.writestr("tools/not_ours.py", b"")
    return path


@pytest.fixture
def site(tmp_path):
    return install(tmp_path / "site", RELEASED)


@pytest.fixture
def edited(tmp_path):
    return install(tmp_path / "edited", {**RELEASED, **EDITS, **NEW})


@pytest.fixture
def patch_folder(tmp_path, wheel, edited):
    export(wheel, edited, tmp_path / "sglang-0.5.11")
    return tmp_path / "sglang-0.5.11"
