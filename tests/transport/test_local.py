"""The local transport: the bootstrap, its cache, the session, blobs, and how things end."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from processes import alive, wait_until

from ddtree_deploy.agent.bundle import build_bundle
from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.errors import InputError, StepError, UnreachableError
from ddtree_deploy.transport import ConnectionSettings, ConnectOptions, connect
from ddtree_deploy.transport.session import AgentSession
from ddtree_deploy.transport.start import start_command

LOCAL = ConnectionSettings("local")


def cached(home: Path) -> Path:
    return home / ".cache" / "ddtree-deploy" / f"agent-{build_bundle().sha256}.pyz"


def agent_pid(session: AgentSession) -> int:
    return session._stream._process.pid  # type: ignore[attr-defined]


def test_the_agent_is_sent_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    from ddtree_deploy.transport.local import LocalStream

    write = LocalStream.write
    monkeypatch.setattr(LocalStream, "write", lambda self, data: (sent.append(len(data)), write(self, data))[1])
    for _ in range(2):
        with connect(LOCAL) as transport, transport.agent() as agent:
            assert agent.call("hello")["protocol"] == 1
    assert len([size for size in sent if size > 100_000]) == 1
    assert cached(home).read_bytes() == build_bundle().data
    assert stat.S_IMODE(cached(home).parent.stat().st_mode) == 0o700
    assert [path.name for path in cached(home).parent.iterdir()] == [cached(home).name]


def test_a_damaged_copy_is_replaced(home: Path) -> None:
    cached(home).parent.mkdir(parents=True)
    cached(home).write_bytes(build_bundle().data[:-1])
    with connect(LOCAL) as transport, transport.agent() as agent:
        agent.call("hello")
    assert cached(home).read_bytes() == build_bundle().data


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_cache_that_cannot_be_used_is_avoided(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    cache = home / ".cache"
    if kind == "file":
        cache.write_text("not a folder")
    else:  # somebody else's idea of where our code should be
        cache.mkdir()
        (tmp_path / "elsewhere").mkdir()
        (cache / "ddtree-deploy").symlink_to(tmp_path / "elsewhere")
    with connect(LOCAL) as transport, transport.agent() as agent:
        agent.call("hello")
    private = temporary / f"ddtree-deploy-{os.getuid()}"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert len(list(private.iterdir())) == 1


def test_prune_removes_copies_of_the_agent_that_nobody_uses(home: Path, tmp_path: Path) -> None:
    ours = cached(home)
    folder = ours.parent
    folder.mkdir(parents=True)
    names = {kind: f"agent-{digit * 64}.pyz" for kind, digit in {"old": "0", "runs": "1", "young": "2"}.items()}
    names |= {"partial": f"agent-{'3' * 64}.pyz.77.partial", "not ours": "agent-notes.pyz"}
    ours.write_bytes(build_bundle().data)
    long_ago = time.time() - 8 * 86400
    for name in [*names.values(), ours.name]:
        (folder / name).touch()
        os.utime(folder / name, (long_ago, long_ago))
    (folder / names["young"]).touch()
    (tmp_path / "root").mkdir()
    running = [sys.executable, "-c", "import time; time.sleep(600)", str(folder / names["runs"])]
    with subprocess.Popen(running) as process:
        try:
            with connect(LOCAL) as transport, transport.agent() as agent:
                removed = agent.call("releases.prune", {"root": str(tmp_path / "root"), "keep": 1})["cache_removed"]
        finally:
            process.kill()
    assert removed == [names["old"], names["partial"]]
    left = {path.name for path in folder.iterdir()}
    assert left == {names["runs"], names["young"], names["not ours"], ours.name}
    assert ours.stat().st_mtime > long_ago + 86400  # this start counts as its use


def test_a_cache_that_others_may_write_is_closed_to_them(home: Path) -> None:
    folder = cached(home).parent
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with connect(LOCAL) as transport, transport.agent() as agent:
        agent.call("hello")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_no_place_for_the_code(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".cache").write_text("not a folder")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    (temporary / f"ddtree-deploy-{os.getuid()}").write_text("not a folder")
    monkeypatch.setenv("TMPDIR", str(temporary))
    with connect(LOCAL) as transport, pytest.raises(StepError) as caught:
        transport.agent()
    assert caught.value.id == "agent-not-stored"


def test_no_python() -> None:
    settings = ConnectionSettings("local", python="/no/such/python")
    with connect(settings) as transport, pytest.raises(InputError) as caught:
        transport.agent()
    assert caught.value.id == "no-python"
    assert "/no/such/python" in caught.value.message


def test_a_python_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = tmp_path / "python-old"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    command = start_command([str(old), sys.executable], build_bundle())
    from ddtree_deploy.transport.local import LocalStream
    from ddtree_deploy.transport.start import start_agent

    assert command[-2:] == [str(old), sys.executable]
    run = start_agent(lambda argv: LocalStream(argv, ConnectOptions()), command[-2:], "here")
    with run as agent:
        assert agent.call("hello")["executable"] == sys.executable


def test_the_shell_text_reads_the_same_in_every_login_shell() -> None:
    """Quoted by shlex, it goes through a login shell that may be csh or fish: these read ' and ! otherwise."""
    script = start_command(["python3"], build_bundle())[2]
    assert not set(script) & set("'\\!\n`")


