"""What the audit does not open, and where it does not go."""

import os
import socket
from pathlib import Path

import pytest
from abi.fixtures import Venv
from abi.test_audit_linking import problems

from ddtree_deploy.abi.audit import audit_environment
from ddtree_deploy.abi.elf import ElfError, ElfFile
from ddtree_deploy.abi.tree import scan


def test_a_pipe_outside_of_the_environment_is_not_opened_either(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "libwaits.so")
    with pytest.raises(ElfError) as error:
        ElfFile(str(tmp_path / "libwaits.so"))
    assert error.value.kind == "special"


def test_what_is_no_regular_file_is_named_and_never_opened(venv: Venv, monkeypatch: pytest.MonkeyPatch) -> None:
    init = venv.write("odd/__init__.py")
    venv.install("odd", "1.0", [init])
    os.mkfifo(venv.site / "odd/pipe.so")
    os.mkfifo(venv.site / "odd/data.py")
    os.mkfifo(venv.site / "waits.pth")
    (venv.site / "odd/zero.so.1").symlink_to("/dev/zero")
    monkeypatch.chdir(venv.site / "odd")  # a socket's name is limited to about 100 characters
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket.so")
        found = problems(venv)
    assert {finding.id for finding in found} == {"broken-shared-object"}
    assert sorted(Path(file).name for finding in found for file in finding.files) == [
        "pipe.so",
        "socket.so",
        "zero.so.1",
    ]
    assert all("pipe, socket or device" in finding.message for finding in found)


def notes(venv: Venv) -> list[str]:
    report = audit_environment(str(venv.root), venv.host)
    assert not [finding for finding in report.findings if finding.severity != "note"]
    return [finding.message for finding in report.findings if finding.id == "link-outside"]


def test_links_to_other_folders_are_named_and_not_followed(venv: Venv, tmp_path: Path) -> None:
    outside = tmp_path / "models"
    outside.mkdir()
    (outside / "weights.so").write_text("no shared object")
    site = venv.site
    for name, target in (("proc", "/proc"), ("disk", "/"), ("models", str(outside)), ("shm", "/dev")):
        (site / name).symlink_to(target)
    assert notes(venv) == [
        f"lib/python3.11/site-packages/{name} leads to {target}, which was not looked at"
        for name, target in (("disk", "/"), ("models", outside), ("proc", "/proc"), ("shm", "/dev"))
    ]


def test_links_inside_and_to_packages_are_followed(venv: Venv, tmp_path: Path) -> None:
    init = venv.write("pkg/__init__.py")
    (venv.site / "aaa").symlink_to("pkg")
    (venv.site / "pkg/self").symlink_to("..")
    (venv.root / "share").mkdir()
    (venv.root / "share/data.txt").write_text("data")
    (venv.site / "share").symlink_to(venv.root / "share")
    (tmp_path / "source/linked").mkdir(parents=True)
    (tmp_path / "source/linked/__init__.py").write_text("")
    (venv.site / "linked").symlink_to(tmp_path / "source/linked")
    venv.install("pkg", "1.0", [init, venv.site / "aaa/__init__.py", venv.site / "share/data.txt"])
    assert notes(venv) == []
    tree = scan([str(venv.site)], str(venv.root))
    assert tree.find(f"{venv.site}/aaa/__init__.py") == tree.files[f"{venv.site}/pkg/__init__.py"]
    assert {f"{venv.site}/linked/__init__.py", f"{venv.site}/share/data.txt"} <= set(tree.files)
    assert not [path for path in tree.files if "/self/" in path]


def test_a_site_folder_that_is_a_link_is_audited(venv: Venv, tmp_path: Path) -> None:
    venv.install("pkg", "1.0", [venv.write("pkg/__init__.py")])
    venv.site.rename(tmp_path / "moved")
    venv.site.symlink_to(tmp_path / "moved")
    assert notes(venv) == []
    assert audit_environment(str(venv.root), venv.host).distributions == 1
