"""``provision --from`` between hosts with an sshd each: directly and by way of the controller, broken off and again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import venvs
from donor_hosts import Hosts, make_hosts
from e2e.program import Ran, end
from hosts.sshd import find_sshd
from processes import command_line, wait_until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(find_sshd() is None, reason="needs openssh-server"),
]

BIG = 96 << 20  # bytes: takes long enough to be broken off, by way of this machine or `slowly`


@pytest.fixture
def hosts(tmp_path: Path, base: Path, donor: Path, wheels: dict[str, Path], native: Path) -> Iterator[Hosts]:
    venvs.install(donor, wheels["engine-1"])
    venvs.install(base, venvs.make_wheel(tmp_path / "w", "torch", "2.0+cpu", {"torch/__init__.py": ""}))
    packages = [("engine", "1.0", wheels["engine-1"]), ("some-lib", "2.0", wheels["lib-2"])]
    packages += [("extra", "1.0", wheels["extra"]), ("native", "3.0", native)]
    made = make_hosts(tmp_path / "hosts", packages, base, donor)
    with made.target, made.donor:
        yield made


def provision(hosts: Hosts, *words: str, code: int | None = 0, source: str = "giver") -> Ran:
    return hosts.program.run(
        "provision", "target", "--from", source, "--playbook", "short", "--json", *words, code=code
    )


def notes(ran: Ran) -> dict[str, str]:
    return {note["id"]: note["message"] for note in ran.host["result"]["notes"]}


def imported(hosts: Hosts) -> str:
    code = "import some_lib, extra, native; print(some_lib.VALUE, extra.EXTRA, native.V)"
    return venvs.run([hosts.current / "bin" / "python", "-c", code]).stdout


def make_big(donor: Path) -> Path:
    library = donor / venvs.SITE / "native" / "lib.so"
    library.unlink()
    library.write_bytes(os.urandom(1 << 20) * (BIG >> 20))
    (donor / venvs.SITE / "native-3.0.dist-info" / "RECORD").unlink()
    return library


@pytest.mark.parametrize("directly", [True, False])
def test_provision_from_another_host(hosts: Hosts, donor: Path, base: Path, directly: bool) -> None:
    if directly:
        hosts.allow_directly()
    before, base_before = venvs.tree_state(donor), venvs.tree_state(base)
    planned = hosts.program.run("plan", "target", "--from", f"giver:{donor}", "--playbook", "short", "--json", code=2)
    changes = {change["name"]: change for change in planned.host["plan"]["packages"]}
    assert sorted(changes) == ["extra", "native", "some-lib"]
    assert changes["some-lib"]["source"] == f"giver:{donor}"
    ran = provision(hosts, source=f"giver:{donor}")
    assert ran.host["plan"]["release_id"] == planned.host["plan"]["release_id"]
    assert imported(hosts) == "2 True 3\n"
    assert venvs.tree_state(donor) == before and venvs.tree_state(base) == base_before
    named = [Path(path).name for path in venvs.mentions(hosts.current, str(donor))]
    assert named == ["release.json"]  # which says where packages came from
    how = "directly from 127.0.0.1" if directly else "by way of this machine"
    assert how in notes(ran)["donor-brought"]
    assert ("not-directly" in notes(ran)) is not directly
    assert list((hosts.root / "cache" / "donor").iterdir()) == []
    again = provision(hosts)
    assert again.host["changed"] is False


def test_a_donor_here_for_a_host_there_and_the_other_way_round(hosts: Hosts) -> None:
    ran = provision(hosts, source="here")
    assert "by way of this machine" in notes(ran)["donor-brought"] and "not-directly" not in notes(ran)
    assert imported(hosts) == "2 True 3\n"
    ran = hosts.program.run("provision", "local-target", "--from", "giver", "--playbook", "short", "--json", code=0)
    assert "by way of this machine" in notes(ran)["donor-brought"] and "not-directly" not in notes(ran)
    current = (hosts.folder / "local-root" / "current").resolve()
    assert venvs.run([current / "bin" / "python", "-c", "import native; print(native.V)"]).stdout == "3\n"


@pytest.mark.parametrize("directly", [True, False])
def test_compressed_on_the_way_as_the_inventory_says(hosts: Hosts, donor: Path, directly: bool) -> None:
    if directly:
        hosts.allow_directly()
    ran = hosts.program.run("provision", "packed", "--playbook", "short", "--json", code=0)
    how = "directly" if directly else "by way of this machine"
    assert how in notes(ran)["donor-brought"]
    library = Path("native") / "lib.so"
    current = (hosts.folder / "packed-root" / "current").resolve()
    assert venvs.sha256(current / venvs.SITE / library) == venvs.sha256(donor / venvs.SITE / library)


def test_an_unknown_host_key_is_never_accepted_on_the_target(hosts: Hosts) -> None:
    hosts.allow_directly(host_key=False)
    ran = provision(hosts)
    assert "Host key verification failed" in notes(ran)["not-directly"]
    assert (hosts.target.home / "known_hosts").read_text() == ""
    assert imported(hosts) == "2 True 3\n"


def test_a_login_instead_of_a_name_and_a_path_on_the_host_itself(hosts: Hosts, donor: Path) -> None:
    (hosts.folder / "home" / ".ssh").mkdir()
    (hosts.folder / "home" / ".ssh" / "id_ed25519").write_bytes(hosts.donor.identity.read_bytes())
    (hosts.folder / "home" / ".ssh" / "id_ed25519").chmod(0o600)
    login = f"{hosts.donor.user}@127.0.0.1:{hosts.donor.port}"
    ran = provision(hosts, source=f"{login}:{donor}")
    assert "by way of this machine" in notes(ran)["donor-brought"]
    assert imported(hosts) == "2 True 3\n"
    same = provision(hosts, source=str(donor))  # another kind of release? no: the donor is the same
    assert same.host["changed"] is False


@pytest.mark.parametrize("directly", [True, False])
def test_broken_off_and_again(hosts: Hosts, donor: Path, directly: bool) -> None:
    if directly:
        hosts.allow_directly(slowly=True)
    library = make_big(donor)
    process = hosts.program.start("provision", "target", "--from", "giver", "--playbook", "short", "--json")

    try:
        wait_until(lambda: process.poll() is not None or hosts.arriving() > 8 << 20, "the big file", 120)
        assert process.poll() is None, process.communicate()
        os.kill(process.pid, signal.SIGKILL)  # the controller, and with it the connections
    finally:
        end(process)
    wait_until(lambda: not hosts.target.processes(), "the agents to end", 60)
    kept = hosts.arriving()
    assert 8 << 20 < kept < BIG
    assert not (hosts.root / "current").exists() and not list(hosts.root.glob("cache/staging/*"))
    ran = provision(hosts)
    assert imported(hosts) == "2 True 3\n"
    assert venvs.sha256(hosts.current / venvs.SITE / "native" / "lib.so") == venvs.sha256(library)
    amount, unit = notes(ran)["donor-brought"].split()[:2]
    assert unit == "MiB" and float(amount) <= (BIG - kept) / (1 << 20) + 1


def test_the_direct_way_breaks_and_the_other_goes_on(hosts: Hosts, donor: Path) -> None:
    hosts.allow_directly(slowly=True)
    library = make_big(donor)
    process = hosts.program.start("provision", "target", "--from", "giver", "--playbook", "short", "--json")
    try:
        wait_until(lambda: hosts.arriving() > 4 << 20, "the big file", 120)
        kill_sender(hosts)
        out, err = process.communicate(timeout=240)
    finally:
        end(process)
    assert process.returncode == 0, err
    ran = Ran(process.returncode, out, err, 0.0)
    assert "did not all arrive" in notes(ran)["not-directly"]
    assert "by way of this machine" in notes(ran)["donor-brought"]
    assert venvs.sha256(hosts.current / venvs.SITE / "native" / "lib.so") == venvs.sha256(library)


def kill_sender(hosts: Hosts) -> None:
    """The process that the target has started on the donor's host."""
    for pid in hosts.donor.processes():
        if b"donor-send" in command_line(pid):
            os.kill(pid, signal.SIGKILL)
            return
    raise AssertionError("no sender")


