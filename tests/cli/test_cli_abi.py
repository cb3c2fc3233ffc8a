"""``abi`` and ``diff`` on real folders, of this machine and over SSH."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli.cli_support import Ran, run, spawn, write_venv
from hosts.sshd import Sshd, find_sshd


@pytest.mark.usefixtures("agent_here")
def test_a_clean_venv_exits_0_and_a_broken_one_1(tmp_path: Path) -> None:
    clean = write_venv(tmp_path / "clean", "1.0")
    broken = write_venv(tmp_path / "broken", "1.0", "Requires-Dist: absent\n")
    assert run("abi", str(clean)).code == 0
    ran = run("abi", str(broken), "--json")
    assert ran.code == 1
    (host,) = json.loads(ran.out)["hosts"]
    assert [finding["id"] for finding in host["findings"]] == ["requirement-missing"]


def test_sarif_is_written_beside_the_report(tmp_path: Path) -> None:
    broken = write_venv(tmp_path / "broken", "1.0", "Requires-Dist: absent\n")
    path = tmp_path / "abi.sarif"
    ran = run("abi", str(broken), "--sarif", str(path))
    assert ran.code == 1 and "absent is not installed" in ran.out
    assert json.loads(path.read_text())["runs"][0]["results"][0]["ruleId"] == "requirement-missing"


def test_explain_needs_no_target(tmp_path: Path) -> None:
    ran = run("abi", "--explain", "old-cxx-abi")
    assert ran.code == 0 and "std::string" in ran.out
    document = json.loads(run("abi", "--explain", "old-cxx-abi", "--json").out)
    assert (document["command"], document["exit_code"], document["id"]) == ("abi", 0, "old-cxx-abi")
    assert document["title"]
    assert run("abi", "--explain", "no-such-id").code == 3


@pytest.mark.usefixtures("agent_here")
def test_what_is_no_environment_is_bad_input(tmp_path: Path) -> None:
    assert run("abi").code == 3
    assert run("abi", str(tmp_path / "absent")).code == 3
    assert run("abi", str(tmp_path)).code == 3


@pytest.mark.usefixtures("agent_here")
def test_diff_of_two_venvs(tmp_path: Path) -> None:
    left, right = write_venv(tmp_path / "one", "1.0"), write_venv(tmp_path / "two", "1.1")
    ran = run("diff", str(left), str(right))
    assert ran.code == 0 and "plain" in ran.out and "1.0" in ran.out and "1.1" in ran.out
    (host,) = json.loads(run("diff", str(left), str(right), "--json").out)["hosts"]
    assert [package["change"] for package in host["packages"]] == ["replace"]
    assert run("diff", str(left), str(tmp_path / "absent")).code == 3


@pytest.mark.usefixtures("agent_here")
def test_diff_of_a_hosts_releases_by_id(tmp_path: Path) -> None:
    for name, version in (("one", "1.0"), ("two", "1.1")):
        write_venv(tmp_path / "root/releases" / name, version)
    (tmp_path / "root/current").symlink_to("releases/two")
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(f"hosts:\n  here:\n    connection: local\n    root: {tmp_path}/root\n")
    ran = run("diff", "here:one", "current", "--inventory", str(inventory))
    assert ran.code == 0 and "plain" in ran.out
    ran = run("diff", "here:one", "here:absent", "--inventory", str(inventory))
    assert ran.code == 3 and "there are: one, two" in ran.err


@pytest.mark.usefixtures("agent_here")
def test_abi_of_a_hosts_releases_by_id(tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yaml"

    def ask(target: str, base: str = "") -> Ran:
        inventory.write_text(f"hosts:\n  here:\n    connection: local\n    root: {tmp_path}/root\n{base}")
        return run("abi", target, "--json", "--inventory", str(inventory))

    write_venv(tmp_path / "base", "0.9", "Requires-Dist: absent\n")
    based = f"    base: {tmp_path}/base\n"
    assert "set its `base`" in ask("here").err
    ran = ask("here", based)
    assert ran.code == 1 and ran.json["hosts"][0]["path"] == f"{tmp_path}/base"
    assert ask("here:current", based).code == 3  # asked for by name, it is not another venv
    for name, version in (("one", "1.0"), ("two", "1.1")):
        write_venv(tmp_path / "root/releases" / name, version)
    (tmp_path / "root/current").symlink_to("releases/gone")
    dangling = ask("here", based)
    assert dangling.code == 3 and "there are: one, two" in dangling.err
    (tmp_path / "root/current").unlink()
    (tmp_path / "root/current").symlink_to("releases/two")
    for target, name in (("here:one", "one"), ("here:current", "two"), ("here", "two")):
        ran = ask(target, based)
        assert ran.code == 0, ran.err
        assert ran.json["hosts"][0]["path"] == f"{tmp_path}/root/releases/{name}"
    absent = ask("here:three")
    assert absent.code == 3 and "there are: one, two" in absent.err
    assert ask("here:..").code == 3
    relative = ask("here:some/path")
    assert relative.code == 3 and "here:/PATH" in relative.err


@pytest.mark.usefixtures("agent_here")
def test_a_folder_does_not_stand_before_a_host_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`facts all --save '{host}/{host}.json'` makes such folders."""
    base = write_venv(tmp_path / "base", "1.0")
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(f"hosts:\n  box: {{connection: local, root: {tmp_path}/root, base: {base}}}\n")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "box").mkdir()
    (tmp_path / "box" / "box.json").touch()
    (tmp_path / "plain").mkdir()
    (host,) = run("abi", "box", "--json", "-i", str(inventory)).json["hosts"]
    assert (host["host"], host["path"]) == ("box", str(base))
    assert run("diff", "box", str(base), "-i", str(inventory), "--json").json["hosts"][0]["host"] == "box"
    for word in ("plain", "./box"):
        assert run("abi", word, "--json", "-i", str(inventory)).json["error"]["id"] == "no-environment"

    write_venv(tmp_path / "box", "2.0")
    (host,) = run("abi", "box", "--json", "-i", str(inventory)).json["hosts"]
    assert (host["host"], host["path"]) == ("local", str(tmp_path / "box"))


