"""A root with a release of the stand-in engine, and what a controller does with it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shared import worker_number
from stand_in_engine import make_release

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.serve.manager import start_service
from ddtree_deploy.serve.operations import op_launch, op_status, op_stop
from ddtree_deploy.serve.ports import allocate
from ddtree_deploy.serve.process import service_processes
from ddtree_deploy.serve.spec import ServiceFolder, ServiceSpec
from ddtree_deploy.serve.state import ServiceState, read_state

# A port that was found free is taken only when the engine listens: every worker has its own, and mostly every run.
_FIRST = 18100 + worker_number() * 100 + os.getpid() % 5 * 20
PORTS = [_FIRST, _FIRST + 19]


class Host:
    """One root; methods call the agent's operations as the controller does."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.release = make_release(root / "releases" / "stand-in-1")
        (root / "current").symlink_to("releases/stand-in-1")
        self.model = root / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")

    def params(self, **changes: Any) -> dict[str, Any]:
        given = {"root": str(self.root), "model": str(self.model), "draft": str(self.model), "budget": 7}
        return {**given, "ports": PORTS, "launch_timeout": 60.0, **changes}

    def launch(self, **changes: Any) -> dict[str, Any]:
        return op_launch(self.params(**changes), silent)

    def status(self, **changes: Any) -> dict[str, Any]:
        (service,) = op_status({"root": str(self.root), **changes}, silent)["services"]
        return service

    def stop(self) -> dict[str, Any]:
        return op_stop({"root": str(self.root)}, silent)

    def folder(self, name: str = "cpu") -> ServiceFolder:
        return ServiceFolder(self.root / "services" / name)

    def state(self, name: str = "cpu") -> ServiceState:
        state = read_state(self.folder(name))
        assert state is not None
        return state

    def processes(self, state: ServiceState | None = None) -> list[int]:
        """Of the engine, whatever their group or session; of the present one, unless ``state`` is of another."""
        state = state or self.state()
        return [process.pid for process in service_processes(state.marker, state.engine, None)]

    def log(self, name: str = "cpu") -> str:
        return self.folder(name).log.read_text()

    def spec(self, environment: dict[str, str], **changes: Any) -> ServiceSpec:
        """A service of the test's own."""
        port, nccl_port = allocate(range(PORTS[0], PORTS[1] + 1), [], 2)
        spec = ServiceSpec(
            "cpu",
            str(self.release),
            self.release.name,
            str(self.model),
            "none",
            port,
            nccl_port,
            environment=environment,
        )
        return dataclasses.replace(spec, **changes)

    def start_spec(self, environment: dict[str, str], **changes: Any) -> ServiceFolder:
        """Start a service from a spec of the test's own, without waiting."""
        folder = self.folder()
        folder.write(self.spec(environment, **changes), {})
        start_service(folder, "test")
        return folder

    def logs(self, text: str, name: str = "cpu") -> bool:
        """Whether the log has ``text``, waited for: the engine's lines pass through the supervisor, which may be ready
        before it has written them."""
        deadline = time.monotonic() + 60
        while text not in self.log(name) and time.monotonic() < deadline:
            time.sleep(0.02)
        return text in self.log(name)

    def until(self, what: str, condition: Callable[[ServiceState], bool], seconds: float = 60) -> ServiceState:
        """Wait for a state; the limit only ends a test that would hang."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            state = read_state(self.folder())
            if state is not None and condition(state):
                return state
            time.sleep(0.02)
        raise AssertionError(f"never {what}: {read_state(self.folder())}\n{self.log()}")
