"""From one real agent to another by way of this process: the stream, and every way in which it can break."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import venvs
from donor_steps import PACKAGES, inventory
from hosts.sshd import free_port

from ddtree_deploy.agent.protocol import Progress, silent
from ddtree_deploy.donor.pull import op_pull
from ddtree_deploy.donor.transfer import Way, action_to_bring_for, bring, way_to
from ddtree_deploy.errors import StepError
from ddtree_deploy.inventory.settings import Connection, HostSettings
from ddtree_deploy.plan.model import Action, Plan
from ddtree_deploy.transport import ConnectionSettings, connect
from ddtree_deploy.transport.session import AgentSession

LOCAL = ConnectionSettings("local")


@pytest.fixture
def big(donor: Path) -> Path:
    """A donor with a file that does not fit into the pipes between the processes."""
    path = donor / venvs.SITE / "native" / "lib.so"
    path.unlink()
    path.write_bytes(os.urandom(24 << 20))
    (donor / venvs.SITE / "native-3.0.dist-info" / "RECORD").unlink()
    return donor


def overlay(donor: Path) -> Action:
    install = [(name, version, []) for name, version in PACKAGES.items()]
    return venvs.overlay_action(install, [], {"kind": "donor", "location": str(donor), "host": "elsewhere"})


def pid(session: AgentSession) -> int:
    return session._stream._process.pid  # type: ignore[attr-defined]


class Watch:
    """A progress sink that remembers what was told."""

    def __init__(self) -> None:
        self.bytes = 0
        self.seen: set[str] = set()

    def __call__(self, progress: Progress) -> None:
        self.seen.add(progress.phase)
        if progress.phase == "transfer":
            self.bytes = max(self.bytes, progress.done_bytes)


class Breaking:
    """A donor's session; ``action`` happens once ``after`` bytes of its stream were passed on."""

    def __init__(self, session: AgentSession, after: int, action: Callable[[], None]) -> None:
        self.call = session.call
        self._session, self._after, self._action = session, after, action
        self._passed = 0

    def stream(self, op: str, params: Any, on_data: Callable[[bytes], None], on_progress: Any = None) -> Any:
        def pass_on(data: bytes) -> None:
            on_data(data)
            before, self._passed = self._passed, self._passed + len(data)
            if before <= self._after < self._passed:
                self._action()

        return self._session.stream(op, params, pass_on, on_progress)


def run(
    donor: Path,
    root: Path,
    base: Path,
    watch: Watch | None = None,
    way: Way | None = None,
    action: Action | None = None,
    breaking: Callable[[AgentSession, AgentSession], Any] = lambda giver, taker: giver,
) -> Any:
    with connect(LOCAL) as transport, transport.agent() as giver, transport.agent() as taker:
        session = breaking(giver, taker)
        return bring(action or overlay(donor), str(root), str(base), session, taker, way, watch or Watch())


def test_from_agent_to_agent(big: Path, root: Path, base: Path) -> None:
    watch = Watch()
    brought = run(big, root, base, watch)
    tree = root / "cache" / "staging" / brought.staging
    assert venvs.sha256(tree / venvs.SITE / "native" / "lib.so") == venvs.sha256(big / venvs.SITE / "native" / "lib.so")
    assert {"transfer", "assemble"} <= watch.seen and watch.bytes > 24 << 20
    assert [note["id"] for note in brought.notes] == ["no-record", "donor-brought"]
    assert "came by way of this machine" in brought.notes[-1]["message"]
    assert brought.paths[0] == str(big)
    again = Watch()
    assert run(big, root, base, again).staging == brought.staging
    assert again.bytes == 0


@pytest.mark.parametrize("whose", ["donor", "target"])
def test_a_killed_agent_and_the_rest_afterwards(big: Path, root: Path, base: Path, whose: str) -> None:
    def breaking(giver: AgentSession, taker: AgentSession) -> Breaking:
        victim = giver if whose == "donor" else taker
        return Breaking(giver, 8 << 20, lambda: os.kill(pid(victim), signal.SIGKILL))

    with pytest.raises(StepError) as caught:
        run(big, root, base, breaking=breaking)
    assert caught.value.id == "agent-died"
    assert not (root / "cache" / "staging").exists()
    (partial,) = (root / "cache" / "donor").glob("*.partial")
    arrived = partial.stat().st_size
    assert arrived > 4 << 20
    rest = Watch()
    brought = run(big, root, base, rest)
    assert 0 < rest.bytes < (25 << 20) - arrived
    tree = root / "cache" / "staging" / brought.staging
    assert venvs.sha256(tree / venvs.SITE / "native" / "lib.so") == venvs.sha256(big / venvs.SITE / "native" / "lib.so")


