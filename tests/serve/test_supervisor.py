"""Launch, crash, stop: real processes, the engine stood in (see stand_in_engine.py)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from doubles import nvidia_smi_double
from processes import command_line, wait_until
from served_host import PORTS, Host
from stand_in_engine import make_release

from ddtree_deploy.agent.bundle import build_bundle
from ddtree_deploy.agent.protocol import Progress, ProgressSink, silent
from ddtree_deploy.errors import DeployError, InputError, StepError
from ddtree_deploy.serve import launch
from ddtree_deploy.serve.manager import start_service
from ddtree_deploy.serve.operations import list_services, op_launch, op_logs, op_restart
from ddtree_deploy.serve.ports import allocate, is_free
from ddtree_deploy.serve.process import identify, is_alive, send_signal
from ddtree_deploy.serve.readiness import complete
from ddtree_deploy.serve.spec import ServiceFolder
from ddtree_deploy.serve.state import ServiceState, write_state
from ddtree_deploy.serve.stop import stop_service


def test_launch_status_logs_stop(host: Host) -> None:
    seen: list[Progress] = []
    result = op_launch(host.params(), seen.append)
    (service,) = result["services"]
    assert result["changed"] and service["changed"]
    assert service["state"] == "ready"
    assert service["probe"]["ok"] and service["probe"]["text"] == " x"
    assert (service["algorithm"], service["budget"], service["release"]) == ("ddtree", "7", "stand-in-1")
    assert PORTS[0] <= service["port"] <= PORTS[1]
    assert seen[-1].finished and seen[-1].message == "ready"

    status = host.status()
    assert status["pid"] == service["pid"]
    assert status["tokens_per_step"] == 3.5
    assert [info.state for info in list_services(host.root)] == ["ready"]

    assert host.logs("stand-in engine")
    logs = op_logs({"root": str(host.root), "lines": 50}, silent)
    assert any("stand-in engine" in line for line in logs["lines"])
    complete(host.folder().spec(), None, 5)  # type: ignore[arg-type]
    followed: list[str] = []
    cursor = logs["cursor"]
    while '"POST /generate HTTP/1.1" 200 -' not in followed:
        more = op_logs({"root": str(host.root), "cursor": cursor}, silent)
        followed, cursor = followed + more["lines"], more["cursor"]
    assert not any("stand-in engine" in line for line in followed)

    engine = host.state().engine
    assert host.stop()["services"] == [{"name": "cpu", "changed": True, "state": "stopped"}]
    assert not is_alive(engine)
    assert host.status()["state"] == "stopped"
    assert host.stop()["changed"] is False


def test_launching_what_runs_changes_nothing(host: Host) -> None:
    (first,) = host.launch()["services"]
    again = host.launch()
    assert again["changed"] is False
    assert again["services"][0]["pid"] == first["pid"]


def test_another_release_is_named_once(host: Host) -> None:
    host.launch()
    make_release(host.root / "releases" / "stand-in-2")
    with pytest.raises(InputError) as caught:
        host.launch(release="stand-in-2")
    told = "service cpu runs with other settings: release: 'stand-in-1' now, 'stand-in-2' asked"
    assert (caught.value.id, caught.value.message) == ("service-running", told)


def test_other_settings_are_refused_unless_they_replace(host: Host) -> None:
    (first,) = host.launch()["services"]
    with pytest.raises(InputError) as caught:
        host.launch(budget=8)
    assert caught.value.id == "service-running"
    assert "budget: 7 now, 8 asked" in caught.value.message
    with pytest.raises(InputError) as caught:
        host.launch(api_key="another-key")
    assert caught.value.id == "service-running"
    assert host.state().engine.pid == first["pid"]  # type: ignore[union-attr]
    (second,) = host.launch(budget=8, replace=True)["services"]
    assert second["budget"] == "8"
    assert second["port"] == first["port"]
    assert second["pid"] != first["pid"]
    assert identify(first["pid"]) is None


def test_a_200_without_a_token_is_not_ready(host: Host) -> None:
    asked = '"POST /generate'
    host.launch(environment={"STAND_IN_FALSE_200": "3"})
    # The engine's lines pass through the supervisor: the last one may come after what it says itself.
    host.until("asked four times", lambda state: host.log().count(asked) == 4)
    assert host.log().split("ready: a completion")[0].count(asked) >= 3


def test_the_engines_own_words_when_it_dies(host: Host) -> None:
    host.launch()
    host.stop()
    with pytest.raises(InputError) as caught:
        host.launch(environment={"STAND_IN_DIE": "ValueError: budget 7 is odd"})
    error = caught.value
    assert error.id == "engine-refused"
    assert error.message.startswith("cpu: ValueError: budget 7 is odd")
    assert "ValueError: budget 7 is odd" in error.details["log"]
    assert not any("ready" in line for line in error.details["log"])  # of this run only
    status = host.status()
    assert (status["state"], status["cause"]) == ("failed", "ValueError: budget 7 is odd")
    assert host.processes() == []


def test_other_deaths_are_failed_steps(host: Host) -> None:
    with pytest.raises(StepError) as caught:
        host.launch(environment={"STAND_IN_DIE": "torch.OutOfMemoryError: CUDA out of memory"})
    assert caught.value.id == "engine-died"
    assert caught.value.exit_code == 5


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        (["usage: x [-h]", "launch_server.py: error: unrecognized arguments: --x"], True),
        (["cuda.cu(5): error: identifier is undefined", "RuntimeError: ninja exited with status 1"], False),
        (["collect2: error: ld returned 1 exit status", "RuntimeError: ninja exited with status 1"], False),
    ],
)
def test_a_kernel_that_does_not_compile_is_no_bad_setting(host: Host, lines: list[str], refused: bool) -> None:
    with pytest.raises(InputError if refused else StepError) as caught:
        host.launch(environment={"STAND_IN_DIE": "\n".join(lines)})
    assert caught.value.id == ("engine-refused" if refused else "engine-died")


def test_the_deadline_stops_everything(host: Host) -> None:
    with pytest.raises(StepError) as caught:
        host.launch(environment={"STAND_IN_DELAY": "600"}, launch_timeout=1.0)
    assert caught.value.id == "launch-timeout"
    assert host.processes() == []
    assert host.status()["state"] == "failed"


def test_a_failed_launch_is_told_as_such_though_its_engine_takes_time_to_end(host: Host) -> None:
    """The supervisor is ``stopping`` until then."""
    folder, spec = host.folder(), host.spec({})
    folder.write(spec, {})
    error = StepError("launch-timeout", "no completion within 1 s")
    stopping = ServiceState("stopping", supervisor=identify(os.getpid()), launch="x")
    write_state(folder, stopping)
    seen: list[Progress] = []

    def end(progress: Progress) -> None:
        if not seen:
            write_state(folder, dataclasses.replace(stopping, state="failed", error=error.to_dict()))
        seen.append(progress)

    with pytest.raises(StepError) as caught:
        launch._wait_for([launch._Target(folder, spec, "x")], True, end, {})
    assert caught.value.id == "launch-timeout"


def test_a_port_answered_by_another_program_is_not_ready(host: Host) -> None:
    """The other program took the port after it was found free, and even answers completions."""
    (port,) = allocate(range(PORTS[0], PORTS[1] + 1), [], 1)
    double = str(Path(__file__).with_name("stand_in_engine.py"))
    stranger = subprocess.Popen([sys.executable, double, "--host", "127.0.0.1", "--port", str(port)])
    try:
        wait_until(lambda: not is_free(port), "the other program")
        host.start_spec({"STAND_IN_DELAY": "600"}, launch_timeout_s=3.0, port=port)
        host.until("failed", lambda state: state.state == "failed")
    finally:
        stranger.kill()
        stranger.wait()
    assert "not this service's" in json.dumps(host.state().error)


def test_a_driver_that_takes_its_time(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of eight supervisors at once on cards without persistence mode."""
    answers = tmp_path / "answers"
    tool = nvidia_smi_double.install(tmp_path / "bin", "one")
    tool.write_text(tool.read_text().replace("\n", f"\nwhile [ ! -e '{answers}' ]; do sleep 0.05; done\n", 1))
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("ddtree_deploy.serve.manager._START_S", 10.0)
    uuid = nvidia_smi_double.SCENARIOS["one"]["cards"][0]["uuid"]
    host.start_spec({}, gpu_index=0, gpu_uuid=uuid)
    assert (host.state().state, host.state().phase) == ("starting", "looking for its GPU")
    answers.touch()
    host.until("ready", lambda state: state.state == "ready")


