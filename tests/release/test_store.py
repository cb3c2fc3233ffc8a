from __future__ import annotations

import io
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any, List

import pytest
from disks import fill
from rich.console import Console

from ddtree_deploy.agent.operations import find
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.cli.release_commands import _draw_rollback
from ddtree_deploy.errors import InputError, LockedError, StepError
from ddtree_deploy.facts.model import ServiceInfo
from ddtree_deploy.fleet import HostResult
from ddtree_deploy.release import store
from ddtree_deploy.release.journal import Journal, read_journal
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.lock import Lock
from ddtree_deploy.release.prune import prune
from ddtree_deploy.release.store import (
    current_release,
    list_releases,
    op_list,
    op_prune,
    op_rollback,
    rollback,
    switch_current,
)


def add_release(root: Path, id: str, day: int, activate: bool = True, **fields: Any) -> Path:
    """A folder with a record and an interpreter, activated as a provision would."""
    path = root / "releases" / id
    (path / ".ddtree").mkdir(parents=True)
    (path / "bin").mkdir()
    (path / "bin" / "python").symlink_to("/bin/sh")
    record = {
        "id": id,
        "inputs_digest": "d" * 64,
        "profile": "test",
        "created": f"2026-01-{day:02}T00:00:00.000Z",
        "site_packages": "lib/python3/site-packages",
        "bytes": 5,
        **fields,
    }
    (path / ".ddtree" / "release.json").write_text(json.dumps(record))
    if activate:
        layout = Layout(root)
        previous = current_release(layout)
        switch_current(layout, id)
        Journal(layout.journal).append("activated", release=id, previous=previous, by="provision")
    return path


@pytest.fixture
def three(root: Path) -> Path:
    for day, id in enumerate(("r-1", "r-2", "r-3"), 1):
        add_release(root, id, day)
    return root


def ids(root: Path) -> List[str]:
    return [release.id for release in list_releases(str(root))]


def test_a_release_says_what_made_it(root: Path) -> None:
    made = {"tool_version": "0.1.0", "clone_method": "hardlink", "base_fingerprint": "f" * 64}
    add_release(root, "r-1", 1, **made)
    (release,) = op_list({"root": str(root)}, silent)["releases"]
    assert {key: release[key] for key in made} == made


def test_list(three: Path) -> None:
    (three / "releases" / "r-4.partial").mkdir()
    (three / "releases" / "r-4").symlink_to("r-4.partial")
    (three / "releases" / "junk").mkdir()
    (three / "releases" / "r-1" / ".ddtree" / "release.json").write_text("{")
    result = op_list({"root": str(three)}, silent)
    assert sorted((release["id"], release["current"], release["complete"]) for release in result["releases"]) == [
        ("r-1", False, False),
        ("r-2", False, True),
        ("r-3", True, True),
    ]
    assert (result["current"], result["previous"], result["partial"]) == ("r-3", "r-2", ["r-4.partial"])
    assert result["foreign"] == ["junk"]


def test_list_of_nothing(root: Path) -> None:
    expected = {"releases": [], "current": None, "previous": None, "partial": [], "foreign": []}
    assert op_list({"root": str(root)}, silent) == expected


