from __future__ import annotations

import threading

import pytest

from ddtree_deploy.errors import StepError, UnreachableError
from ddtree_deploy.fleet import HostResult, run_fleet, worst


def test_worst_exit_code() -> None:
    assert worst([]) == 0
    assert worst([0, 0]) == 0
    assert worst([0, 2, 0]) == 2
    assert worst([2, 1]) == 1
    assert worst([3, 4]) == 4
    assert worst([6, 3]) == 6
    assert worst([4, 5, 6, 3, 2, 1, 0]) == 5
    assert worst([5, 130]) == 130


def test_results_are_in_the_hosts_order_and_errors_stay_with_their_host() -> None:
    def work(name: str) -> HostResult:
        if name == "b":
            raise UnreachableError("connection-refused", "no")
        return HostResult(name)

    results = run_fleet(["a", "b", "c"], work)
    assert [(result.host, result.exit_code) for result in results] == [("a", 0), ("b", 4), ("c", 0)]
    assert results[1].document()["error"]["id"] == "connection-refused"


def test_the_canary_runs_alone_and_first() -> None:
    running: set[str] = set()
    together: list[set[str]] = []
    lock = threading.Lock()
    others = threading.Barrier(2)

    def work(name: str) -> HostResult:
        with lock:
            running.add(name)
            together.append(set(running))
        if name != "a":
            others.wait(10)  # b and c are there at the same time
        with lock:
            running.discard(name)
        return HostResult(name)

    assert [result.exit_code for result in run_fleet(["a", "b", "c"], work, canary=True)] == [0, 0, 0]
    assert together[0] == {"a"}
    assert all("a" not in names for names in together[1:])


def test_a_failed_canary_keeps_the_others_untouched() -> None:
    touched: list[str] = []

    def work(name: str) -> HostResult:
        touched.append(name)
        raise StepError("smoke-failed", "no")

    results = run_fleet(["a", "b"], work, canary=True)
    assert touched == ["a"]
    assert [result.exit_code for result in results] == [5, 5]
    assert results[1].skipped and results[1].error is not None and results[1].error.id == "canary-failed"


def test_without_a_canary_every_host_is_tried() -> None:
    touched: list[str] = []

    def work(name: str) -> HostResult:
        touched.append(name)
        return HostResult(name, 2)

    run_fleet(["a", "b"], work)
    assert sorted(touched) == ["a", "b"]


def test_a_bug_in_a_thread_reaches_the_caller() -> None:
    def work(name: str) -> HostResult:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_fleet(["a", "b"], work)


def test_an_interrupt_ends_what_the_threads_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()
    started = threading.Event()
    join = threading.Thread.join

    def interrupted(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name.startswith("host-") and not closed.is_set():
            started.wait(10)
            raise KeyboardInterrupt
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", interrupted)

    def work(name: str) -> HostResult:
        started.set()
        assert closed.wait(10)
        return HostResult(name)

    with pytest.raises(KeyboardInterrupt):
        run_fleet(["a", "b"], work, on_interrupt=closed.set)
    assert closed.is_set()