def test_interrupted_by_ctrl_c(hosts: Hosts, donor: Path) -> None:
    make_big(donor)
    process = hosts.program.start("provision", "target", "--from", "giver", "--playbook", "short", "--json")
    try:
        wait_until(lambda: hosts.arriving() > 4 << 20, "the big file", 120)
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=100)
    finally:
        end(process)
    assert process.returncode == 130
    assert hosts.arriving() > 0
    provision(hosts)
    assert imported(hosts) == "2 True 3\n"


def test_what_is_wrong_with_a_donor(hosts: Hosts, donor: Path, base: Path) -> None:
    def problem(*words: str, code: int, **options: Any) -> dict[str, Any]:
        return provision(hosts, *words, code=code, **options).json["error"]

    assert problem(code=3, source="giver:/nowhere")["id"] == "donor-missing"
    assert problem(code=3, source="nobody:/opt/venv")["id"] == "unknown-host"
    assert problem(code=3, source="giver:relative")["id"] == "bad-path"
    assert problem(code=3, source=str(base))["id"] == "bad-source"
    library = donor / venvs.SITE / "native" / "lib.so"
    data = library.read_bytes()
    library.unlink()
    library.write_bytes(data[:-1] + b"y")
    error = problem(code=5)
    assert error["id"] == "donor-damaged" and "native/lib.so" in error["message"]
    assert not (hosts.root / "current").exists()
    ran = provision(hosts, "--take-edited")
    assert "native/lib.so" in notes(ran)["donor-edited"]
    venvs.run([venvs.UV, "pip", "uninstall", "--quiet", "--python", donor / "bin" / "python", "extra"])
    error = problem(code=3)
    assert error["id"] == "donor-lacks" and "extra 1.0" in error["message"] and "--source index" in error["hint"]


