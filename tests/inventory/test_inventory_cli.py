"""``inventory check`` says everything that is wrong with a file, each with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.cli.main import main


def test_all_errors_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hosts.yaml"
    hosts = "".join(f"  h{number}: {{budget: 0}}\n" for number in range(12))
    path.write_text(f"defaults:\n  bugdet: 3\nhosts:\n{hosts}")
    assert main(["--no-color", "--inventory", str(path), "inventory", "check"]) == 3
    shown = capsys.readouterr().err
    assert "where: " + str(path) + ":2:3" in shown
    assert "did you mean 'budget'?" in shown
    for number in range(9):
        place = f"{path}:{4 + number}:16"
        assert f"also: {place}: hosts.h{number}.budget: budget 0 is out of range (1 to 511, or auto)" in shown
    assert "also: 3 more" in shown
