"""The content-addressed store on the host."""

from __future__ import annotations

import hashlib
import io
import os
import sys
import time
from pathlib import Path

import pytest
from agent_process import AgentProcess

from ddtree_deploy.agent import blobs

DATA = b"0123456789abcdef" * 100_000


@pytest.fixture
def agent():
    with AgentProcess([sys.executable, "-m", "ddtree_deploy.agent.main"]) as process:
        yield process


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def params(root: Path, data: bytes) -> dict[str, object]:
    return {"root": str(root), "sha256": digest(data), "size": len(data)}


def test_put_then_not_missing(agent: AgentProcess, tmp_path: Path) -> None:
    root = tmp_path / "root"
    question = {"root": str(root), "blobs": {digest(DATA): len(DATA), digest(b""): 0}}
    assert sorted(agent.ask("blob.missing", question)["result"]["missing"]) == sorted([digest(DATA), digest(b"")])
    assert not root.exists(), "asking writes nothing"
    path = agent.ask("blob.put", params(root, DATA), data=DATA)["result"]["path"]
    agent.ask("blob.put", params(root, b""))
    assert Path(path).read_bytes() == DATA
    assert path == str(root / "cache" / "blobs" / digest(DATA))
    answer = agent.ask("blob.missing", question)["result"]
    assert answer["missing"] == []
    assert answer["paths"][digest(DATA)] == path
    assert sorted(item.name for item in Path(path).parent.iterdir()) == sorted([digest(DATA), digest(b"")])


def test_a_blob_of_the_wrong_size_counts_as_missing(agent: AgentProcess, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "blobs" / digest(DATA)
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA[:-1])
    assert agent.ask("blob.missing", {"root": str(tmp_path), "blobs": {digest(DATA): len(DATA)}})["result"]["missing"]


def test_damaged_bytes_are_refused_and_the_next_request_is_found(agent: AgentProcess, tmp_path: Path) -> None:
    damaged = DATA[:-1] + b"!"
    error = agent.ask("blob.put", params(tmp_path, DATA), data=damaged)["error"]
    assert error["id"] == "blob-corrupt"
    assert list((tmp_path / "cache" / "blobs").iterdir()) == []
    assert "result" in agent.ask("hello", id=2)


def test_a_store_that_cannot_be_written(agent: AgentProcess, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    error = agent.ask("blob.put", params(tmp_path, DATA), data=DATA)["error"]
    assert error["id"] == "write-failed"
    assert str(tmp_path) in error["message"]
    assert "result" in agent.ask("hello", id=2), "the bytes were read all the same"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_no_permission(agent: AgentProcess, tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    error = agent.ask("blob.put", params(tmp_path / "root", DATA), data=DATA)["error"]
    assert error["id"] == "root-not-writable"


def test_no_space_is_said_before_anything_is_sent(agent: AgentProcess, tmp_path: Path) -> None:
    error = agent.ask("blob.missing", {"root": str(tmp_path), "blobs": {digest(DATA): 10**18}})["error"]
    assert error["id"] == "no-space"
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("name", ["../../etc/passwd", "ABC", "", "0" * 63 + "g", "0" * 64 + "\n"])
def test_a_name_that_is_no_sha256(agent: AgentProcess, tmp_path: Path, name: str) -> None:
    error = agent.ask("blob.put", {"root": str(tmp_path), "sha256": name, "size": 3}, data=b"abc")["error"]
    assert error["id"] == "blob-invalid"
    assert "result" in agent.ask("hello", id=2)


def test_what_a_killed_agent_left_goes_after_a_day(agent: AgentProcess, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "blobs"
    folder.mkdir(parents=True)
    old, young = folder / f"{digest(b'x')}.1.partial", folder / f"{digest(b'y')}.2.partial"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 2 * 86400,) * 2)
    agent.ask("blob.put", params(tmp_path, DATA), data=DATA)
    assert not old.exists()
    assert young.exists()


def test_controller_gone_in_the_middle_of_a_blob(agent: AgentProcess, tmp_path: Path) -> None:
    agent.send("blob.put", params(tmp_path, DATA), data=DATA[:1000])
    folder = tmp_path / "cache" / "blobs"
    while not (folder.is_dir() and list(folder.iterdir())):
        time.sleep(0.01)  # until it is in the middle
    agent.stdin.close()
    assert agent.process.wait(60) == 130
    assert list(folder.iterdir()) == []


def test_the_signal_that_stops_the_agent_while_it_cleans_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of input and the signal come together; the signal once."""
    unlink, stopped = Path.unlink, [KeyboardInterrupt]

    def interrupted(path: Path, missing_ok: bool = False) -> None:
        if stopped:
            raise stopped.pop()
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", interrupted)
    with pytest.raises(BrokenPipeError):
        blobs.put(params(tmp_path, DATA), io.BytesIO(DATA[:1000]))
    assert list((tmp_path / "cache" / "blobs").iterdir()) == []
    assert not stopped
