"""The same work on several hosts: the first alone as a canary, then the rest in parallel. No transport, no CLI."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ddtree_deploy.errors import DeployError, ExitCode, StepError

PARALLEL = 8

# From the worst on. A dry run's "changes pending" is the mildest that is not 0.
_WORST_FIRST = (
    ExitCode.INTERRUPTED,
    ExitCode.STEP_FAILED,
    ExitCode.UNREACHABLE,
    ExitCode.LOCKED,
    ExitCode.BAD_INPUT,
    ExitCode.PROBLEMS,
    ExitCode.CHANGES,
)


@dataclass(frozen=True)
class HostResult:
    """What became of one host: ``data`` is plain JSON data, ``value`` the object behind it for rendering."""

    host: str
    exit_code: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    value: Any = None
    error: DeployError | None = None
    skipped: bool = False

    def document(self) -> dict[str, Any]:
        document: dict[str, Any] = {"host": self.host, "exit_code": self.exit_code, **self.data}
        if self.error is not None:
            document["error"] = self.error.to_dict()
        return document


def worst(codes: Sequence[int]) -> int:
    """The exit code of a run over several hosts."""
    return next((int(code) for code in _WORST_FIRST if code in codes), max(codes, default=0))


def run_fleet(
    hosts: Sequence[str],
    work: Callable[[str], HostResult],
    *,
    canary: bool = False,
    on_interrupt: Callable[[], None] = lambda: None,
) -> list[HostResult]:
    """Run ``work`` for each host and return the results in the hosts' order. A DeployError becomes that host's result.

    With ``canary`` the first host runs alone; unless it ends with exit code 0 the others are not touched.
    KeyboardInterrupt calls ``on_interrupt``, which ends what the threads wait for, and goes on to the caller.
    """
    results: dict[str, HostResult] = {}
    rest = list(hosts)
    if len(rest) == 1:
        return [_guarded(work, rest[0])]
    try:
        if canary and rest:
            first = rest.pop(0)
            _run_parallel([first], work, results)
            if results[first].exit_code != ExitCode.OK:
                results.update({name: _skipped(name, results[first]) for name in rest})
                rest = []
        _run_parallel(rest, work, results)
    except KeyboardInterrupt:
        on_interrupt()
        raise
    return [results[name] for name in hosts]


def _run_parallel(names: Sequence[str], work: Callable[[str], HostResult], results: dict[str, HostResult]) -> None:
    places = threading.Semaphore(PARALLEL)
    crashes: list[BaseException] = []

    def run(name: str) -> None:
        with places:
            try:
                results[name] = _guarded(work, name)
            except BaseException as error:  # a bug: raised again in the caller's thread
                crashes.append(error)

    # Daemons: an interrupted run must not wait for a host that does not answer.
    threads = [threading.Thread(target=run, args=(name,), name=f"host-{name}", daemon=True) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.2)
    if crashes:
        raise crashes[0]


def _guarded(work: Callable[[str], HostResult], name: str) -> HostResult:
    try:
        return work(name)
    except DeployError as error:
        return HostResult(name, int(error.exit_code), error=error)


def _skipped(name: str, canary: HostResult) -> HostResult:
    error = StepError("canary-failed", f"not started, because {canary.host} failed before it")
    return HostResult(name, canary.exit_code, error=error, skipped=True)