def test_a_target_that_cannot_go_on_says_why(big: Path, root: Path, base: Path) -> None:
    """The error comes while the donor is still sending: nobody waits for the end, or for each other."""

    def spoil() -> None:
        for path in (root / "cache" / "donor").glob("*.partial"):
            path.unlink()
        (root / "cache" / "donor").rename(root / "cache" / "away")
        (root / "cache" / "donor").write_text("a file in the way")

    small = [f"f{number}.txt" for number in range(400)]
    wheel = venvs.make_wheel(root.parent / "w2", "zmany", "1", {f"zmany/{name}": name * 2000 for name in small})
    venvs.install(big, wheel)
    install = [("native", "3.0", []), ("zmany", "1", [])]
    action = venvs.overlay_action(install, [], {"kind": "donor", "location": str(big), "host": "elsewhere"})
    with pytest.raises(StepError) as caught:
        run(big, root, base, action=action, breaking=lambda giver, taker: Breaking(giver, 8 << 20, spoil))
    assert caught.value.id in ("write-failed", "root-not-writable")
    assert "cache/donor" in caught.value.message


def test_what_the_donor_says_is_what_is_raised(donor: Path, root: Path, base: Path) -> None:
    (donor / venvs.SITE / "some_lib" / "new.py").unlink()
    with pytest.raises(StepError) as caught:
        run(donor, root, base)
    assert caught.value.id == "source-incomplete"


def test_without_a_direct_way_it_goes_by_us(donor: Path, root: Path, base: Path) -> None:
    brought = run(donor, root, base, way=Way("127.0.0.1", 1, "nobody"))
    ids = [note["id"] for note in brought.notes]
    assert ids == ["not-directly", "donor-brought"]
    assert "does not reach nobody@127.0.0.1 by ssh" in brought.notes[0]["message"]


def test_a_donor_that_the_target_does_not_reach(donor: Path, root: Path, base: Path) -> None:
    params = {
        "root": str(root),
        "base": str(base),
        "manifest": inventory(donor)["manifest"],
        "route": {"address": "127.0.0.1", "port": free_port(), "user": "nobody"},
        "donor": {"python": sys.executable, "archive": "/nonexistent/agent.pyz", "boot_id": "b"},
    }
    with pytest.raises(StepError, match=r"does not reach nobody@127\.0\.0\.1 by ssh: .*refused") as caught:
        op_pull(params, silent)
    assert (caught.value.id, caught.value.where) == ("donor-unreachable", "nobody@127.0.0.1")


def test_the_stream_of_a_session_ends_with_it(donor: Path) -> None:
    with connect(LOCAL) as transport, transport.agent() as agent:
        with pytest.raises(StepError) as caught:
            agent.stream("donor.send", {"venv": str(donor), "files": [[0, "../x", 1, 0]]}, lambda data: None)
        assert caught.value.id == "bad-manifest"
        with pytest.raises(StepError) as caught:
            agent.call("hello")
        assert caught.value.id == "agent-closed"


def test_which_plans_bring_something() -> None:
    plan = Plan("h", "/r", "/b", "p", "id", "d")
    assert action_to_bring_for(plan) is None
    for source, found in (
        ({"kind": "donor", "location": "/d", "host": "elsewhere"}, True),
        ({"kind": "donor", "location": "/d", "host": None}, False),
        ({"kind": "index"}, False),
    ):
        action = venvs.overlay_action([("a", "1", [])], [], source)
        assert (action_to_bring_for(Plan("h", "/r", "/b", "p", "id", "d", actions=[action])) is action) == found
    nothing = venvs.overlay_action([], ["a"], {"kind": "donor", "location": "/d", "host": "elsewhere"})
    assert action_to_bring_for(Plan("h", "/r", "/b", "p", "id", "d", actions=[nothing])) is None


def test_a_direct_way_is_between_hosts_over_ssh() -> None:
    def host(kind: str, **more: Any) -> HostSettings:
        return HostSettings("h", (), Connection(kind=kind, address="10.0.0.1", **more), Path("/"))

    assert way_to(host("local"), host("ssh")) is None
    assert way_to(host("ssh"), host("local")) is None
    assert way_to(host("ssh", port=2222, user="ada"), host("ssh")) == Way("10.0.0.1", 2222, "ada")