def test_secrets_are_in_no_file_but_their_own(host: Host) -> None:
    key = "s3cret-key-value"
    host.launch(api_key=key, listen="0.0.0.0", environment={"STAND_IN_SAY": "my key is {DDTREE_API_KEY}"})
    folder = host.folder()
    holders = {path.name for path in folder.path.iterdir() if path.is_file() and key in path.read_text()}
    assert holders == {"environment", "engine.yaml"}
    assert all(stat.S_IMODE((folder.path / name).stat().st_mode) == 0o600 for name in holders)
    assert host.logs("my key is ***")
    for pid in host.processes():
        assert key.encode() not in command_line(pid)
    assert host.status()["probe"]["ok"]
    spec = folder.spec()
    assert spec is not None
    assert "401" in str(complete(spec, "wrong", 5).error)


def test_a_crash_is_restarted_and_a_crash_loop_ends(host: Host) -> None:
    environment = {"STAND_IN_DIE_READY": "1"}
    host.start_spec(environment, max_restarts=2, restart_delay_s=0.05)
    state = host.until("failed", lambda state: state.state == "failed")
    assert state.restarts == 2
    assert state.error is not None
    assert state.error["id"] == "crash-loop"
    assert "exit code 7" in state.error["message"]
    assert host.log().count("stand-in engine: ") == 3
    assert host.processes() == []


