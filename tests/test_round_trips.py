"""What planning and provisioning ask of a real agent: facts come in one round trip."""

from __future__ import annotations

import json
import sys
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.inventory.load import load_inventory
from ddtree_deploy.inventory.settings import HostSettings
from ddtree_deploy.plan.gather import Choices, Prepared, prepare
from ddtree_deploy.provision import provision_host
from ddtree_deploy.sessions import Connector, Session
from ddtree_deploy.transport import connect
from ddtree_deploy.transport.local import LocalStream


class Counting:
    """Around the session of a real local agent: remembers the calls, and every request that goes over the wire."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.requests: list[str] = []
        write = LocalStream.write

        def counted(stream: LocalStream, data: bytes) -> None:
            if data.startswith(b'{"'):
                self.requests += [json.loads(line)["op"] for line in data.splitlines()]
            write(stream, data)

        monkeypatch.setattr(LocalStream, "write", counted)

    @contextmanager
    def open(self, host: HostSettings) -> Iterator[Session]:
        with connect(host) as transport, transport.agent() as session:
            call = session.call

            def counted(op: str, params: Mapping[str, Any], on_progress: Any = None) -> dict[str, Any]:
                self.calls.append(op)
                return call(op, params, on_progress)

            session.call = counted  # type: ignore[method-assign,assignment]
            yield session


@pytest.fixture
def prepared(tmp_path: Path, home: Path) -> Prepared:
    venv.create(tmp_path / "base", with_pip=False, symlinks=True)
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(
        f"hosts:\n  box:\n    connection: {{kind: local, python: {sys.executable}}}\n    root: {tmp_path}/root\n"
        f"    base: {tmp_path}/base\n    profile: sglang-0.5.11-cpu\n",
        "utf-8",
    )
    return prepare(load_inventory(inventory).host("box"), Choices())


def test_facts_in_one_round_trip(prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
    counting = Counting(monkeypatch)
    result = provision_host(prepared, Connector(open_session=counting.open), None, dry_run=True)
    assert result.exit_code in (2, 3)  # 3 where the machine is none for the profile: known from its facts
    assert result.data["plan"]["release_id"]
    assert counting.calls == ["facts"]
    assert [op for op in counting.requests if op != "hello"] == ["facts"]


def test_a_donor_on_the_host_is_one_more(prepared: Prepared, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    venv.create(tmp_path / "donor", with_pip=False, symlinks=True)
    with_donor = prepare(prepared.host, Choices(source=f"donor:{tmp_path}/donor"))
    counting = Counting(monkeypatch)
    provision_host(with_donor, Connector(open_session=counting.open), None, dry_run=True)
    assert counting.calls == ["facts", "facts"]