def test_rollback_tells_of_services_that_stay(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(root: Path) -> list[ServiceInfo]:
        states = {"a": ("ready", "r-3"), "b": ("starting", "r-1"), "c": ("stopped", "r-3"), "d": ("ready", "r-2")}
        unknown = ServiceInfo("e", "unknown")
        return [*(ServiceInfo(name, state, release=release) for name, (state, release) in states.items()), unknown]

    monkeypatch.setattr("ddtree_deploy.serve.operations.list_services", found)
    assert op_rollback({"root": str(three), "to": None}, silent)["staying"] == ["a", "b"]  # r-2 is current now
    assert op_rollback({"root": str(three), "to": "r-3"}, silent)["staying"] == ["b", "d"]


def test_rollback_says_how_services_are_moved() -> None:
    value = {"release": "r-2", "previous": "r-3", "changed": True, "note": None, "staying": ["gpu0", "gpu1"]}
    console = Console(file=io.StringIO(), width=200)
    _draw_rollback(console, HostResult("box", 0, {}, value))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines() == [
        "box: r-2 is current now (it was r-3)",
        "box: still served from another release: gpu0, gpu1; `ddtree-deploy launch box --replace` moves them",
    ]


def test_rollback_goes_back_one_by_one(three: Path) -> None:
    assert op_rollback({"root": str(three), "to": None}, silent)["release"] == "r-2"
    assert rollback(str(three), None)["release"] == "r-1"
    with pytest.raises(InputError) as caught:
        rollback(str(three), None)
    assert caught.value.id == "nothing-to-roll-back"
    assert "r-2, r-3" in str(caught.value.hint) and "--to" in str(caught.value.hint)  # the way forward again
    assert current_release(Layout(three)) == "r-1"
    assert rollback(str(three), "r-3")["previous"] == "r-1"
    assert rollback(str(three), None)["release"] == "r-1"


def test_rollback_to_the_current_one_changes_nothing(three: Path) -> None:
    lines = len(read_journal(three / "journal.jsonl"))
    assert rollback(str(three), "r-3")["changed"] is False
    assert len(read_journal(three / "journal.jsonl")) == lines


@pytest.mark.parametrize(
    ("target", "id"),
    [
        ("gone-1", "no-such-release"),
        ("", "bad-release-id"),
        ("../../etc", "bad-release-id"),
        ("r-9", "no-such-release"),
        ("junk", "release-incomplete"),
        ("r-1", "release-incomplete"),
    ],
)
def test_rollback_checks_its_target_first(three: Path, target: str, id: str) -> None:
    (three / "releases" / "junk").mkdir()
    (three / "releases" / "r-9").symlink_to("r-9.partial")
    (three / "releases" / "r-1" / "bin" / "python").unlink()
    with pytest.raises(InputError) as caught:
        rollback(str(three), target)
    assert caught.value.id == id
    assert caught.value.exit_code == 3
    assert current_release(Layout(three)) == "r-3"


def test_rollback_skips_what_was_removed_by_hand(three: Path) -> None:
    (three / "releases" / "r-2").rename(three / "elsewhere")
    assert op_list({"root": str(three)}, silent)["previous"] == "r-1"
    assert rollback(str(three), None)["release"] == "r-1"


def test_rollback_skips_what_was_pruned(root: Path) -> None:
    for day in range(1, 6):
        add_release(root, f"r-{day}", day)
    service = root / "services" / "gpu0"
    service.mkdir(parents=True)
    (service / "spec.json").write_text(json.dumps({"name": "gpu0", "release": "r-2"}))
    assert prune(str(root), 1, silent)["removed"] == ["r-1", "r-3"]
    assert rollback(str(root), None)["release"] == "r-4"
    assert op_list({"root": str(root)}, silent)["previous"] == "r-2"
    assert {"id": "r-2", "why": "active before the current one"} in prune(str(root), 0, silent)["kept"]
    assert rollback(str(root), None)["release"] == "r-2"
    assert op_list({"root": str(root)}, silent)["previous"] is None
    with pytest.raises(InputError) as caught:
        rollback(str(root), None)
    assert caught.value.id == "nothing-to-roll-back"


def test_a_release_that_was_pruned_and_built_again_was_not_active_before(three: Path) -> None:
    prune(str(three), 1, silent)
    add_release(three, "r-1", 4, activate=False)
    rollback(str(three), None)
    assert op_list({"root": str(three)}, silent)["previous"] is None


@pytest.mark.parametrize("text", ["", "{", "{}"])
def test_a_damaged_release_is_skipped_unless_it_is_named(three: Path, text: str) -> None:
    (three / "releases" / "r-2" / ".ddtree" / "release.json").write_text(text)
    assert op_list({"root": str(three)}, silent)["previous"] == "r-1"
    with pytest.raises(InputError, match="r-2") as caught:
        rollback(str(three), "r-2")
    assert caught.value.id == "release-incomplete"
    assert rollback(str(three), None)["release"] == "r-1"


def test_a_damaged_release_that_was_active_before_can_be_pruned(three: Path) -> None:
    """`provision` with its inputs says so; what a rollback would go to stays."""
    (three / "releases" / "r-2" / ".ddtree" / "release.json").write_text("{")
    result = prune(str(three), 1, silent)
    assert result["removed"] == ["r-2"]
    assert {"id": "r-1", "why": "active before the current one"} in result["kept"]
    assert rollback(str(three), None)["release"] == "r-1"


def test_only_damaged_releases_are_nothing_to_roll_back_to(three: Path) -> None:
    for id in ("r-1", "r-2"):
        (three / "releases" / id / ".ddtree" / "release.json").write_text("{")
    with pytest.raises(InputError) as caught:
        rollback(str(three), None)
    assert caught.value.id == "nothing-to-roll-back"
    assert prune(str(three), 1, silent)["removed"] == ["r-1", "r-2"]


@pytest.mark.parametrize("target", [None, "releases/gone", "/elsewhere/r-2", "../other/releases/r-3"])
def test_rollback_from_a_current_that_is_no_release(three: Path, target: str | None) -> None:
    (three / "current").unlink()
    if target is not None:
        (three / "current").symlink_to(target)
    assert op_list({"root": str(three)}, silent)["current"] == ("gone" if target == "releases/gone" else None)
    assert rollback(str(three), None)["release"] == "r-3"
    assert current_release(Layout(three)) == "r-3"


def test_a_current_that_names_the_root_in_full(three: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(three)
    (three / "current").unlink()
    (three / "current").symlink_to(tmp_path / "link" / "releases" / "r-2")
    assert current_release(Layout(three)) == "r-2"


def test_rollback_without_a_root(root: Path) -> None:
    with pytest.raises(InputError) as caught:
        rollback(str(root), None)
    assert caught.value.id == "no-root"
    assert not root.exists()


def test_history_survives_a_kill_between_switch_and_journal(three: Path) -> None:
    add_release(three, "r-4", 4, activate=False)
    switch_current(Layout(three), "r-4")
    assert rollback(str(three), None)["release"] == "r-3"


def test_current_that_is_no_link(root: Path) -> None:
    add_release(root, "r-1", 1, activate=False)
    (root / "current").mkdir()
    with pytest.raises(StepError) as caught:
        rollback(str(root), "r-1")
    assert caught.value.id == "current-not-a-link"


def test_switch_never_leaves_a_gap(three: Path) -> None:
    (three / "current.999.tmp").symlink_to("releases/r-1")
    switch_current(Layout(three), "r-1")
    assert (three / "current").readlink() == Path("releases/r-1")


def test_prune_keeps_newest_current_and_previous(root: Path) -> None:
    for day in range(1, 7):
        add_release(root, f"r-{day}", day)
    rollback(str(root), "r-2")  # current is old, and before it was r-1
    result = op_prune({"root": str(root), "keep": 2}, silent)
    assert ids(root) == ["r-1", "r-2", "r-5", "r-6"]
    assert result["removed"] == ["r-3", "r-4"]
    why = {entry["id"]: entry["why"] for entry in result["kept"]}
    assert why == {
        "r-1": "active before the current one",
        "r-2": "current",
        "r-5": "among the newest",
        "r-6": "among the newest",
    }
    assert rollback(str(root), None)["release"] == "r-1"


@pytest.mark.parametrize("as_path", [True, False])
def test_prune_keeps_what_services_use(three: Path, as_path: bool) -> None:
    add_release(three, "r-4", 4)
    service = three / "services" / "gpu0"
    service.mkdir(parents=True)
    release = str(three / "releases" / "r-1") if as_path else "r-1"
    (service / "spec.json").write_text(json.dumps({"name": "gpu0", "release": release}))
    (three / "services" / ".lock").write_text("")
    result = prune(str(three), 0, silent)
    assert ids(three) == ["r-1", "r-3", "r-4"]
    assert {"id": "r-1", "why": "in use by service gpu0"} in result["kept"]


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"release": 3}'])
def test_prune_keeps_all_while_a_service_does_not_tell_its_release(three: Path, text: str) -> None:
    spec = three / "services" / "gpu0" / "spec.json"
    spec.parent.mkdir(parents=True)
    (three / "services" / ".lock").touch()
    spec.write_text(text)
    result = prune(str(three), 0, silent)
    assert result["removed"] == []
    assert {"id": "r-1", "why": f"perhaps in use by {spec}, which cannot be read"} in result["kept"]
    spec.unlink()
    assert prune(str(three), 0, silent)["removed"] == ["r-1"]


def test_prune_cleans_the_cache_and_what_was_interrupted(three: Path) -> None:
    for name in ("r-8.removing", "r-9.partial"):
        (three / "releases" / name / "lib").mkdir(parents=True)
    (three / "releases" / "r-9").symlink_to("r-9.partial")
    (three / "current.1.tmp").symlink_to("x")
    staging, blobs = three / "cache" / "staging", three / "cache" / "blobs"
    for name in ("used", "unused", "broken.partial"):
        (staging / name).mkdir(parents=True)
    blobs.mkdir()
    for name in ("a" * 64, "b" * 64, "c" * 64):
        (blobs / name).write_text("x")
    old = time.time() - 7200
    os.utime(blobs / ("a" * 64), (old, old))
    os.utime(blobs / ("b" * 64), (old, old))
    add_release(three, "r-4", 4, staging="used", blobs=["a" * 64])
    result = prune(str(three), 1, silent)
    assert ids(three) == ["r-3", "r-4"]
    assert sorted(path.name for path in (three / "releases").iterdir()) == ["r-3", "r-4"]
    assert [path.name for path in staging.iterdir()] == ["used"]
    assert sorted(path.name for path in blobs.iterdir()) == ["a" * 64, "c" * 64]  # the young one may be on its way
    assert sorted(result["cache_removed"]) == ["b" * 64, "unused"]
    assert not (three / "current.1.tmp").is_symlink()


def test_what_goes_while_it_is_listed(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a blob that gets its name while the cache is pruned; a release that is pruned during a list."""
    blobs, listdir = three / "cache" / "blobs", os.listdir
    blobs.mkdir(parents=True)
    gone = ["a" * 64 + ".1.partial"]
    monkeypatch.setattr(os, "listdir", lambda folder: listdir(folder) + (gone if folder == blobs else []))
    assert prune(str(three), 2, silent)["cache_removed"] == []

    def removed(path: str) -> None:
        shutil.rmtree(path)

    monkeypatch.setattr(store, "read_record", removed)
    assert list_releases(str(three)) == []


def test_prune_leaves_what_is_not_ours_alone(three: Path) -> None:
    releases = three / "releases"
    foreign = ["-x", ".trash", "lost+found", "my backup", "notes", "old", "to-elsewhere"]
    for name in (".trash", "-x", "lost+found", "my backup", "old"):
        (releases / name / "data").mkdir(parents=True)
    (releases / "notes").write_text("x")
    (releases / "to-elsewhere").symlink_to("/usr")
    (releases / "r-1" / ".ddtree" / "release.json").write_text("{")  # damaged, and ours
    before = op_list({"root": str(three)}, silent)
    assert [release["id"] for release in before["releases"] if release["complete"]] == ["r-2", "r-3"]
    assert before["foreign"] == foreign
    result = prune(str(three), 1, silent)
    assert result["removed"] == ["r-1"]
    assert result["foreign"] == foreign
    assert sorted(path.name for path in releases.iterdir()) == sorted([*foreign, "r-2", "r-3"])
    assert (releases / "my backup" / "data").is_dir()


def test_a_current_release_without_record_is_listed_as_incomplete(three: Path) -> None:
    (three / "releases" / "r-3" / ".ddtree" / "release.json").unlink()
    last = {release.id: release for release in list_releases(str(three))}["r-3"]
    assert (last.current, last.complete) == (True, False)
    assert prune(str(three), 0, silent)["removed"] == ["r-1"]


def test_prune_makes_room_on_a_full_disk(small_disk: Path) -> None:
    """What the hint of ``no-space`` tells to do: neither the lock's record nor the journal needs room before."""
    root = small_disk / "root"
    for day, id in enumerate(("r-1", "r-2", "r-3"), 1):
        (add_release(root, id, day) / "weights").write_bytes(bytes(1 << 18))
    (root / "releases" / "r-9.partial").mkdir()
    fill(small_disk)
    result = prune(str(root), 0, silent)
    assert result["removed"] == ["r-1"] and result["freed_bytes"] >= 1 << 18
    assert [entry["release"] for entry in read_journal(Layout(root).journal) if entry["event"] == "pruned"] == ["r-1"]
    assert ids(root) == ["r-2", "r-3"]


def test_prune_twice_removes_nothing_more(three: Path) -> None:
    prune(str(three), 1, silent)
    assert prune(str(three), 1, silent)["removed"] == []


@pytest.mark.parametrize("keep", [-1, "2", None, 1.5, True])
def test_prune_wants_a_number(three: Path, keep: Any) -> None:
    with pytest.raises(InputError) as caught:
        prune(str(three), keep, silent)
    assert caught.value.id == "bad-keep"
    assert ids(three) == ["r-1", "r-2", "r-3"]


def test_operations_wait_for_nobody(three: Path) -> None:
    with Lock(three / "lock", "provision"):
        with pytest.raises(LockedError, match="provision"):
            prune(str(three), 1, silent)
        with pytest.raises(LockedError):
            rollback(str(three), None)
        assert ids(three) == ["r-1", "r-2", "r-3"]


@pytest.mark.parametrize("place", ["", "below"])
@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("releases.list", {}),
        ("releases.rollback", {"to": None}),
        ("releases.prune", {"keep": 1}),
        ("service.status", {}),
        ("service.logs", {}),
        ("service.stop", {}),
        ("service.restart", {}),
        ("service.launch", {"model": "/m"}),
        ("verify.run", {}),
        ("survey.run", {"base": "/b", "distribution": "sglang", "patch_set": None}),
        ("abi.audit", {"path": "", "base": "/b"}),
        ("abi.diff", {"left": "one", "right": "two"}),
    ],
)
def test_a_root_that_is_a_file_is_the_same_error_everywhere(
    tmp_path: Path, op: str, params: dict[str, Any], place: str
) -> None:
    file = tmp_path / "file"
    file.write_text("a file")
    with pytest.raises(InputError) as caught:
        find(op)({"root": str(file / place), **params}, silent)
    assert (caught.value.id, caught.value.where) == ("root-not-a-folder", str(file))
