"""The serve loop: requests, errors, a clean stdout, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import signal
from pathlib import Path

import pytest
from agent_process import AgentProcess, source_agent
from processes import alive, wait_until

from ddtree_deploy.agent.protocol import PROTOCOL

OPERATIONS = """
import os, subprocess, sys, time
from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.errors import LockedError

def noise(params, progress):
    print("from python")
    os.system("echo from a child")
    left = sys.stdin.read()
    return {"stdin": left, "child": subprocess.run(["cat"], stdout=subprocess.PIPE).stdout.decode()}

def steps(params, progress):
    for number in range(3):
        progress(Progress("count", done_files=number, finished=True))
    return {"done": True}

def refuse(params, progress):
    raise LockedError("locked", "somebody else", hint="wait", details={"pid": 7})

def crash(params, progress):
    return {"value": [1, 2][params["index"]]}

def leave(params, progress):
    sys.exit(3)

def not_json(params, progress):
    return {"value": object()}

def refused_by_the_host(params, progress):
    raise OSError(params["errno"], os.strerror(params["errno"]), "/srv/file")

def slow(params, progress):
    while not os.path.exists(params["until"]):
        time.sleep(0.01)
    return {}

def wait(params, progress):
    child = subprocess.Popen(["sleep", "600"])
    try:
        with open(params["started"], "w") as file:
            file.write(str(child.pid))
        progress(Progress("waiting", finished=True))
        time.sleep(600)
    finally:
        with open(params["ended"], "w") as file:
            file.write("cleaned up")
    return {}
"""


@pytest.fixture
def agent(tmp_path: Path):
    with AgentProcess(source_agent(tmp_path, OPERATIONS)) as process:
        yield process


def test_hello(agent: AgentProcess) -> None:
    assert agent.ask("hello", id=5)["result"]["protocol"] == PROTOCOL


def test_progress_comes_before_the_result(agent: AgentProcess) -> None:
    agent.send("steps", id=2)
    answers = [agent.receive() for _ in range(4)]
    assert [answer["progress"]["done_files"] for answer in answers[:3]] == [0, 1, 2]
    assert answers[3] == {"id": 2, "result": {"done": True}}


def test_stdout_is_the_protocols_alone_and_stdin_is_not_the_operations(agent: AgentProcess) -> None:
    answer = agent.ask("noise")
    assert answer["result"] == {"stdin": "", "child": ""}
    assert "result" in agent.ask("hello", id=2)
    agent.stdin.close()
    assert agent.process.wait(60) == 0
    assert agent.stdout.read() == b""
    assert sorted(agent.stderr.read().decode().splitlines()) == ["from a child", "from python"]


def test_an_error_of_ours_crosses_as_it_is(agent: AgentProcess) -> None:
    error = agent.ask("refuse")["error"]
    assert (error["type"], error["id"], error["hint"], error["details"]) == (
        "LockedError",
        "locked",
        "wait",
        {"pid": 7},
    )


@pytest.mark.parametrize(("op", "what"), [("crash", "IndexError"), ("leave", "SystemExit"), ("not_json", "TypeError")])
def test_anything_else_is_a_crash_with_its_traceback_and_the_agent_goes_on(
    agent: AgentProcess, op: str, what: str
) -> None:
    error = agent.ask(op, {"index": 9})["error"]
    assert (error["type"], error["id"]) == ("StepError", "agent-crashed")
    assert what in error["message"]
    assert f"in {op}" in error["details"]["traceback"] or op == "not_json"
    assert "result" in agent.ask("hello", id=2)


@pytest.mark.parametrize(
    ("number", "id"),
    [
        (errno.EACCES, "permission-denied"),
        (errno.EROFS, "permission-denied"),
        (errno.ENOSPC, "no-space"),
        (errno.ENAMETOOLONG, "bad-path"),
    ],
)
def test_what_the_host_refuses_is_no_bug_of_ours(agent: AgentProcess, number: int, id: str) -> None:
    error = agent.ask("refused_by_the_host", {"errno": number})["error"]
    code = 3 if id == "bad-path" else 5
    assert (error["id"], error["where"], error["exit_code"]) == (id, "/srv/file", code)
    assert error["hint"] and os.strerror(number) in error["message"]


@pytest.mark.parametrize(
    "line", [b"nonsense\n", b"[]\n", b'{"id": "x", "op": "hello"}\n', b'{"id":1,"op":"hello","params":3}\n']
)
def test_a_bad_request_is_answered(agent: AgentProcess, line: bytes) -> None:
    agent.stdin.write(line)
    agent.stdin.flush()
    assert agent.receive()["error"]["id"] == "agent-bad-request"
    assert "result" in agent.ask("hello", id=2)


def test_unknown_operation(agent: AgentProcess) -> None:
    assert agent.ask("nosuch")["error"]["id"] == "agent-unknown-op"


def test_a_long_operation_shows_that_it_lives(agent: AgentProcess, tmp_path: Path) -> None:
    agent.send("slow", {"until": str(tmp_path / "enough")})
    assert json.loads(agent.stdout.readline()) == {"id": 1, "heartbeat": True}
    (tmp_path / "enough").touch()
    assert agent.receive()["result"] == {}
    assert "result" in agent.ask("hello", id=2)


@pytest.mark.parametrize("how", ["eof", "term", "hangup"])
def test_stops_in_the_middle_of_an_operation(agent: AgentProcess, tmp_path: Path, how: str) -> None:
    started, ended = tmp_path / "started", tmp_path / "ended"
    agent.send("wait", {"started": str(started), "ended": str(ended)})
    assert "progress" in agent.receive()
    child = int(started.read_text())
    if how == "eof":
        agent.stdin.close()
    else:
        agent.process.send_signal(signal.SIGTERM if how == "term" else signal.SIGHUP)
        assert agent.receive()["error"]["id"] == "agent-stopped"
    assert agent.process.wait(60) == 130
    assert ended.read_text() == "cleaned up"
    wait_until(lambda: not alive(child), "its child to end", 60)


def test_ends_at_end_of_input(agent: AgentProcess) -> None:
    agent.ask("hello")
    agent.stdin.close()
    assert agent.process.wait(60) == 0


def test_sigterm_while_idle(agent: AgentProcess) -> None:
    agent.ask("hello")
    agent.process.send_signal(signal.SIGTERM)
    assert agent.process.wait(60) == 130