def test_a_killed_engine_comes_back(host: Host) -> None:
    host.start_spec({}, restart_delay_s=0.05)
    first = host.until("ready", lambda state: state.state == "ready").engine
    assert first is not None
    send_signal(first, signal.SIGKILL)
    state = host.until("ready again", lambda state: state.state == "ready" and state.engine != first)
    assert (state.restarts, state.last_exit) == (1, "signal SIGKILL")


def test_orphans_and_the_stubborn_are_killed(host: Host, tmp_path: Path) -> None:
    note = tmp_path / "orphan"
    host.start_spec({"STAND_IN_ORPHAN": str(note), "STAND_IN_STUBBORN": "1"}, stop_grace_s=0.2)
    engine = host.until("ready", lambda state: state.state == "ready").engine
    orphan = identify(int(note.read_text()))
    assert is_alive(orphan) and is_alive(engine)
    host.stop()
    assert not is_alive(orphan)
    assert not is_alive(engine)


def test_orphans_of_a_crash_are_killed_before_the_restart(host: Host, tmp_path: Path) -> None:
    note = tmp_path / "orphan"
    host.start_spec({"STAND_IN_ORPHAN": str(note)}, restart_delay_s=0.05)
    state = host.until("ready", lambda state: state.state == "ready")
    orphan = identify(int(note.read_text()))
    assert state.engine is not None
    send_signal(state.engine, signal.SIGKILL)
    host.until("ready again", lambda now: now.state == "ready" and now.restarts == 1)
    assert not is_alive(orphan)


def test_a_killed_supervisor_leaves_no_engine_and_a_clean_stop(host: Host, tmp_path: Path) -> None:
    host.start_spec({})
    state = host.until("ready", lambda state: state.state == "ready")
    assert state.supervisor is not None
    send_signal(state.supervisor, signal.SIGKILL)
    host.until("dead", lambda state: state.state == "dead")
    assert host.status()["state"] == "dead"
    assert host.stop()["services"] == [{"name": "cpu", "changed": True, "state": "stopped"}]
    assert not is_alive(state.engine)
    (service,) = host.launch()["services"]
    assert service["state"] == "ready"


