"""SSH against real servers on loopback: host keys, credentials, dead ends, jump hosts, lost connections."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import paramiko
import pytest
from hosts.sshd import SilentPort, Sshd, find_sshd, free_port, make_key
from processes import command_line, wait_until

from ddtree_deploy.agent.bundle import build_bundle
from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.errors import DeployError, StepError, UnreachableError
from ddtree_deploy.transport import ConnectionSettings, ConnectOptions, connect
from ddtree_deploy.transport.ssh import SshTransport

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.hosts,
    pytest.mark.skipif(find_sshd() is None, reason="openssh-server is not installed"),
]

TIMEOUT = 5.0  # of ports that hang; a jump host before them must have let us in by then


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sshd, Sshd]]:
    """The host and a jump host, letting in the same key."""
    folder = tmp_path_factory.mktemp("sshd")
    with Sshd(folder / "host") as host, Sshd(folder / "gate", identity=host.identity) as gate:
        yield host, gate


@pytest.fixture
def host(servers: tuple[Sshd, Sshd]) -> Sshd:
    return servers[0]


@pytest.fixture
def gate(servers: tuple[Sshd, Sshd]) -> Sshd:
    return servers[1]


@pytest.fixture
def options(tmp_path: Path, host: Sshd, gate: Sshd) -> ConnectOptions:
    file = tmp_path / "known_hosts"
    file.write_text(host.known_hosts_lines() + gate.known_hosts_lines())
    return ConnectOptions(known_hosts=file)


@pytest.fixture(params=["directly", "through a jump host"])
def settings(request: pytest.FixtureRequest, host: Sshd, gate: Sshd) -> ConnectionSettings:
    jump = [] if request.param == "directly" else [gate.hop]
    return host.settings(jump=jump)


def refused(settings: ConnectionSettings, options: ConnectOptions) -> UnreachableError:
    """The error of connecting, which must come within the timeout."""
    before = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        connect(settings, options)
    assert time.monotonic() - before < settings.connect_timeout + 5  # a hang would take minutes
    assert caught.value.exit_code == 4
    assert caught.value.hint
    return caught.value


def test_the_agent_answers(settings: ConnectionSettings, options: ConnectOptions, host: Sshd) -> None:
    for _ in range(2):
        with connect(settings, options) as transport, transport.agent() as agent:
            assert agent.call("hello")["protocol"] == 1
            facts = agent.call("facts", {"root": str(host.home / "root")})
            assert facts["user"] == host.user
    cache = host.home / ".cache" / "ddtree-deploy"
    assert [path.name for path in cache.iterdir()] == [f"agent-{build_bundle().sha256}.pyz"]
    assert not (host.home / "root").exists()


def test_two_jump_hosts_and_two_agents(host: Sshd, gate: Sshd, options: ConnectOptions) -> None:
    settings = host.settings(jump=[gate.hop, gate.hop])
    with connect(settings, options) as transport, transport.agent() as first, transport.agent() as second:
        assert first.call("hello") == second.call("hello")


def test_an_unknown_host_key(settings: ConnectionSettings, tmp_path: Path, host: Sshd, gate: Sshd) -> None:
    known = tmp_path / "only-the-gate"
    known.write_text(gate.known_hosts_lines())
    error = refused(settings, ConnectOptions(known_hosts=known))
    assert error.id == "host-key-unknown"
    assert f":{host.port}" in error.message
    assert "--accept-new-host-keys" in str(error.hint)


def test_an_unknown_host_key_of_the_jump_host(host: Sshd, gate: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "only-the-host"
    known.write_text(host.known_hosts_lines())
    error = refused(host.settings(jump=[gate.hop]), ConnectOptions(known_hosts=known))
    assert error.id == "host-key-unknown"
    assert f":{gate.port}" in error.message


def test_new_host_keys_are_accepted_once(host: Sshd, gate: Sshd, tmp_path: Path) -> None:
    settings = host.settings(jump=[gate.hop])
    known = tmp_path / "new"
    for _ in range(2):
        connect(settings, ConnectOptions(known_hosts=known, accept_new_host_keys=True)).close()
    assert known.read_text().splitlines() == [
        " ".join(line.split()[:3]) for line in (gate.known_hosts_lines() + host.known_hosts_lines()).splitlines()
    ]
    connect(settings, ConnectOptions(known_hosts=known)).close()


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_host_key(tmp_path: Path, accept_new: bool) -> None:
    with Sshd(tmp_path / "host") as host, Sshd(tmp_path / "gate", identity=host.identity) as gate:
        known = tmp_path / "known_hosts"
        known.write_text(host.known_hosts_lines() + gate.known_hosts_lines())
        options = ConnectOptions(known_hosts=known, accept_new_host_keys=accept_new)
        connect(host.settings(jump=[gate.hop]), options).close()
        gate.change_host_keys()
        connect(host.settings(), options).close()
        error = refused(host.settings(jump=[gate.hop]), options)
        assert error.id == "host-key-changed"
        assert f":{gate.port}" in error.message
        assert error.where == f"{known}:2"
        host.change_host_keys()
        assert refused(host.settings(), options).id == "host-key-changed"


def test_a_server_with_several_keys_is_asked_for_the_known_one(tmp_path: Path) -> None:
    with Sshd(tmp_path / "host", host_key_kinds=("ed25519", "ecdsa", "rsa")) as host:
        for kind in ("ed25519", "ecdsa", "rsa"):
            known = tmp_path / kind
            known.write_text(host.known_hosts_lines((kind,)))
            connect(host.settings(), ConnectOptions(known_hosts=known)).close()


def test_a_wrong_user(settings: ConnectionSettings, options: ConnectOptions) -> None:
    error = refused(replace(settings, user="no-such-user"), options)
    assert error.id == "auth-failed"
    assert "no-such-user@" in error.message


def test_a_wrong_key(settings: ConnectionSettings, options: ConnectOptions, tmp_path: Path, host: Sshd) -> None:
    key = make_key(tmp_path / "wrong")
    jump = [f"{host.user}@{spec.partition('@')[2]}" for spec in settings.jump]
    error = refused(replace(settings, identity=str(key), jump=jump), options)
    assert error.id == "auth-failed"
    assert str(key) in str(error.hint)


def test_no_key_at_all(host: Sshd, options: ConnectOptions) -> None:
    error = refused(host.settings(identity=None), options)
    assert error.id == "auth-failed"
    assert "no key" in str(error.hint)


def test_a_default_key_of_the_user(host: Sshd, options: ConnectOptions, home: Path) -> None:
    (home / ".ssh").mkdir()
    (home / ".ssh" / "id_ed25519").write_bytes(host.identity.read_bytes())
    connect(host.settings(identity=None), options).close()


def test_a_key_with_a_passphrase_is_named(host: Sshd, options: ConnectOptions, tmp_path: Path) -> None:
    key = make_key(tmp_path / "locked", passphrase="secret words")
    error = refused(host.settings(identity=str(key)), options)
    assert error.id == "auth-failed"
    assert "passphrase" in str(error.hint)


@pytest.mark.parametrize("content", ["", "no key\n", "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n"])
def test_a_file_that_is_no_key(host: Sshd, options: ConnectOptions, tmp_path: Path, content: str) -> None:
    key = tmp_path / "nokey"
    key.write_text(content)
    error = refused(host.settings(identity=str(key)), options)
    assert error.id == "auth-failed"
    assert str(key) in str(error.hint)


def test_a_key_that_the_ssh_agent_holds(
    host: Sshd, options: ConnectOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    socket_path = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket_path)], stdout=subprocess.DEVNULL)
    try:
        wait_until(socket_path.exists, "the ssh-agent's socket", 60)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_path))
        subprocess.run(["ssh-add", "-q", str(host.identity)], check=True)
        connect(host.settings(identity=None), options).close()
    finally:
        agent.terminate()
        agent.wait()


def test_an_ssh_agent_that_hangs(
    host: Sshd, options: ConnectOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = socket.socket(socket.AF_UNIX)
    silent.bind(str(tmp_path / "hung"))
    silent.listen()
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "hung"))
    error = refused(host.settings(identity=None, connect_timeout=TIMEOUT), options)
    assert error.id == "auth-failed"
    assert "SSH agent" in str(error.hint)
    silent.close()


def test_a_closed_port(settings: ConnectionSettings, options: ConnectOptions) -> None:
    assert refused(replace(settings, port=free_port()), options).id == "connection-refused"


def test_a_port_that_hangs(settings: ConnectionSettings, options: ConnectOptions) -> None:
    with SilentPort() as port:
        error = refused(replace(settings, port=port.port, connect_timeout=TIMEOUT), options)
    assert error.id == "ssh-silent"
    assert f":{port.port}" in error.message


def test_a_port_that_falls_silent_after_its_greeting(settings: ConnectionSettings, options: ConnectOptions) -> None:
    with SilentPort(greeting=b"SSH-2.0-OpenSSH_9.2\r\n") as port:
        assert refused(replace(settings, port=port.port, connect_timeout=TIMEOUT), options).id == "ssh-silent"


def test_a_port_that_speaks_something_else(settings: ConnectionSettings, options: ConnectOptions) -> None:
    with SilentPort(greeting=b"HTTP/1.1 400 Bad Request\r\n\r\n" * 200) as port:
        assert refused(replace(settings, port=port.port, connect_timeout=TIMEOUT), options).id in {
            "ssh-failed",
            "ssh-silent",
        }


def test_a_jump_host_that_hangs_or_is_down(host: Sshd, options: ConnectOptions) -> None:
    with SilentPort() as port:
        settings = host.settings(jump=[f"{host.user}@127.0.0.1:{port.port}"], connect_timeout=TIMEOUT)
        error = refused(settings, options)
        assert (error.id, error.where) == ("ssh-silent", f"{host.user}@127.0.0.1:{port.port}")
    closed = free_port()
    error = refused(host.settings(jump=[f"{host.user}@127.0.0.1:{closed}"]), options)
    assert (error.id, error.where) == ("connection-refused", f"{host.user}@127.0.0.1:{closed}")


def test_a_jump_host_that_does_not_forward(tmp_path: Path, host: Sshd) -> None:
    with Sshd(tmp_path / "gate", identity=host.identity, options=["AllowTcpForwarding no"]) as gate:
        known = tmp_path / "known_hosts"
        known.write_text(host.known_hosts_lines() + gate.known_hosts_lines())
        error = refused(host.settings(jump=[gate.hop]), ConnectOptions(known_hosts=known))
    assert error.id == "jump-forbidden"


def test_a_name_that_does_not_exist(host: Sshd, options: ConnectOptions) -> None:
    error = refused(replace(host.settings(), address="no.such.host.invalid"), options)
    assert error.id in {"name-unknown", "name-timeout"}


def test_a_user_without_a_shell(tmp_path: Path) -> None:
    with (
        Sshd(tmp_path / "host", options=["ForceCommand /bin/false"]) as host,
        connect(host.settings(), ConnectOptions(known_hosts=host.known_hosts)) as transport,
        pytest.raises(StepError) as caught,
    ):
        transport.agent()
    assert caught.value.id == "agent-not-started"


def in_the_middle(transport: SshTransport, root: Path, action: Callable[[], None]) -> DeployError:
    """The error of an operation during which ``action`` is done: an upload, slow enough to be in its middle."""
    blob = root.parent / "blob"
    blob.write_bytes(os.urandom(30_000_000))
    done = threading.Event()

    def once(progress: Progress) -> None:
        if progress.done_bytes > 2_000_000 and not done.is_set():
            done.set()
            action()

    with transport.agent() as agent, pytest.raises(DeployError) as caught:
        agent.put_blobs([blob], str(root), once)
    assert done.is_set()
    return caught.value


@pytest.mark.parametrize("which", [0, 1])
def test_a_connection_that_is_lost(tmp_path: Path, which: int) -> None:
    with Sshd(tmp_path / "host") as host, Sshd(tmp_path / "gate", identity=host.identity) as gate:
        known = tmp_path / "known_hosts"
        known.write_text(host.known_hosts_lines() + gate.known_hosts_lines())
        with connect(host.settings(jump=[gate.hop]), ConnectOptions(known_hosts=known)) as transport:
            error = in_the_middle(transport, tmp_path / "root", [host, gate][which].drop_connections)
        assert isinstance(error, UnreachableError)
        assert error.id == "connection-lost"
        wait_until(lambda: not agents(host), "the agents to end", 60)
        assert not list((tmp_path / "root").rglob("*.partial"))


def test_a_lost_connection_whose_channels_are_closed_before_it_counts_as_lost(
    tmp_path: Path, host: Sshd, options: ConnectOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paramiko's thread closes them first, and may be held up there."""
    unlink = paramiko.Channel._unlink

    def slowly(channel: paramiko.Channel) -> None:
        unlink(channel)
        time.sleep(0.5)

    monkeypatch.setattr(paramiko.Channel, "_unlink", slowly)
    with connect(host.settings(), options) as transport:
        assert in_the_middle(transport, tmp_path / "root", host.drop_connections).id == "connection-lost"