@pytest.mark.e2e
@pytest.mark.hosts
@pytest.mark.skipif(find_sshd() is None, reason="openssh-server is not installed")
class TestOverSsh:
    @pytest.fixture
    def ask(self, tmp_path: Path) -> Iterator[Callable[..., Ran]]:
        """Runs the program for somebody whose inventory has ``box``, with a base and two releases."""
        write_venv(tmp_path / "base", "0.9", "Requires-Dist: absent\n")
        for name, version in (("one", "1.0"), ("two", "1.1")):
            write_venv(tmp_path / "root/releases" / name, version)
        (tmp_path / "root/current").symlink_to("releases/two")
        home = tmp_path / "controller"
        home.mkdir()
        with Sshd(tmp_path / "sshd") as server:
            inventory = tmp_path / "hosts.yaml"
            inventory.write_text(
                f"hosts:\n  box:\n    root: {tmp_path}/root\n    base: {tmp_path}/base\n    connection: {{address: "
                f"{server.address}, port: {server.port}, user: {server.user}, identity: {server.identity}, "
                f"python: {sys.executable}, connect_timeout: 30}}\n"
            )
            environment = {"HOME": str(home), "DDTREE_KNOWN_HOSTS": str(server.known_hosts)}
            environment["XDG_CACHE_HOME"] = str(home / ".cache")
            yield lambda *words: spawn(*words, "--json", "--inventory", str(inventory), **environment)
            assert "Accepted publickey" in server.log.read_text()

    def test_abi_of_a_path_of_the_host(self, ask: Callable[..., Ran], tmp_path: Path) -> None:
        broken = ask("abi", f"box:{tmp_path}/base")
        assert broken.code == 1, broken.err
        (host,) = broken.json["hosts"]
        assert [finding["id"] for finding in host["findings"]] == ["requirement-missing"]
        assert ask("abi", f"box:{tmp_path}/root/current").code == 0
        assert ask("abi", f"box:{tmp_path}/absent").code == 3

    def test_diff_of_paths_and_releases_of_the_host(self, ask: Callable[..., Ran], tmp_path: Path) -> None:
        for left, right, versions in (
            (f"box:{tmp_path}/base", f"box:{tmp_path}/root/releases/one", ("0.9", "1.0")),
            ("box:one", "box:current", ("1.0", "1.1")),
        ):
            ran = ask("diff", left, right)
            assert ran.code == 0, ran.err
            (host,) = ran.json["hosts"]
            (package,) = host["packages"]
            assert (package["change"], package["old_version"], package["new_version"]) == ("replace", *versions)
        assert ask("diff", "box:one", "box:three").code == 3
