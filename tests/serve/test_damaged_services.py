"""Services whose files are of another version, or damaged: named, and in nobody else's way."""

from __future__ import annotations

import dataclasses
import io
import shutil

import pytest
from rich.console import Console
from served_host import Host

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.serve.operations import list_services, op_logs, op_restart, op_status
from ddtree_deploy.serve.report import render


def test_files_of_another_version_are_an_error_that_says_so(host: Host) -> None:
    folder = host.folder()
    folder.path.mkdir(parents=True)
    folder.spec_file.write_text('{"from": "the future"}')
    assert [info.state for info in list_services(host.root)] == ["unknown"]
    shown = host.status()
    assert shown["state"] == "unknown"
    assert str(folder.path) in shown["detail"]
    folder.spec_file.unlink()
    assert list_services(host.root) == []


@pytest.mark.parametrize("damage", ["spec", "state", "wrong state"])
def test_a_damaged_service_does_not_hinder_the_others(host: Host, damage: str) -> None:
    host.launch()
    damaged = host.folder("a")
    damaged.path.mkdir()
    damaged.spec_file.write_text("{" if damage == "spec" else host.folder().spec_file.read_text())
    damaged.state_file.write_text({"spec": "{}", "state": "[", "wrong state": '{"state": "sleeping"}'}[damage])
    root = {"root": str(host.root)}
    for services in (op_status(root, silent)["services"], op_restart(root, silent)["services"]):
        assert {service["name"]: service["state"] for service in services} == {"a": "unknown", "cpu": "ready"}
        console = Console(file=io.StringIO(), width=200)
        render(console, services)
        assert str(damaged.path) in console.file.getvalue()  # type: ignore[attr-defined]
    stopped = {service["name"]: service for service in host.stop()["services"]}
    assert (stopped["cpu"]["changed"], stopped["a"]["state"]) == (True, "unknown")
    assert str(damaged.path) in stopped["a"]["detail"]
    assert not host.processes()


@pytest.mark.parametrize("damage", ["spec.json", "state.json"])
def test_a_launch_beside_a_damaged_service(host: Host, damage: str) -> None:
    folder = host.folder("gpu1")
    folder.write(dataclasses.replace(host.spec({}), name="gpu1"), {})
    (folder.path / damage).write_text("{")
    services = {service["name"]: service for service in host.launch()["services"]}
    assert (services["cpu"]["state"], services["gpu1"]["state"]) == ("ready", "unknown")
    assert (
        f"{folder.path}/{damage}" in services["gpu1"]["detail"]
        and f"remove {folder.path}" in services["gpu1"]["detail"]
    )
    host.stop()
    (host.folder().path / damage).write_text("{")
    for replace in (False, True):
        with pytest.raises(InputError) as caught:
            host.launch(replace=replace)
        assert caught.value.id == "service-damaged"
        assert caught.value.where == f"{host.folder().path}/{damage}"
        assert f"remove {host.folder().path}" in str(caught.value.hint)


def test_a_copy_of_a_service_is_none(host: Host) -> None:
    """As a backup of its folder: its state and its processes are those of the service itself."""
    host.launch()
    copy = host.folder("cpu.bak")
    shutil.copytree(host.folder().path, copy.path)
    assert host.launch()["changed"] is False
    restarted = {service["name"]: service for service in op_restart({"root": str(host.root)}, silent)["services"]}
    assert (restarted["cpu"]["state"], restarted["cpu.bak"]["state"]) == ("ready", "unknown")
    assert "a copy of service cpu" in restarted["cpu.bak"]["detail"] and "move it" in restarted["cpu.bak"]["detail"]


def test_the_log_of_a_damaged_service(host: Host) -> None:
    folder = host.folder()
    folder.write(host.spec({}), {})
    folder.log.write_text("what happened\n")
    folder.state_file.write_text("{")
    shown = op_logs({"root": str(host.root)}, silent)
    assert (shown["lines"], shown["state"]) == (["what happened"], "unknown")


@pytest.mark.parametrize("text", ["{", "[]", "\xff"])
def test_damaged_secrets(host: Host, text: str) -> None:
    """What the service is can be told; that it is asked, or started with them, cannot be."""
    host.launch(api_key="a-key")
    secrets = host.folder().secrets_file
    secrets.write_bytes(text.encode("latin-1"))
    status = host.status()
    assert status["state"] == "ready" and str(secrets) in status["detail"] and "--replace" in status["detail"]
    (restarted,) = op_restart({"root": str(host.root)}, silent)["services"]
    assert restarted["state"] == "unknown" and host.state().state == "ready"
    with pytest.raises(InputError) as caught:
        host.launch(api_key="a-key")
    assert (caught.value.id, caught.value.where) == ("bad-document", str(secrets))
    host.launch(api_key="a-key", replace=True)
    assert host.status()["probe"]["ok"]
    secrets.write_bytes(text.encode("latin-1"))
    assert host.stop()["services"] == [{"name": "cpu", "changed": True, "state": "stopped"}]