def test_an_agent_that_is_killed_is_told_from_a_lost_connection(host: Sshd, options: ConnectOptions) -> None:
    with connect(host.settings(), options) as transport, transport.agent() as agent:
        agent.call("hello")
        for pid in agents(host):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(StepError) as caught:
            agent.call("hello")
    assert caught.value.id == "agent-died"


def test_interrupting_the_controller_ends_the_agent_on_the_host(
    settings: ConnectionSettings, options: ConnectOptions, host: Sshd, tmp_path: Path
) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with connect(settings, options) as transport, transport.agent() as agent:
        agent.call("hello")
        assert agents(host)
        with pytest.raises(KeyboardInterrupt):
            agent.call("facts", {"root": str(tmp_path / "root")}, interrupt)
        assert not agents(host), "it had ended before the interrupt came back to us"


def test_blobs_over_ssh(settings: ConnectionSettings, options: ConnectOptions, tmp_path: Path) -> None:
    files = []
    for number, size in enumerate([0, 1, 40_000_000, 3_000_000, *range(100, 160)]):
        files.append(tmp_path / f"blob{number}")
        files[-1].write_bytes(os.urandom(size))
    with connect(settings, options) as transport, transport.agent() as agent:
        paths = agent.put_blobs(files, str(tmp_path / "root"))
    assert sorted(Path(path).read_bytes() for path in paths.values()) == sorted(file.read_bytes() for file in files)


def agents(host: Sshd) -> list[int]:
    """The agent's processes on the host."""
    return [pid for pid in host.processes() if b"agent-" in command_line(pid)]
