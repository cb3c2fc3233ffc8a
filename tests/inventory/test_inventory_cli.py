"""``inventory check`` says everything that is wrong with a file, each with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddtree_deploy.cli.main import main
from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.load import load_inventory
from ddtree_deploy.profiles.locking import profile_of


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


def test_profiles_are_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hosts.yaml"
    (tmp_path / "mine.yaml").write_text("name: mine\n")
    path.write_text(
        "defaults:\n  profile: sglang-0.5.11-cu13\nhosts:\n  a: {}\n  b: {}\n  c: {profile: ./gone.yaml}\n"
        "  d: {profile: donor}\n  e: {profile: null}\n  f: {profile: ./mine.yaml}\n  g: {profile: mine}\n"
    )
    assert main(["--no-color", "--inventory", str(path), "inventory", "check"]) == 3
    shown = capsys.readouterr().err
    assert f"hosts.a: unknown profile 'sglang-0.5.11-cu13' (and 1 more)\nwhere: {path}:2:12\n" in shown
    assert "did you mean sglang-0.5.11-cu130" in shown
    assert f"also: {path}:6:16: hosts.c: the profile does not exist: gone.yaml" in shown
    assert "hosts.b" not in shown and "hosts.g" not in shown  # one line a place
    with pytest.raises(InputError) as caught:
        profile_of(load_inventory(path).host("a"))
    assert (caught.value.id, caught.value.where) == ("unknown-profile", f"{path}:2:12")


def test_a_group_lists_its_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("groups:\n  g: {root: /srv}\nhosts:\n  a: {}\n  b: {groups: [g]}\n  box: {groups: [g]}\n")

    def listed(*words: str) -> list[str]:
        assert main(["--json", "--inventory", str(path), "inventory", "show", *words]) == 0
        return [row["host"] for row in json.loads(capsys.readouterr().out)["inventory"]["hosts"]]

    assert listed() == listed("all") == ["a", "b", "box"]
    assert listed("g") == listed("b*") == ["b", "box"]
    assert main(["--inventory", str(path), "inventory", "show", "c"]) == 3
    assert "unknown host 'c'" in capsys.readouterr().err