def test_stopping_while_it_starts(host: Host) -> None:
    host.start_spec({"STAND_IN_DELAY": "600"})
    engine = host.until("loading", lambda state: state.engine is not None).engine
    assert host.stop()["changed"]
    assert not is_alive(engine)
    assert host.state().state == "stopped"


def test_stopping_what_somebody_starts_anew_meanwhile(host: Host) -> None:
    """The second operator's restart comes between the end of the supervisor and what the first one's stop writes."""
    folder = host.start_spec({"STAND_IN_DELAY": "1"})
    old = host.state().supervisor

    def restart(progress: Progress) -> None:
        if host.state().launch == "test":
            wait_until(lambda: not is_alive(old), "the first supervisor's end")
            start_service(folder, "other")
            host.until("loading", lambda state: state.engine is not None)

    stop_service(folder, restart)
    assert (host.state().state, host.state().launch) == ("starting", "other")
    host.until("ready", lambda state: state.state == "ready")


def test_what_cannot_be_stopped_does_not_keep_the_others(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    host.launch()
    stubborn = host.folder("a")
    stubborn.write(dataclasses.replace(host.spec({}), name="a"), {})

    def stop(folder: ServiceFolder, progress: ProgressSink) -> bool:
        if folder.name == "a":
            raise StepError("processes-left", "a: processes 1 do not end")
        return stop_service(folder, progress)

    monkeypatch.setattr("ddtree_deploy.serve.operations.stop_service", stop)
    with pytest.raises(StepError) as caught:
        host.stop()
    monkeypatch.undo()
    assert caught.value.id == "processes-left"
    assert [service["changed"] for service in caught.value.details["services"]] == [False, True]
    assert host.state().state == "stopped" and not host.processes()


def test_a_slow_completion_does_not_make_a_ready_service_fail(host: Host) -> None:
    host.launch(environment={"STAND_IN_SLOW": "0.3"})
    status = host.status(probe_timeout=0.05)
    assert status["state"] == "ready"
    assert status["probe"]["ok"] is False
    assert host.status()["probe"]["ok"] is True


def test_restart_keeps_settings_and_ports(host: Host) -> None:
    (first,) = host.launch(api_key="a-key")["services"]
    (second,) = op_restart({"root": str(host.root)}, silent)["services"]
    assert second["state"] == "ready"
    assert second["pid"] != first["pid"]
    assert (second["port"], second["budget"]) == (first["port"], first["budget"])
    assert host.folder().secrets() == {"DDTREE_API_KEY": "a-key"}


@pytest.mark.parametrize("anew", [False, True])
def test_a_service_whose_folder_is_removed_ends(host: Host, anew: bool) -> None:
    folder = host.start_spec({}, stop_grace_s=0.5)
    state = host.until("ready", lambda state: state.state == "ready")
    first = state.supervisor
    assert first is not None

    def has_ended() -> bool:
        send_signal(first, signal.SIGCHLD)  # so that it looks at once
        return not is_alive(first)

    shutil.move(folder.path, host.root / "moved")  # for a moment: nothing happens
    send_signal(first, signal.SIGCHLD)
    shutil.move(host.root / "moved", folder.path)
    time.sleep(1)
    assert not has_ended() and host.state().state == "ready"
    shutil.rmtree(folder.path)
    if anew:
        (service,) = host.launch()["services"]
        assert service["state"] == "ready"
    wait_until(has_ended, "the end of the supervisor", 60)
    assert not is_alive(state.engine) and not host.processes(state)
    assert not anew or host.state().state == "ready"


def test_a_service_whose_lock_alone_is_removed_goes_on(host: Host) -> None:
    """Somebody takes it for a stale one."""
    folder = host.start_spec({}, stop_grace_s=0.2)
    first = host.until("ready", lambda state: state.state == "ready").supervisor
    assert first is not None
    folder.lock.unlink()
    for _ in range(8):
        send_signal(first, signal.SIGCHLD)  # so that it looks at once
        time.sleep(0.1)
    assert is_alive(first) and host.state().state == "ready"
    assert host.stop()["services"] == [{"name": "cpu", "changed": True, "state": "stopped"}]
    assert not is_alive(first)


@pytest.mark.parametrize("budget", [7, 8])
def test_a_launch_right_after_a_stop_that_was_interrupted(host: Host, budget: int) -> None:
    """The engine still finishes what it serves."""
    host.start_spec({"STAND_IN_STUBBORN": "1"}, algorithm="ddtree", budget=7, stop_grace_s=2.0)
    first = host.until("ready", lambda state: state.state == "ready").supervisor
    assert first is not None
    send_signal(first, signal.SIGTERM)
    host.until("stopping", lambda state: state.state == "stopping")
    (service,) = host.launch(budget=budget)["services"]
    assert (service["state"], service["changed"], service["budget"]) == ("ready", True, str(budget))
    assert not is_alive(first)


@pytest.mark.parametrize("gone", ["model", "releases/stand-in-1/bin/python"])
def test_a_restart_that_cannot_work_stops_nothing(host: Host, gone: str) -> None:
    host.launch()
    engine = host.state().engine
    (host.root / gone).rename(host.root / "away")
    with pytest.raises(InputError) as caught:
        op_restart({"root": str(host.root)}, silent)
    assert caught.value.message.startswith("cpu: ")
    assert is_alive(engine) and host.state().state == "ready"


def test_a_driver_that_fails_for_a_while_after_a_crash(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = nvidia_smi_double.install(tmp_path / "bin", "one")
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    uuid = nvidia_smi_double.SCENARIOS["one"]["cards"][0]["uuid"]
    host.start_spec({}, gpu_index=0, gpu_uuid=uuid, restart_delay_s=0.05, max_restarts=9)
    first = host.until("ready", lambda state: state.state == "ready").engine
    nvidia_smi_double.install(tmp_path / "other", "driver-failure").replace(tool)
    assert first is not None
    send_signal(first, signal.SIGKILL)
    state = host.until("restarting", lambda state: state.restarts >= 2)
    assert "is not there" in state.phase and "NVIDIA-SMI has failed" in state.phase
    nvidia_smi_double.install(tmp_path / "other", "one").replace(tool)
    host.until("ready again", lambda state: state.state == "ready" and state.engine != first)


def test_a_restart_without_its_gpu_stops_nothing(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as after an update of the driver, until it is loaded anew."""
    tool = nvidia_smi_double.install(tmp_path / "bin", "one")
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    uuid = nvidia_smi_double.SCENARIOS["one"]["cards"][0]["uuid"]
    host.start_spec({}, gpu_index=0, gpu_uuid=uuid)
    engine = host.until("ready", lambda state: state.state == "ready").engine
    nvidia_smi_double.install(tmp_path / "bin", "mismatch")
    with pytest.raises(InputError) as caught:
        op_restart({"root": str(host.root)}, silent)
    assert caught.value.id == "gpu-gone" and "mismatch" in str(caught.value.hint)
    assert is_alive(engine) and host.state().state == "ready"


@pytest.mark.parametrize("by", ["a stranger", "a service of ours"])
def test_a_restart_whose_ports_were_taken_meanwhile(host: Host, by: str) -> None:
    (first,) = host.launch()["services"]
    host.stop()
    root = {"root": str(host.root), "services": ["cpu", "cpu"]}
    with contextlib.ExitStack() as stack:
        if by == "a stranger":
            server = stack.enter_context(socket.socket())
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", first["port"]))
            server.listen()
        else:
            other = host.folder("gpu1")
            other.write(dataclasses.replace(host.spec({}), name="gpu1", port=first["port"]), {})
            write_state(other, ServiceState("ready", supervisor=identify(os.getpid())))
        (again,) = op_restart({**root, "ports": PORTS}, silent)["services"]
        spec = host.folder().spec()
        if by != "a stranger":
            shutil.rmtree(other.path)
    assert again["state"] == "ready" and again["port"] != first["port"]
    assert spec is not None and spec.port == again["port"]
    assert host.log().count("stand-in engine: ") == 2  # named twice, started once


def test_a_restart_beside_a_service_on_the_same_gpu(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cards have changed their order since."""
    monkeypatch.setattr(launch, "_check_gpus", lambda specs: None)
    spec = dataclasses.replace(host.spec({}), gpu_uuid="GPU-1")
    for name, index in (("gpu0", 0), ("gpu1", 1)):
        host.folder(name).write(dataclasses.replace(spec, name=name, gpu_index=index), {})
    for services in (None, ["gpu0", "gpu1"]):
        with pytest.raises(InputError) as caught:
            op_restart({"root": str(host.root), "services": services}, silent)
        assert caught.value.id == "service-running"


def test_a_restart_of_what_cannot_be_stopped_does_not_keep_the_others(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.launch()
    first = host.state().engine
    stubborn = dataclasses.replace(host.spec({}), name="gpu1")
    host.folder("gpu1").write(stubborn, {})
    seen: list[str] = []

    def stop(folder: ServiceFolder, progress: ProgressSink) -> bool:
        seen.append(host.state().state)
        if folder.name == "gpu1":
            raise StepError("processes-left", "gpu1: processes 1 do not end")
        return stop_service(folder, progress)

    monkeypatch.setattr(launch, "stop_service", stop)
    with pytest.raises(StepError) as caught:
        op_restart({"root": str(host.root), "ports": PORTS}, silent)
    assert (caught.value.id, caught.value.message) == ("processes-left", "gpu1: processes 1 do not end; ready: cpu")
    assert seen[1] in ("starting", "ready")  # the first did not wait for the second's end
    assert host.state().state == "ready" and host.state().engine != first
    assert not host.folder("gpu1").state_file.exists()


def test_a_restart_leaves_a_service_that_runs_its_ports(host: Host) -> None:
    """It has those that a dead one, which comes first, had before."""
    (first,) = host.launch()["services"]
    spec = host.folder().spec()
    assert spec is not None
    host.folder("a").write(dataclasses.replace(spec, name="a"), {})
    write_state(host.folder("a"), ServiceState("ready"))
    dead, running = op_restart({"root": str(host.root), "ports": PORTS}, silent)["services"]
    assert (dead["state"], running["state"], running["port"]) == ("ready", "ready", first["port"])
    assert dead["port"] != first["port"]


def test_one_supervisor_that_does_not_start_is_told_with_the_others(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, spec = host.folder(), host.spec({})
    broken = dataclasses.replace(spec, name="a", port=spec.nccl_port)
    for one in (spec, broken):
        host.folder(one.name).write(one, {})
    host.folder("a").log.mkdir()
    monkeypatch.setattr("ddtree_deploy.serve.manager._GONE_S", 1.0)
    targets = [launch._Target(host.folder(one.name), one, one.name) for one in (broken, spec)]
    failures = launch._start(targets)
    with pytest.raises(StepError) as caught:
        launch._wait_for(targets, True, silent, failures)
    assert caught.value.id == "supervisor-failed"
    assert caught.value.message.endswith("; ready: cpu")
    assert folder.is_kept()


def test_services_do_not_depend_on_who_launched_them(host: Host) -> None:
    """The launching process is killed while it waits; the service comes up all the same, and holds no pipe of it."""
    code = (
        "import json, sys; from ddtree_deploy.serve.operations import op_launch;"
        "op_launch(json.loads(sys.argv[1]), lambda progress: print(progress.phase, flush=True))"
    )
    params = json.dumps(host.params(environment={"STAND_IN_DELAY": "0.5"}))
    caller = subprocess.Popen(
        [sys.executable, "-c", code, params], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert caller.stdout is not None
    assert b"launch cpu" in caller.stdout.readline()
    os.killpg(caller.pid, signal.SIGKILL)
    caller.communicate(timeout=60)  # ends only when nobody holds the pipes any more
    state = host.until("ready", lambda state: state.state == "ready")
    assert state.supervisor is not None
    assert os.getsid(state.supervisor.pid) != caller.pid


def test_which_log(host: Host) -> None:
    with pytest.raises(InputError) as caught:
        op_logs({"root": str(host.root)}, silent)
    assert caught.value.id == "no-services"
    host.start_spec({})
    for params, id in (({"service": "gpu7"}, "no-such-service"), ({"lines": -1}, "bad-lines")):
        with pytest.raises(InputError) as caught:
            op_logs({"root": str(host.root), **params}, silent)
        assert caught.value.id == id


def test_a_second_supervisor_gives_way(host: Host) -> None:
    folder = host.start_spec({})
    state = host.until("ready", lambda state: state.state == "ready")
    second = subprocess.run(
        [sys.executable, "-m", "ddtree_deploy.agent.main", "supervise", str(folder.path), "other"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "another supervisor" in second.stderr
    assert host.state().supervisor == state.supervisor


def test_launch_needs_its_lock(host: Host) -> None:
    from ddtree_deploy.release.lock import Lock

    with Lock(host.root / "services" / ".lock", "a test"), pytest.raises(DeployError) as caught:
        host.launch()
    assert caught.value.exit_code == 6


def test_the_service_answers(host: Host) -> None:
    (service,) = host.launch()["services"]
    with contextlib.closing(urllib.request.urlopen(f"http://127.0.0.1:{service['port']}/server_info")) as answer:
        assert answer.status == 200


def test_the_agents_archive_may_go_while_the_service_lives(host: Host, tmp_path: Path) -> None:
    """Launched by the zipapp, which is removed; the supervisor restarts the engine and stops all the same."""
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(build_bundle().data)
    agent = subprocess.Popen([sys.executable, "-I", "-S", str(archive)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert agent.stdin is not None and agent.stdout is not None
    request = {"id": 1, "op": "service.launch", "params": host.params()}
    agent.stdin.write(json.dumps(request).encode() + b"\n")
    agent.stdin.flush()
    answer: dict[str, Any] = {}
    while "result" not in answer and "error" not in answer:
        answer = json.loads(agent.stdout.readline())
    agent.stdin.close()
    agent.stdout.read()
    agent.wait()
    assert answer["result"]["services"][0]["state"] == "ready"
    archive.unlink()
    first = host.state().engine
    assert first is not None
    send_signal(first, signal.SIGKILL)
    host.until("ready again", lambda state: state.state == "ready" and state.engine != first)
    assert host.stop()["changed"]
    assert host.state().state == "stopped"


def test_not_waiting(host: Host) -> None:
    (service,) = host.launch(environment={"STAND_IN_DELAY": "600"}, wait=False)["services"]
    assert service["state"] == "starting"
    again = host.launch(environment={"STAND_IN_DELAY": "600"}, wait=False)
    assert again["changed"] is False


def test_a_launch_clears_what_a_dead_supervisor_left(host: Host, tmp_path: Path) -> None:
    note = tmp_path / "orphan"
    environment = {"STAND_IN_ORPHAN": str(note)}
    host.start_spec(environment)
    state = host.until("ready", lambda state: state.state == "ready")
    marked = subprocess.Popen(  # stands for an engine's process that outlived the supervisor
        [sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, "DDTREE_SERVICE": state.marker}
    )
    try:
        assert state.supervisor is not None
        send_signal(state.supervisor, signal.SIGKILL)
        host.until("dead", lambda state: state.state == "dead")
        host.launch()
        assert marked.wait(timeout=60) == -signal.SIGKILL
    finally:
        marked.kill()
        marked.wait()
        os.kill(int(note.read_text()), signal.SIGKILL)  # escaped on purpose, and nobody was left to know it