def test_output_of_a_login_shell_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    from ddtree_deploy.transport.local import LocalStream
    from ddtree_deploy.transport.start import start_agent

    def noisy(argv: list[str]) -> LocalStream:
        return LocalStream(
            ["sh", "-c", 'echo "Welcome to gpu1"; printf "no newline "; exec "$@"', "sh", *argv], ConnectOptions()
        )

    with start_agent(noisy, [sys.executable], "here") as agent:
        assert agent.call("hello")["protocol"] == 1


def test_an_account_without_a_shell() -> None:
    from ddtree_deploy.transport.local import LocalStream
    from ddtree_deploy.transport.start import start_agent

    def refused(argv: list[str]) -> LocalStream:
        return LocalStream(["sh", "-c", "echo This account is currently not available.; exit 1"], ConnectOptions())

    with pytest.raises(StepError) as caught:
        start_agent(refused, ["python3"], "gpu1")
    assert caught.value.id == "agent-not-started"
    assert "currently not available" in caught.value.message


def test_stderr_is_collected_and_passed_on(tmp_path: Path) -> None:
    lines: list[str] = []
    python = tmp_path / "python-loud"
    python.write_text(f'#!/bin/sh\necho "a warning" >&2\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    settings = ConnectionSettings("local", python=str(python))
    with connect(settings, ConnectOptions(on_stderr=lines.append)) as transport, transport.agent() as agent:
        agent.call("hello")
        assert "a warning" in agent.stderr()
    assert "a warning" in lines


def test_errors_come_back_as_what_they_were(tmp_path: Path) -> None:
    with connect(LOCAL) as transport, transport.agent() as agent:
        with pytest.raises(InputError) as caught:
            agent.call("facts", {"root": "relative"})
        assert caught.value.id == "bad-root"
        assert agent.call("hello")["protocol"] == 1


def test_a_killed_agent_is_named_with_its_signal() -> None:
    with connect(LOCAL) as transport, transport.agent() as agent:
        agent.call("hello")
        os.kill(agent_pid(agent), signal.SIGKILL)
        with pytest.raises(StepError) as caught:
            agent.call("hello")
        assert caught.value.id == "agent-died"
        assert "signal 9" in caught.value.message
        with pytest.raises(StepError) as caught:
            agent.call("hello")
        assert caught.value.id == "agent-closed"


def test_interrupting_the_controller_ends_the_agent(tmp_path: Path) -> None:
    def interrupt(progress: Progress) -> None:
        raise KeyboardInterrupt

    with connect(LOCAL) as transport, transport.agent() as agent:
        pid = agent_pid(agent)
        with pytest.raises(KeyboardInterrupt):
            agent.call("facts", {"root": str(tmp_path / "root")}, interrupt)
        assert not alive(pid)


def test_closing_ends_the_agent() -> None:
    with connect(LOCAL) as transport:
        agent = transport.agent()
        pid = agent_pid(agent)
        agent.close()
        agent.close()
    wait_until(lambda: not alive(pid), "the agent to end", 60)


def test_an_agent_that_falls_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    with connect(LOCAL) as transport, transport.agent() as agent:
        pid = agent_pid(agent)
        agent.call("hello")  # a busy machine takes its time to start it
        monkeypatch.setattr("ddtree_deploy.transport.session.SILENCE", 0.5)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(UnreachableError) as caught:
            agent.call("hello")
        assert caught.value.id == "host-silent"
        assert not alive(pid)


@pytest.mark.parametrize(
    ("lines", "verdict"),
    [
        (b'{"id": 1, "heartbeat": true}\n{"id": 0, "heartbeat": true}\n{"id": 1, "result": {"ok": 1}}\n', {"ok": 1}),
        (b'{"id": 7, "result": {}}\n', "agent-protocol"),
        (b"Traceback (most recent call last):\n", "agent-protocol"),
        (b"[1]\n", "agent-protocol"),
        (b'{"id": 1, "result', "agent-died"),
        (b"", "agent-died"),
    ],
)
def test_what_the_agent_may_say(lines: bytes, verdict: object) -> None:
    from ddtree_deploy.transport.local import LocalStream
    from ddtree_deploy.transport.session import LineReader

    script = f"read request; printf '%s' '{lines.decode()}'"
    stream = LocalStream(["sh", "-c", script], ConnectOptions())
    with AgentSession(stream, LineReader(stream), "here") as agent:
        try:
            answer: object = agent.call("hello")
        except StepError as error:
            answer = error.id
    assert answer == verdict


def test_another_thread_ends_a_call(tmp_path: Path) -> None:
    """Ctrl-C with several hosts: the main thread closes what the hosts' threads wait for."""
    begun = threading.Event()
    errors: list[BaseException] = []

    def work(agent: AgentSession) -> None:
        try:
            agent.call("facts", {"root": str(tmp_path / "root"), "gpu_timeout": 60}, lambda progress: begun.set())
        except BaseException as error:
            errors.append(error)

    from doubles.nvidia_smi_double import install

    install(tmp_path / "bin", "hang")
    with pytest.MonkeyPatch.context() as patch, connect(LOCAL) as transport:
        patch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        agent = transport.agent()
        pid = agent_pid(agent)
        worker = threading.Thread(target=work, args=(agent,))
        worker.start()
        assert begun.wait(20)
        agent.close()
        worker.join(20)
        assert not worker.is_alive()
        assert not alive(pid)
    assert [getattr(error, "id", error) for error in errors] in (["agent-stopped"], ["agent-closed"])


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "files"
    folder.mkdir()
    sizes = [0, 1, 5_000_000, 70_000, *range(2, 60)]
    for number, size in enumerate(sizes):
        (folder / f"f{number}").write_bytes(os.urandom(size))
    return sorted(folder.iterdir())


def test_blobs_are_sent_once_with_progress(files: list[Path], tmp_path: Path) -> None:
    root = tmp_path / "root"
    seen: list[Progress] = []
    with connect(LOCAL) as transport, transport.agent() as agent:
        paths = agent.put_blobs(files, str(root), seen.append)
        expected = {hashlib.sha256(path.read_bytes()).hexdigest(): path.read_bytes() for path in files}
        assert {sha256: Path(path).read_bytes() for sha256, path in paths.items()} == expected
        total = sum(len(data) for data in expected.values())
        assert seen[-1] == Progress("upload", "", total, total, len(expected), len(expected), finished=True)
        assert [item.done_bytes for item in seen] == sorted(item.done_bytes for item in seen)
        seen.clear()
        assert agent.put_blobs(files, str(root), seen.append) == paths
        assert seen == []
        assert agent.put_blobs([], str(root)) == {}


def test_a_blob_that_is_refused_ends_the_session_with_its_reason(files: list[Path], tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "cache").mkdir(parents=True)
    (root / "cache" / "blobs").write_text("not a folder")
    with connect(LOCAL) as transport, transport.agent() as agent, pytest.raises(StepError) as caught:
        agent.put_blobs(files, str(root))
    assert caught.value.id == "write-failed"


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with connect(LOCAL) as transport, transport.agent() as agent:
        with pytest.raises(InputError) as caught:
            agent.put_blobs([tmp_path / "nothing"], str(tmp_path / "root"))
        assert caught.value.id == "file-unreadable"
        assert agent.call("hello")["protocol"] == 1