def test_what_the_donor_lacks_comes_from_a_wheelhouse(hosts: Hosts, donor: Path, wheels: dict[str, Path]) -> None:
    venvs.run([venvs.UV, "pip", "uninstall", "--quiet", "--python", donor / "bin" / "python", "extra"])
    folder = wheels["extra"].parent
    ran = provision(hosts, "--source", f"wheelhouse:{folder}")
    sources = {change["name"]: change["source"] for change in ran.host["plan"]["packages"]}
    assert sources == {"extra": "wheelhouse", "native": f"giver:{donor}", "some-lib": f"giver:{donor}"}
    assert imported(hosts) == "2 True 3\n"
    record = (hosts.current / ".ddtree" / "release.json").read_text()
    assert record.count('"staging": "') == 1 and record.count('"rest_staging": "') == 1
    hosts.program.run("prune", "target", "--keep", "1", code=0)
    assert len(list((hosts.root / "cache" / "staging").iterdir())) == 2


def test_plan_from_saved_facts_of_both(hosts: Hosts, donor: Path, tmp_path: Path) -> None:
    target, giver = tmp_path / "target.json", tmp_path / "giver.json"
    hosts.program.run("facts", "target", "--save", str(target), code=0)
    hosts.program.run("facts", "giver", "--base", str(donor), "--save", str(giver), code=0)
    live = hosts.program.run("plan", "target", "--from", "giver", "--playbook", "short", "--json", code=2)
    words = ["plan", "target", "--from", "giver", "--playbook", "short", "--facts", str(target)]
    offline = hosts.program.run(*words, "--donor-facts", str(giver), "--json", code=2)
    assert offline.host["plan"] == live.host["plan"]
    without = hosts.program.run(*words, "--json", code=3)
    assert without.json["error"]["id"] == "facts-without-donor"
    wrong = hosts.program.run(*words, "--donor-facts", str(target), "--json", code=3)
    assert wrong.json["error"]["id"] == "facts-of-another-donor"
