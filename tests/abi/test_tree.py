"""What the audit does not open, and where it does not go."""

import os
import socket
from pathlib import Path

import pytest
from abi.fixtures import Venv
from abi.test_audit_linking import problems

from ddtree_deploy.abi.elf import ElfError, ElfFile


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
