"""The main job over real sshd on loopback, and the connections that must be refused.

The host takes its packages from a donor, as most people do: here the local release, whose engine is patched already.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.engine_client import chat, generate
from e2e.fixtures import PAIR, LocalRelease, host_entry
from e2e.program import Program
from e2e.snapshot import snapshot, without_links
from hosts.sshd import SilentPort, Sshd, free_port, make_key
from processes import mentioning

pytestmark = pytest.mark.hosts

PORTS = "18010-18019"
TIMEOUT = 5  # seconds, of ports that hang; a busy machine may need longer to let us in
PATIENCE = TIMEOUT + 20  # less than the 30 of the others, which must be refused at once


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("ssh") / "server") as server:
        yield server


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory, server: Sshd) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("ssh") / "gate", identity=server.identity) as gate:
        yield gate


def connection(server: Sshd, **changes: object) -> str:
    """As in an inventory. The identity serves for the jump host too."""
    settings = {
        "address": server.address,
        "port": server.port,
        "user": server.user,
        "identity": server.identity,
        "connect_timeout": 30,
        **changes,
    }
    return "{" + ", ".join(f"{key}: {value}" for key, value in settings.items()) + "}"


class Controller:
    """A user with a HOME of their own and one host, ``box``."""

    def __init__(self, folder: Path, root: Path, base: Path, donor: Path, known_hosts: str) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True)
        self.known_hosts = folder / "known_hosts"
        self.known_hosts.write_text(known_hosts)
        self._places = (root, base, donor)

    def program(self, connection: str) -> Program:
        root, base, donor = self._places
        inventory = self.folder / "hosts.yaml"
        entry = host_entry("box", root, base, PORTS, connection, f"source: {{donor: {donor}}}")
        inventory.write_text("hosts:\n" + entry, "utf-8")
        return Program(inventory, {"HOME": str(self.folder), "DDTREE_KNOWN_HOSTS": str(self.known_hosts)})


@pytest.fixture(scope="module")
def controller(workdir: Path, local_release: LocalRelease, server: Sshd, gate: Sshd) -> Controller:
    known = server.known_hosts_lines() + gate.known_hosts_lines()
    return Controller(workdir / "controller", workdir / "ssh-root", local_release.base, local_release.path, known)


@pytest.fixture
def stranger(tmp_path: Path, workdir: Path) -> Controller:
    """Somebody who knows no host key, for connections that never get as far as the venv."""
    return Controller(tmp_path / "stranger", workdir / "none", workdir / "no-base", workdir / "no-donor", "")


class TestChain:
    def test_facts_and_plan_through_a_jump_host(self, controller: Controller, server: Sshd, gate: Sshd) -> None:
        program = controller.program(connection(server, jump=gate.hop))
        facts = program.run("facts", "box", "--json", code=0).host["facts"]
        assert facts["base"]["packages"] and facts["releases"] == []
        planned = program.run("plan", "box", "--json", code=2).host["plan"]
        assert planned["actions"][0]["step"] == "clone"
        assert gate.log.read_text().count("Accepted publickey") >= 2

    def test_provision_from_a_donor(self, controller: Controller, server: Sshd, local_release: LocalRelease) -> None:
        program = controller.program(connection(server))
        before = snapshot(local_release.base)
        donor = {path: (local_release.path / path).lstat().st_mtime_ns for path in ("pyvenv.cfg", "bin/sglang")}
        assert program.run("provision", "box", "--dry-run", "--json", code=2).host["plan"]["actions"]
        done = program.run("provision", "box", "--json", timeout=900, code=0).host
        assert done["result"]["previous"] is None
        assert program.run("provision", "box", "--json", code=0).host["changed"] is False
        assert without_links(snapshot(local_release.base)) == without_links(before)
        assert donor == {path: (local_release.path / path).lstat().st_mtime_ns for path in donor}

    def test_verify(self, controller: Controller, server: Sshd) -> None:
        program = controller.program(connection(server))
        table = program.run("verify", "box", code=0)
        assert "sgl_kernel loads" in table.out
        assert program.run("verify", "box", "--static", "--json", code=0).host["ok"]

    @pytest.mark.engine
    def test_a_service_outlives_the_connection(self, controller: Controller, server: Sshd, gate: Sshd) -> None:
        program = controller.program(connection(server))
        try:
            (service,) = program.run("launch", "box", "--json", timeout=400, code=0).host["services"]
            port = service["port"]
            server.stop()  # with all its sessions
            try:
                assert generate(port, 32)["meta_info"]["completion_tokens"] == 32
                assert chat(port, f"{PAIR}/target")
                gone = program.run("status", "box", code=4)
                assert "connection-refused" in gone.err
                assert generate(port, 8)["meta_info"]["completion_tokens"] == 8
            finally:
                server.start()  # the other tests' too
            status = program.run("status", "box", "--json", code=0).host["services"]
            assert [(found["state"], found["port"]) for found in status] == [("ready", port)]
            behind = controller.program(connection(server, jump=gate.hop))
            assert behind.run("logs", "box", "-n", "3", code=0).out.count("\n") == 3
        finally:
            stopped = controller.program(connection(server)).run("stop", "box", "--json", timeout=120)
        assert stopped.code == 0, stopped.said
        assert mentioning("ssh-root/releases") == {}


class TestRefused:
    """Exit 4, at once, with what to do."""

    def refused(self, program: Program, id: str, *words: str) -> str:
        for command in (["facts", "box"], ["provision", "box"]):
            ran = program.run(*command, "--json", timeout=60, code=4)
            error = ran.json["error"]
            assert error["id"] == id, ran.said
            assert error["where"] and error["hint"], ran.said
            assert "Traceback" not in ran.err
            assert ran.seconds < PATIENCE, ran.said
        text = f"{error['message']} {error['where']} {error['hint']}"
        assert all(word in text for word in words), text
        return text

    def test_a_changed_host_key(self, stranger: Controller, tmp_path: Path) -> None:
        with Sshd(tmp_path / "sshd") as server:
            stranger.known_hosts.write_text(server.known_hosts_lines())
            server.change_host_keys()
            program = stranger.program(connection(server))
            self.refused(program, "host-key-changed", "ssh-keygen", str(stranger.known_hosts))
            accepting = program.run("facts", "box", "--accept-new-host-keys", code=4)
            assert "host-key-changed" in accepting.err

    def test_a_changed_host_key_of_the_jump_host(self, stranger: Controller, server: Sshd, tmp_path: Path) -> None:
        with Sshd(tmp_path / "gate", identity=server.identity) as gate:
            stranger.known_hosts.write_text(server.known_hosts_lines() + gate.known_hosts_lines())
            gate.change_host_keys()
            program = stranger.program(connection(server, jump=gate.hop))
            self.refused(program, "host-key-changed", str(gate.port))

    def test_a_changed_host_key_behind_a_jump_host(self, stranger: Controller, gate: Sshd, tmp_path: Path) -> None:
        with Sshd(tmp_path / "sshd", identity=gate.identity) as server:
            stranger.known_hosts.write_text(server.known_hosts_lines() + gate.known_hosts_lines())
            server.change_host_keys()
            program = stranger.program(connection(server, jump=gate.hop))
            self.refused(program, "host-key-changed", str(server.port))

    def test_an_unknown_host_key(self, stranger: Controller, server: Sshd) -> None:
        program = stranger.program(connection(server))
        self.refused(program, "host-key-unknown", "--accept-new-host-keys")
        assert stranger.known_hosts.read_text() == ""
        program.run("facts", "box", "--accept-new-host-keys", "--json", code=0)
        assert program.run("facts", "box", "--json", code=0).host["facts"]

    def test_a_wrong_user(self, stranger: Controller, server: Sshd) -> None:
        stranger.known_hosts.write_text(server.known_hosts_lines())
        self.refused(stranger.program(connection(server, user="nobody-of-that-name")), "auth-failed", "user")

    def test_a_wrong_key(self, stranger: Controller, server: Sshd, tmp_path: Path) -> None:
        stranger.known_hosts.write_text(server.known_hosts_lines())
        other = make_key(tmp_path / "other")
        self.refused(stranger.program(connection(server, identity=other)), "auth-failed", str(other))

    def test_a_closed_port(self, stranger: Controller, server: Sshd) -> None:
        self.refused(stranger.program(connection(server, port=free_port())), "connection-refused")

    def test_a_port_that_hangs(self, stranger: Controller, server: Sshd) -> None:
        with SilentPort() as silent:
            place = connection(server, port=silent.port, connect_timeout=TIMEOUT)
            self.refused(stranger.program(place), "ssh-silent", "connect_timeout")

    def test_a_jump_host_that_hangs(self, stranger: Controller, server: Sshd) -> None:
        with SilentPort() as silent:
            jump = f"{server.user}@127.0.0.1:{silent.port}"
            place = connection(server, jump=jump, connect_timeout=TIMEOUT)
            self.refused(stranger.program(place), "ssh-silent", str(silent.port))

    def test_a_name_that_does_not_exist(self, stranger: Controller, server: Sshd) -> None:
        self.refused(stranger.program(connection(server, address="no-such-host.invalid")), "name-unknown")

    def test_one_of_several_hosts_is_down(self, stranger: Controller, server: Sshd, workdir: Path) -> None:
        """The others are asked, and the worst exit code is the run's."""
        stranger.known_hosts.write_text(server.known_hosts_lines())
        program = stranger.program(connection(server))
        inventory = stranger.folder / "two.yaml"
        places = (workdir / "none", workdir / "no-base")
        up = host_entry("up", *places, PORTS, connection(server))
        down = host_entry("down", *places, PORTS, connection(server, port=free_port()))
        inventory.write_text("hosts:\n" + up + down, "utf-8")
        two = Program(inventory, program.environment)
        ran = two.run("facts", "all", "--json", code=4)
        assert {host["host"]: host["exit_code"] for host in ran.json["hosts"]} == {"up": 0, "down": 4}
