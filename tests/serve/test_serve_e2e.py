"""The real engine under our supervisor, on the CPU, with the nano pair.

``DDTREE_ENGINE_PYTHON`` names the python of a provisioned CPU release (one without a record of ours is given what the
CPU profile says); without it the session's own release is taken.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from processes import command_line
from served_host import Host

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.serve.process import identify, is_alive, send_signal
from ddtree_deploy.verify.checks import TITLES, op_verify

PROJECT = Path(__file__).resolve().parents[2]
PAIR = PROJECT / "pairs" / "nano"
SHIMS = PROJECT / "overlays" / "files" / "cpu"
KEY = "an-api-key-of-this-test"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.engine,
    pytest.mark.timeout(600),
]


def release() -> Path:
    return Path(os.environ["DDTREE_ENGINE_PYTHON"]).parent.parent


def given(**changes: Any) -> dict[str, Any]:
    """Launch params; of the CPU profile's, what a release without a record lacks."""
    params: dict[str, Any] = {"release": str(release()), "model": str(PAIR / "target"), "draft": str(PAIR / "draft")}
    params |= {"budget": 31, "environment": {}, "launch_timeout": 300.0, "engine_arguments": []}
    if not (release() / ".ddtree" / "release.json").exists():
        params["environment"] = {"LD_LIBRARY_PATH": str(SHIMS), "PYTHONPATH": str(SHIMS), "OMP_NUM_THREADS": "1"}
        params["engine_arguments"] = ["--device", "cpu", "--attention-backend", "torch_native"]
        params["engine_arguments"] += ["--disable-overlap-schedule", "--disable-piecewise-cuda-graph"]
        params["engine_arguments"] += ["--max-total-tokens", "20000", "--sleep-on-idle"]
    params["engine_arguments"] = [*params["engine_arguments"], *changes.pop("extra", [])]
    return {**params, **changes}


def generate(port: int, key: str | None, tokens: int) -> dict[str, Any]:
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    body = json.dumps({"text": "def main():\n", "sampling_params": sampling}).encode()
    with urllib.request.urlopen(
        urllib.request.Request(f"http://127.0.0.1:{port}/generate", body, headers), timeout=120
    ) as answer:
        return json.loads(answer.read())


def scheduler(pids: list[int]) -> int:
    """The engine's scheduler, which sets its title."""
    for pid in pids:
        if b"scheduler" in command_line(pid):
            return pid
    raise AssertionError("no scheduler among the service's processes")


def test_a_service_from_launch_to_stop(host: Host) -> None:
    (service,) = host.launch(**given(api_key=KEY))["services"]
    assert (service["name"], service["state"], service["budget"]) == ("cpu", "ready", "31")
    assert service["probe"]["ok"]
    assert service["probe"]["text"]

    for _ in range(3):  # the engine averages over its last forty steps
        answer = generate(service["port"], KEY, 200)
    assert answer["meta_info"]["completion_tokens"] == 200
    assert answer["meta_info"]["spec_verify_ct"] < 200
    status = host.status()
    assert status["probe"]["ok"]
    assert status["tokens_per_step"] > 1.5

    with pytest.raises(urllib.error.HTTPError) as refused:
        generate(service["port"], None, 4)
    assert refused.value.code == 401
    assert "api_key='***'" in host.log()  # the engine prints its arguments
    assert KEY not in host.log()
    for pid in host.processes():
        assert KEY.encode() not in command_line(pid)

    # a dead scheduler ends the engine, and the supervisor brings it back
    first = host.state()
    before = [identify(pid) for pid in host.processes(first)]
    victim = identify(scheduler(host.processes(first)))
    assert victim is not None
    send_signal(victim, signal.SIGKILL)
    host.until("starting again", lambda state: state.restarts == 1, seconds=120)
    second = host.until("ready again", lambda state: state.state == "ready", seconds=240)
    assert [identity for identity in before if is_alive(identity)] == []
    assert generate(service["port"], KEY, 4)["meta_info"]["completion_tokens"] == 4

    everything = [identify(pid) for pid in host.processes(second)]
    assert len(everything) >= 3
    assert host.stop()["services"] == [{"name": "cpu", "changed": True, "state": "stopped"}]
    assert [identity for identity in everything if is_alive(identity)] == []


def test_what_the_engine_refuses(host: Host) -> None:
    with pytest.raises(InputError) as caught:
        host.launch(**given(extra=["--no-such-option", "1"]))
    assert caught.value.id == "engine-refused"
    assert "unrecognized arguments: --no-such-option" in caught.value.message
    with pytest.raises(InputError) as caught:
        host.launch(**given(extra=["--kv-cache-dtype", "fp8_e5m2"]))
    assert caught.value.id == "engine-refused"
    assert caught.value.message.startswith("cpu: ValueError: DDTREE does not support --kv-cache-dtype fp8_e5m2")
    assert host.processes() == []


def test_the_release_verifies(host: Host) -> None:
    params = {"root": str(host.root), "release": str(release()), "environment": given()["environment"]}
    report = op_verify(params, silent)
    assert {check["id"]: check["status"] for check in report["checks"]} == dict.fromkeys(TITLES, "ok")
    assert not [line for check in report["checks"] for line in check["output"] if line["kind"] == "warning"]
