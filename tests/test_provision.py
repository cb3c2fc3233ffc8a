"""The controller's flow against a recorded host: what is asked, sent and applied, and how it can end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddtree_deploy.codec import to_dict
from ddtree_deploy.errors import DeployError, InputError, LockedError, StepError
from ddtree_deploy.facts.model import Disk, HostFacts, ReleaseInfo, Venv
from ddtree_deploy.inventory.load import load_inventory
from ddtree_deploy.inventory.settings import HostSettings
from ddtree_deploy.plan.gather import Choices, Prepared, prepare
from ddtree_deploy.plan.mix import with_findings
from ddtree_deploy.plan.model import Plan, Problem
from ddtree_deploy.provision import find_blobs, plan_error, planned, provision_host
from ddtree_deploy.sessions import Connector, Session

INVENTORY = """\
defaults:
  connection: local
  root: /srv/ddtree
  base: /srv/venv
  profile: sglang-0.5.11-cpu
hosts:
  target: {environment: {HF_HOME: /data}}
  other: {base: /srv/donor, root: /srv/other}
"""


def facts_for(base: str, root: str, **changes: Any) -> HostFacts:
    site = f"{base}/lib/python3.11/site-packages"
    venv = Venv(base, True, "3.11.2", base, site_packages=site, fingerprint="f1", files=10, bytes=100)
    disk = Disk("/srv", 1, "ext4", 10**12, 10**12)
    facts = HostFacts("h", "Linux", "x86_64", "6", "2.36", "3.11.2", None, False, "root", root)
    return replace(facts, base=venv, root_disk=disk, base_disk=disk, **changes)


class RecordedHost:
    """A test double of hosts and their agents: answers from a table, and remembers what it was asked."""

    def __init__(self, **answers: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self.answers = answers
        self.calls: list[tuple[str, str, dict[str, Any]]] = []
        self.sent: list[Path] = []

    @contextmanager
    def open(self, host: HostSettings) -> Iterator[Session]:
        recorder = self

        class Recorded:
            def call(self, op: str, params: dict[str, Any], on_progress: Any = None) -> dict[str, Any]:
                recorder.calls.append((host.name, op, params))
                return recorder.answers[op.replace(".", "_")](params)

            def put_blobs(self, paths: Iterable[Path], root: str, on_progress: Any = None) -> dict[str, str]:
                recorder.sent += list(paths)
                return {hashlib.sha256(p.read_bytes()).hexdigest(): f"{root}/cache/{p.name}" for p in recorder.sent}

        yield Recorded()


def answer_facts(params: dict[str, Any]) -> dict[str, Any]:
    return to_dict(facts_for(params["base"], params["root"]))


def applied(params: dict[str, Any]) -> dict[str, Any]:
    return {"release_id": params["plan"]["release_id"], "changed": True, "notes": []}


@pytest.fixture
def target(tmp_path: Path) -> Prepared:
    path = tmp_path / "hosts.yaml"
    path.write_text(INVENTORY, "utf-8")
    return prepare(load_inventory(path).host("target"), Choices())


def test_facts_are_asked_for_what_the_plan_needs(target: Prepared) -> None:
    host = RecordedHost(facts=answer_facts)
    result = provision_host(target, Connector(open_session=host.open), None, dry_run=True)
    assert result.exit_code == 2
    assert [(name, op) for name, op, _ in host.calls] == [("target", "facts")]
    params = host.calls[0][2]
    assert (params["root"], params["base"], params["engine"]) == ("/srv/ddtree", "/srv/venv", "sglang")
    assert "sglang/srt/server_args.py" in params["patch_files"]
    assert host.sent == []


def test_the_plan_that_is_shown_is_the_plan_that_is_applied(target: Prepared) -> None:
    host = RecordedHost(facts=answer_facts, plan_apply=applied)
    shown: list[Plan] = []
    result = provision_host(target, Connector(open_session=host.open), None, on_plan=shown.append)
    assert result.exit_code == 0 and result.data["changed"] is True
    _, op, params = host.calls[-1]
    assert op == "plan.apply"
    assert params["plan"] == to_dict(shown[0]) == result.data["plan"]
    wanted = {blob["sha256"] for action in shown[0].actions for blob in action.params.get("blobs", [])}
    assert wanted == set(params["blobs"])
    assert {"libcuda.so.1", "uv"} <= {path.name for path in host.sent}


def test_problems_stop_before_anything_is_sent(target: Prepared) -> None:
    def answer(params: dict[str, Any]) -> dict[str, Any]:
        return to_dict(replace(facts_for("/srv/venv", "/srv/ddtree"), glibc="2.17", machine="riscv64"))

    host = RecordedHost(facts=answer)
    shown: list[Plan] = []
    result = provision_host(target, Connector(open_session=host.open), None, on_plan=shown.append)
    assert result.exit_code == 3
    assert len(shown) == 1 and host.sent == [] and len(host.calls) == 1
    assert result.error is not None and result.error.id == "machine-unsupported"
    assert "(and 1 more)" in result.error.message
    assert [problem["id"] for problem in result.error.details["problems"]] == ["machine-unsupported", "glibc-too-old"]


def test_nothing_to_do(target: Prepared) -> None:
    first = RecordedHost(facts=answer_facts)
    plan: Plan = provision_host(target, Connector(open_session=first.open), None, dry_run=True).value

    def answer(params: dict[str, Any]) -> dict[str, Any]:
        release = ReleaseInfo(plan.release_id, "/srv", plan.profile, "now", True, True, plan.inputs_digest)
        return to_dict(facts_for("/srv/venv", "/srv/ddtree", releases=[release], current=plan.release_id))

    host = RecordedHost(facts=answer)
    result = provision_host(target, Connector(open_session=host.open), None)
    assert (result.exit_code, result.data["changed"]) == (0, False)
    assert [op for _, op, _ in host.calls] == ["facts"]


@pytest.mark.parametrize(("error", "code"), [(StepError("smoke-failed", "x"), 5), (LockedError("locked", "x"), 6)])
def test_a_failed_apply_keeps_the_plan_in_the_document(target: Prepared, error: DeployError, code: int) -> None:
    def fail(params: dict[str, Any]) -> dict[str, Any]:
        raise error

    host = RecordedHost(facts=answer_facts, plan_apply=fail)
    result = provision_host(target, Connector(open_session=host.open), None)
    assert result.exit_code == code and result.error is error
    assert result.document()["plan"]["actions"] and result.document()["error"]["id"] == error.id


def test_a_donor_on_another_host_is_asked_too(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(INVENTORY, "utf-8")
    inventory = load_inventory(path)
    prepared = prepare(inventory.host("target"), Choices(source="donor:other"), inventory=inventory)
    host = RecordedHost(facts=answer_facts)
    result = provision_host(prepared, Connector(open_session=host.open), inventory, dry_run=True)
    asked = [(name, params["base"], params["root"]) for name, _, params in host.calls]
    assert asked == [("target", "/srv/venv", "/srv/ddtree"), ("other", "/srv/donor", "/srv/other")]
    assert [problem.id for problem in result.value.errors] == ["donor-lacks"]


def test_a_donor_beside_the_base_is_asked_in_the_same_session(target: Prepared, tmp_path: Path) -> None:
    prepared = prepare(target.host, Choices(source="donor:/srv/other-venv"))
    host = RecordedHost(facts=answer_facts)
    provision_host(prepared, Connector(open_session=host.open), None, dry_run=True)
    asked = [(name, params["base"], params["root"]) for name, _, params in host.calls]
    assert asked == [("target", "/srv/venv", "/srv/ddtree"), ("target", "/srv/other-venv", "/srv/ddtree")]


def test_a_blob_that_nobody_has_is_an_error(target: Prepared) -> None:
    host = RecordedHost(facts=answer_facts)
    plan: Plan = provision_host(target, Connector(open_session=host.open), None, dry_run=True).value
    without = replace(target, profile=replace(target.profile, extra_files=[]))
    with pytest.raises(StepError, match="libcuda") as caught:
        find_blobs(without, plan)
    assert (caught.value.id, caught.value.exit_code) == ("blob-unknown", 5)


def test_plan_error_is_none_without_errors(target: Prepared) -> None:
    host = RecordedHost(facts=answer_facts)
    plan: Plan = provision_host(target, Connector(open_session=host.open), None, dry_run=True).value
    assert plan_error(plan) is None


def test_a_mix_that_would_fail_is_a_problem_found_not_bad_input() -> None:
    plan = Plan("target", "/srv/ddtree", "/srv/venv", "p", "p-1", "1")
    finding = {"id": "undefined-torch-symbol", "severity": "error", "message": "x.so lacks y", "fix": "move both"}
    result = planned(with_findings(plan, {"findings": [finding, {**finding, "message": "z.so lacks y"}]}))
    document = result.document()
    assert result.exit_code == document["exit_code"] == document["error"]["exit_code"] == 1
    assert (document["error"]["type"], document["error"]["id"]) == ("ProblemsError", "mix-would-fail")
    assert document["error"]["message"].endswith("x.so lacks y (and 1 more)")
    assert [problem["exit_code"] for problem in document["error"]["details"]["problems"]] == [1, 1]
    mixed = planned(replace(result.value, problems=[*result.value.problems, Problem("error", "no-gpu", "none")]))
    assert mixed.error is not None
    assert (mixed.exit_code, mixed.error.id, mixed.error.exit_code) == (3, "no-gpu", 3)


def test_unknown_sources_are_refused() -> None:
    from ddtree_deploy.plan.source_choice import parse_source

    assert parse_source("donor:gpu2:/opt/venv").host == "gpu2"
    assert parse_source("index:https://index.example/simple").location == "https://index.example/simple"
    assert parse_source("index:default").location is None
    assert parse_source("index").location is None
    empty = ["", "index:", "wheelhouse:", "donor:", "donor::/opt/venv", "donor:gpu2:"]  # a variable that is not set
    bad = [
        *empty,
        "wheelhouse",
        "donor:gpu2:venv",
        "indexes",
        "ftp:x",
        "index:/a/folder",
        "index:simple",
        "index:ftp://a/b",
    ]
    for text in [*bad, "index:https://ada:secret@index.example/simple"]:
        with pytest.raises(InputError) as caught:
            parse_source(text)
        assert caught.value.id == "bad-source" and caught.value.where == "--source"
        assert "secret" not in f"{caught.value.message} {caught.value.hint}"
