from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from rich.console import Console

from ddtree_deploy.serve.report import render, uptime
from ddtree_deploy.serve.spec import ServiceSpec
from ddtree_deploy.serve.state import ServiceState, service_info

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=timezone.utc)


def service(**changes: Any) -> dict[str, Any]:
    ready = {
        "name": "gpu0",
        "state": "ready",
        "pid": 41,
        "port": 30000,
        "listen": "127.0.0.1",
        "gpu_index": 0,
        "gpu_uuid": "GPU-a",
        "algorithm": "ddtree",
        "budget": "31",
        "model": "/m/target",
        "release": "r1",
        "manager": "supervisor",
        "started": None,
        "detail": None,
        "probe": {"ok": True, "at": "", "seconds": 0.25, "text": "x", "error": None},
        "tokens_per_step": 3.456,
    }
    return {**ready, **changes}


def text(*services: dict[str, Any]) -> str:
    buffer = io.StringIO()
    render(Console(file=buffer, width=250), services, host="h")
    return buffer.getvalue()


def test_a_ready_service() -> None:
    shown = text(service())
    for expected in ("h: services", "gpu0", "ready", "127.0.0.1:30000", "0 GPU-a", "ddtree 31", "/m/target", "r1"):
        assert expected in shown
    assert "0.25 s, 3.46 tokens/step" in shown


def test_a_failed_service_shows_its_cause_and_its_log() -> None:
    failed = service(
        state="failed", pid=None, cause="ValueError: [no]", last_lines=["line [one]"], detail="engine-refused: long"
    )
    shown = text(failed)
    assert "gpu0: ValueError: [no]" in shown
    assert "line [one]" in shown


def test_probe_that_failed_and_none() -> None:
    probe = {"ok": False, "at": "", "seconds": 10.0, "text": None, "error": "timed out"}
    assert "failed: timed out" in text(service(probe=probe))
    assert "CPU" in text(service(gpu_index=None, gpu_uuid=None, probe=None, budget=None, detail="loading"))
    assert "no services" in text()


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0, "0s"), (59, "59s"), (61, "1m 1s"), (3600, "1h"), (90061, "1d 1h"), (-5, "0s")]
)
def test_uptime(seconds: int, expected: str) -> None:
    started = (NOW - timedelta(seconds=seconds)).isoformat()
    assert uptime(started, NOW) == expected
    assert uptime(None) == ""


def test_processes_that_cannot_be_ended_are_named() -> None:
    spec = ServiceSpec("cpu", "/r", "r-1", "/m", "none", 30000, 30001)
    assert service_info(spec, ServiceState("stopped")).detail is None
    stuck = ServiceState("stopped", left_over=[11, 12])
    assert service_info(spec, stuck).detail == "processes that SIGKILL did not end: 11, 12"
