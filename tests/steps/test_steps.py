"""The steps that change an engine, run a command, or plan."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict

import pytest
import venvs
from step_runs import run
from venvs import ENGINE, PATCHED, digest, patch_set

from ddtree_deploy import steps
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.codec import from_dict, to_dict
from ddtree_deploy.errors import DriftError, InputError, StepError
from ddtree_deploy.facts.model import Disk, HostFacts, Package, Venv
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs, PlanSettings, Playbook, PlaybookStep, Tool, WheelInfo
from ddtree_deploy.plan.model import Action, FileChange, PackageChange, Precondition
from ddtree_deploy.profiles.model import ExtraFile, LockedPackage, Profile, Source
from ddtree_deploy.release.clone import Copier
from ddtree_deploy.release.executor import apply_plan
from ddtree_deploy.release.model import ReleaseRecord

VERSIONS = ("2.9.1", "2.11.0")
DOCS = Path(__file__).parents[2] / "docs" / "releases.md"


def test_patch_leaves_base_alone_and_records_what_it_did(root: Path, base: Path) -> None:
    before = venvs.tree_state(base)
    result = run(root, base, venvs.patch_action(patch_set()))
    assert venvs.tree_state(base) == before
    release = root / "releases" / "test-1"
    out = venvs.run(
        [release / "bin" / "python", "-c", "import engine, engine.tree as t; print(engine.VERSION, t.TREE)"]
    )
    assert out.stdout == "1.0-tree True\n"
    assert result["actions"][1]["result"]["changed"] == ["engine/__init__.py", "engine/tree.py"]
    record = (release / venvs.SITE / "engine-1.0.dist-info" / "RECORD").read_text()
    assert f"engine/__init__.py,{venvs.record_hash(PATCHED.encode())},{len(PATCHED)}" in record
    assert f"engine/tree.py,{venvs.record_hash(b'TREE = True' + bytes([10]))},12" in record
    assert (release / venvs.SITE / "engine" / "__init__.py").stat().st_nlink == 1


def test_patch_of_an_edited_engine_fails_and_activates_nothing(root: Path, base: Path) -> None:
    file = base / venvs.SITE / "engine" / "__init__.py"
    file.unlink()
    file.write_text(ENGINE + "# edited\n")
    with pytest.raises(StepError) as caught:
        run(root, base, venvs.patch_action(patch_set()))
    assert caught.value.id == "file-edited"
    assert caught.value.exit_code == 5
    assert not (root / "current").is_symlink()


def test_patch_never_writes_through_a_link_to_a_checkout(root: Path, base: Path, tmp_path: Path) -> None:
    (base / venvs.SITE / "engine").rename(tmp_path / "checkout")
    (base / venvs.SITE / "engine").symlink_to(tmp_path / "checkout")
    before = venvs.tree_state(tmp_path / "checkout")
    with pytest.raises(StepError) as caught:
        run(root, base, venvs.patch_action(patch_set()))
    assert caught.value.id == "outside-release"
    assert venvs.tree_state(tmp_path / "checkout") == before


def test_files_of_the_base_that_are_links_out_of_it_are_told(root: Path, base: Path, tmp_path: Path) -> None:
    site, cache = base / venvs.SITE, tmp_path / "uv-cache"
    cache.mkdir()
    for name in ("engine/__init__.py", "some_lib/old.py"):
        (site / name).rename(cache / Path(name).name)
        (site / name).symlink_to(cache / Path(name).name)
    (tmp_path / "checkout").mkdir()
    (site / "checkout").symlink_to(tmp_path / "checkout")  # folders, the venv's own files and its Python do not count
    (site / "inside.py").symlink_to("some_lib/__init__.py")
    (site / "own.py").symlink_to(site / "some_lib" / "__init__.py")
    result = run(root, base)
    (note,) = result["notes"]
    assert (note["severity"], note["id"]) == ("warning", "files-elsewhere")
    assert "venv: 2, such as" in note["message"] and "uv cache clean" in note["message"]
    assert f"{venvs.SITE}/engine/__init__.py -> {cache}/__init__.py" in note["message"]
    assert (root / "releases" / "test-1" / venvs.SITE / "some_lib" / "old.py").is_symlink()


def test_audit_of_a_fitting_release_passes(root: Path, base: Path) -> None:
    result = run(root, base, Action(id="03-audit", step="audit", summary="audit"))
    assert result["actions"][1]["result"]["counts"]["error"] == 0


def test_audit_that_finds_errors_activates_nothing(root: Path, base: Path, tmp_path: Path) -> None:
    info = base / venvs.SITE / "engine-1.0.dist-info" / "METADATA"
    text = info.read_text()
    info.unlink()
    info.write_text(text.rstrip("\n") + "\nRequires-Dist: not-there>=1\n")
    with pytest.raises(StepError, match="not-there") as caught:
        run(root, base, Action(id="03-audit", step="audit", summary="audit"))
    assert caught.value.id == "audit-failed"
    assert caught.value.details["findings"]
    assert not (root / "current").is_symlink()


def test_smoke_of_a_release_without_an_engine_fails_with_each_check(root: Path, base: Path) -> None:
    with pytest.raises(StepError) as caught:
        run(root, base, Action(id="05-smoke", step="smoke", summary="smoke", params={"environment": {}}))
    assert caught.value.id == "smoke-failed"
    assert "torch" in caught.value.message
    assert caught.value.where is not None
    assert len(json.loads(Path(caught.value.where).read_text())) == len(caught.value.details["checks"]) >= 5
    assert not (root / "current").is_symlink()


def test_unknown_steps() -> None:
    for name in ("nothing", "../clone", "_clone", "context", "preconditions", ""):
        with pytest.raises(InputError) as caught:
            steps.load(name)
        assert caught.value.id == "unknown-step"
    assert steps.load("clone").__name__ == "ddtree_deploy.steps.clone"


def facts(root: Path, base_path: Path, **changes: Any) -> HostFacts:
    values: Dict[str, Any] = {
        "hostname": "h",
        "system": "Linux",
        "machine": "x86_64",
        "kernel": "6",
        "glibc": "2.36",
        "python": "3.11.2",
        "boot_id": "b",
        "systemd": False,
        "user": "u",
        "root": str(root),
        "base": Venv(
            str(base_path),
            True,
            python="3.11.2",
            packages=[Package("some-lib", "1.0")],
            fingerprint="f" * 64,
            files=100,
            bytes=1000,
        ),
        "root_disk": Disk(str(root), 1, "ext4", 10**12, 10**12),
        "base_disk": Disk(str(base_path), 1, "ext4", 10**12, 10**12),
        "uv": "/usr/bin/uv",
    }
    return HostFacts(**{**values, **changes})


def inputs(root: Path, base: Path, **changes: Any) -> PlanInputs:
    profile = Profile(
        name="engine-1.0-cpu",
        engine="engine",
        engine_version="1.0",
        abi_tag="cpu",
        requires_python=">=3.9",
        machine=["x86_64"],
        patch_set="engine-1.0",
        packages=[LockedPackage("some-lib", "2.0", ["1" * 64])],
        lock_sha256="l" * 64,
        extra_files=[ExtraFile("{site}/shim.py", "/overlays/shim.py", "5" * 64)],
        environment={"LD_LIBRARY_PATH": "{release}/lib/shim"},
        gpu=False,
    )
    values: Dict[str, Any] = {
        "facts": facts(root, base),
        "settings": PlanSettings("h", str(root), str(base), environment={"MINE": "yes"}),
        "profile": profile,
        "patch_set": patch_set(),
        "playbook": Playbook("provision", [PlaybookStep(name) for name in ("clone", "overlay", "patch", "activate")]),
        "source": Source("index", "https://user:secret@index.test/simple"),
    }
    return PlanInputs(**{**values, **changes})


def draft(root: Path, base: Path, **changes: Any) -> PlanDraft:
    values: Dict[str, Any] = {
        "release_id": "engine-1.0-cpu-1",
        "inputs_digest": "d" * 64,
        "root": str(root),
        "base": str(base),
        "site_packages": venvs.SITE,
        "locked": [LockedPackage("some-lib", "2.0", ["1" * 64])],
        "packages": [
            PackageChange("replace", "some-lib", "profile pins", "1.0", "2.0"),
            PackageChange("remove", "old-lib", "two names for one thing", "1.0"),
        ],
        "files": [
            FileChange("patch", "engine/__init__.py", digest(ENGINE), digest(PATCHED), "the diff"),
            FileChange("shim", "{site}/shim.py", None, "5" * 64),
        ],
    }
    return PlanDraft(**{**values, **changes})


@pytest.mark.parametrize(
    ("root_disk", "method", "space"),
    [
        ({"device": 1, "reflink": True}, "reflink", 100 * 512),
        ({"device": 1, "reflink": False}, "hardlink", 100 * 512),
        ({"device": 2, "reflink": True}, "copy", 1000),
    ],
)
def test_plan_of_clone(tmp_path: Path, root_disk: Dict[str, Any], method: str, space: int) -> None:
    root, base = tmp_path / "root", tmp_path / "base"
    disk = replace(facts(root, base).root_disk, **root_disk)  # type: ignore[type-var]
    (action,) = steps.load("clone").plan(inputs(root, base, facts=facts(root, base, root_disk=disk)), draft(root, base))
    assert action.params["method"] == method
    checks = {check.kind: check.params for check in action.preconditions}
    assert checks["free-space"]["bytes"] == space
    assert checks["path-missing"]["path"] == f"{root}/releases/engine-1.0-cpu-1"
    assert checks["venv-fingerprint"]["packages"] == {"some-lib": "1.0"}
    record = from_dict(ReleaseRecord, action.params["record"])
    assert [(change.path, change.diff) for change in record.files] == [
        ("engine/__init__.py", None),
        (f"{venvs.SITE}/shim.py", None),
    ]
    assert (record.patch_set, record.patch_set_digest, record.gpu) == ("engine-1.0", "p" * 64, False)
    assert json.dumps(to_dict(action))


def test_plan_of_overlay_from_an_index_holds_no_secret(tmp_path: Path) -> None:
    root, base = tmp_path / "root", tmp_path / "base"
    (action,) = steps.load("overlay").plan(inputs(root, base), draft(root, base))
    assert action.params["install"] == [{"name": "some-lib", "version": "2.0", "hashes": ["1" * 64]}]
    assert action.params["remove"] == ["old-lib", "some-lib"]
    assert action.params["blobs"] == [{"sha256": "5" * 64, "name": "shim.py"}]
    assert action.params["uv"] == {"path": "/usr/bin/uv"}
    assert "secret" not in json.dumps(to_dict(action))


def test_plan_of_overlay_sends_uv_where_there_is_none(tmp_path: Path) -> None:
    root, base = tmp_path / "root", tmp_path / "base"
    tool = Tool("/bin/uv", "7" * 64, 1, "x86_64")
    plan = steps.load("overlay").plan
    (action,) = plan(inputs(root, base, facts=facts(root, base, uv=None), uv=tool), draft(root, base))
    assert action.params["uv"] == {"sha256": "7" * 64}
    assert {"sha256": "7" * 64, "name": "uv"} in action.params["blobs"]
    other = replace(tool, machine="aarch64")
    (action,) = plan(inputs(root, base, facts=facts(root, base, uv=None), uv=other), draft(root, base))
    assert action.params["uv"] == {}


def test_plan_of_overlay_from_a_wheelhouse_names_its_wheels(tmp_path: Path) -> None:
    root, base = tmp_path / "root", tmp_path / "base"
    wheels = [
        WheelInfo("/w/some_lib-2.0-py3-none-any.whl", "some-lib", "2.0", "1" * 64),
        WheelInfo("/w/some_lib-2.0-py3-none-win_amd64.whl", "some-lib", "2.0", "2" * 64),
        WheelInfo("/w/other-1.0-py3-none-any.whl", "other", "1.0", "3" * 64),
    ]
    (action,) = steps.load("overlay").plan(
        inputs(root, base, source=Source("wheelhouse", "/w"), wheels=wheels), draft(root, base)
    )
    assert action.params["wheels"] == [{"sha256": "1" * 64, "name": "some_lib-2.0-py3-none-any.whl"}]
    assert action.params["wheels"][0] in action.params["blobs"]


def test_plan_of_overlay_with_nothing_to_do(tmp_path: Path) -> None:
    root, base = tmp_path / "root", tmp_path / "base"
    given = inputs(root, base)
    given = replace(given, profile=replace(given.profile, extra_files=[]))
    assert steps.load("overlay").plan(given, draft(root, base, packages=[])) == []


def test_plan_of_command_by_kind_of_profile(tmp_path: Path) -> None:
    root, base = tmp_path / "root", tmp_path / "base"
    options = {"argv": ["/bin/true"], "name": "try it", "timeout": 5}
    plan = steps.load("command").plan
    for when, count in (("always", 1), ("cpu", 1), ("gpu", 0)):
        assert len(plan(inputs(root, base), draft(root, base, options={**options, "when": when}))) == count
    (action,) = plan(inputs(root, base), draft(root, base, options=options))
    assert (action.summary, action.params["timeout"], action.params["environment"]) == ("try it", 5, {"MINE": "yes"})


def test_plan_of_patch_without_a_patch_set(tmp_path: Path) -> None:
    root, base = tmp_path / "root", tmp_path / "base"
    assert steps.load("patch").plan(inputs(root, base, patch_set=None), draft(root, base)) == []


def planned_from(root: Path, base: Path) -> Dict[str, Any]:
    """A plan made from what the base venv is now."""
    from ddtree_deploy.facts.venv import probe_venv

    given = inputs(root, base, facts=facts(root, base, base=probe_venv(str(base))))
    (action,) = steps.load("clone").plan(given, draft(root, base))
    return venvs.make_plan(root, base, "engine-1.0-cpu-1", [action, venvs.activate_action()])


def test_drift_of_the_base_names_the_package(root: Path, base: Path, wheels: Dict[str, Path]) -> None:
    plan = planned_from(root, base)
    venvs.install(base, wheels["extra"])
    with pytest.raises(DriftError, match=r"extra \(absent\) -> 1\.0"):
        apply_plan({"plan": plan}, silent)
    venvs.run([venvs.UV, "pip", "uninstall", "--python", base / "bin" / "python", "extra"])
    assert apply_plan({"plan": plan}, silent)["current"] == "engine-1.0-cpu-1"


def test_drift_of_a_version_says_from_what_to_what(root: Path, base: Path, tmp_path: Path) -> None:
    """The message that docs/releases.md quotes."""
    torch = {version: venvs.make_wheel(tmp_path / "w", "torch", version, {"torch.py": ""}) for version in VERSIONS}
    venvs.install(base, torch["2.9.1"])
    run(root, base)  # an active release, which must stay
    plan = planned_from(root, base)
    venvs.install(base, torch["2.11.0"])
    with pytest.raises(DriftError) as caught:
        apply_plan({"plan": plan}, silent)
    error = caught.value
    assert (error.id, error.exit_code, error.where) == ("host-changed", 5, str(base))
    assert error.message == f"the venv {base} changed since the plan was made: torch 2.9.1 -> 2.11.0"
    assert error.message.replace(str(base), "/opt/venv") in DOCS.read_text("utf-8")
    assert error.hint is not None and "plan" in error.hint
    assert (root / "current").resolve().name == "test-1"
    assert [path.name for path in (root / "releases").iterdir()] == ["test-1"]


def test_drift_while_the_base_is_cloned(root: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installer removes a file between its listing and its reading."""
    place = Copier.place

    def late(copier: Copier, source: str, target: str, info: os.stat_result) -> Any:
        if source.endswith("engine/__init__.py"):
            Path(source).unlink()
        return place(copier, source, target, info)

    plan = planned_from(root, base)
    monkeypatch.setattr(Copier, "place", late)
    with pytest.raises(DriftError, match=r"engine/__init__\.py vanished") as caught:
        apply_plan({"plan": plan}, silent)
    assert (caught.value.id, caught.value.exit_code) == ("base-changed", 5)
    assert not (root / "current").is_symlink()
    assert list((root / "releases").iterdir()) == []


def test_a_file_that_cannot_be_placed(root: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails cannot be had here: the call that would tell of it is made to."""

    def fail(copier: Copier, source: str, target: str, info: os.stat_result) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO), source)

    monkeypatch.setattr(Copier, "place", fail)
    with pytest.raises(StepError, match="Input/output error") as caught:
        run(root, base)
    assert (caught.value.id, caught.value.exit_code) == ("file-error", 5)
    assert caught.value.where is not None and caught.value.where.startswith(str(base))
    assert not (root / "current").is_symlink()
    assert list((root / "releases").iterdir()) == []


def test_a_precondition_of_a_newer_version(root: Path, base: Path) -> None:
    clone = venvs.clone_action(base, "test-1", "d" * 64, [Precondition("moon-phase", {})])
    with pytest.raises(StepError, match="moon-phase") as caught:
        apply_plan({"plan": venvs.make_plan(root, base, "test-1", [clone])}, silent)
    assert caught.value.id == "unknown-precondition"
    assert list((root / "releases").iterdir()) == []
