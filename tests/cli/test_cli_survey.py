"""`survey` through the command line and the real local agent."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import run, write_inventory
from survey.survey_tree import FILES, lay_out


@pytest.fixture
def inventory(tmp_path: Path) -> str:
    base = tmp_path / "base"
    lay_out(base / "lib/python3.11/site-packages", FILES)
    (base / "pyvenv.cfg").write_text("version = 3.11.2\n")
    return str(write_inventory(tmp_path, base=str(base)))


def test_the_report_as_markdown(tmp_path: Path, inventory: str) -> None:
    ran = run("survey", "one", "--inventory", inventory, "--markdown", str(tmp_path / "{host}.md"))
    assert ran.code == 0, ran.err
    text = (tmp_path / "one.md").read_text("utf-8")
    assert text.startswith("# sglang 0.5.11\n") and "## Tree mask in TARGET_VERIFY\n" in text
    assert any(line.startswith("| dropping | DroppingBackend | no |") for line in text.splitlines())


def test_several_hosts_need_several_files(tmp_path: Path, inventory: str) -> None:
    ran = run("survey", "all", "--inventory", inventory, "--markdown", str(tmp_path / "all.md"))
    assert ran.code == 3 and "error: one-file-for-many\n" in ran.err
    assert not (tmp_path / "all.md").exists()


def test_a_file_that_cannot_be_written(tmp_path: Path, inventory: str) -> None:
    ran = run("survey", "one", "--inventory", inventory, "--markdown", str(tmp_path / "no" / "one.md"))
    assert ran.code == 3 and "error: cannot-write\n" in ran.err
