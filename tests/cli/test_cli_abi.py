"""``abi`` and ``diff`` on real folders of this machine."""

from __future__ import annotations

import json
from pathlib import Path

from cli.cli_support import run


def venv(root: Path, version: str, requires: str = "") -> Path:
    info = root / f"lib/python3.11/site-packages/plain-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: plain\nVersion: {version}\n{requires}\n")
    (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    (root / "pyvenv.cfg").write_text("home = /nonexistent\nversion = 3.11.2\n")
    return root


def test_a_clean_venv_exits_0_and_a_broken_one_1(tmp_path: Path) -> None:
    clean = venv(tmp_path / "clean", "1.0")
    broken = venv(tmp_path / "broken", "1.0", "Requires-Dist: absent\n")
    assert run("abi", str(clean)).code == 0
    ran = run("abi", str(broken), "--json")
    assert ran.code == 1
    (host,) = json.loads(ran.out)["hosts"]
    assert [finding["id"] for finding in host["findings"]] == ["requirement-missing"]


def test_sarif_is_written_beside_the_report(tmp_path: Path) -> None:
    broken = venv(tmp_path / "broken", "1.0", "Requires-Dist: absent\n")
    path = tmp_path / "abi.sarif"
    ran = run("abi", str(broken), "--sarif", str(path))
    assert ran.code == 1 and "absent is not installed" in ran.out
    assert json.loads(path.read_text())["runs"][0]["results"][0]["ruleId"] == "requirement-missing"


def test_explain_needs_no_target(tmp_path: Path) -> None:
    ran = run("abi", "--explain", "old-cxx-abi")
    assert ran.code == 0 and "std::string" in ran.out
    assert json.loads(run("abi", "--explain", "old-cxx-abi", "--json").out)["title"]
    assert run("abi", "--explain", "no-such-id").code == 3


def test_what_is_no_environment_is_bad_input(tmp_path: Path) -> None:
    assert run("abi").code == 3
    assert run("abi", str(tmp_path / "absent")).code == 3
    assert run("abi", str(tmp_path)).code == 3


def test_diff_of_two_venvs(tmp_path: Path) -> None:
    left, right = venv(tmp_path / "one", "1.0"), venv(tmp_path / "two", "1.1")
    ran = run("diff", str(left), str(right))
    assert ran.code == 0 and "plain" in ran.out and "1.0" in ran.out and "1.1" in ran.out
    (host,) = json.loads(run("diff", str(left), str(right), "--json").out)["hosts"]
    assert [package["change"] for package in host["packages"]] == ["replace"]
    assert run("diff", str(left), str(tmp_path / "absent")).code == 3


def test_diff_of_a_hosts_releases_by_id(tmp_path: Path) -> None:
    for name, version in (("one", "1.0"), ("two", "1.1")):
        venv(tmp_path / "root/releases" / name, version)
    (tmp_path / "root/current").symlink_to("releases/two")
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(f"hosts:\n  here:\n    connection: local\n    root: {tmp_path}/root\n")
    ran = run("diff", "here:one", "current", "--inventory", str(inventory))
    assert ran.code == 0 and "plain" in ran.out
    ran = run("diff", "here:one", "here:absent", "--inventory", str(inventory))
    assert ran.code == 3 and "there are: one, two" in ran.err
