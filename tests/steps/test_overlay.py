from __future__ import annotations

import json
from pathlib import Path
from typing import Dict

import pytest
import venvs
from overlay_runs import imported, notes, run, site, wheelhouse

from ddtree_deploy.errors import InputError, StepError


def test_replace_and_add(root: Path, base: Path, wheels: Dict[str, Path]) -> None:
    before = venvs.tree_state(base)
    overlay, blobs = wheelhouse([("some-lib", "2.0", wheels["lib-2"]), ("extra", "1.0", wheels["extra"])], ["some-lib"])
    release, result = run(root, base, overlay, blobs)
    assert venvs.tree_state(base) == before
    assert imported(release, "import some_lib, extra; print(some_lib.VALUE, extra.EXTRA)") == "2 True"
    assert sorted(path.name for path in (site(release) / "some_lib").glob("*.py")) == ["__init__.py", "new.py"]
    assert [path.name for path in site(release).glob("some_lib-*")] == ["some_lib-2.0.dist-info"]
    assert (release / "share" / "some_lib" / "data.txt").read_text() == "data\n"
    assert (release / "bin" / "some-lib").read_text().startswith(f"#!{release}/bin/python")
    assert venvs.mentions(release, "/cache/staging/") == []
    assert venvs.mentions(release, str(base)) == []
    record = (site(release) / "some_lib-2.0.dist-info" / "RECORD").read_text()
    script = (release / "bin" / "some-lib").read_bytes()
    assert f"../../../bin/some-lib,{venvs.record_hash(script)},{len(script)}\n" in record
    assert result["notes"] == []
    assert result["actions"][1]["result"]["removed_files"] >= 5


def test_the_staging_venv_serves_the_next_release_and_never_changes(
    root: Path, base: Path, wheels: Dict[str, Path]
) -> None:
    overlay, blobs = wheelhouse([("some-lib", "2.0", wheels["lib-2"])], ["some-lib"])
    release, result = run(root, base, overlay, blobs)
    staging = root / "cache" / "staging" / result["actions"][1]["result"]["staging"]
    state = venvs.tree_state(staging)
    source = staging / venvs.SITE / "some_lib" / "new.py"
    assert source.stat().st_ino == (site(release) / "some_lib" / "new.py").stat().st_ino
    blobs_are_gone = {sha256: str(root / "nowhere") for sha256 in blobs}
    second, _ = run(root, base, overlay, blobs_are_gone, release_id="test-2")
    assert imported(second, "import some_lib; print(some_lib.VALUE)") == "2"
    assert venvs.tree_state(staging) == state
    (staging / venvs.SITE / "some_lib-2.0.dist-info" / "METADATA").unlink()
    (staging / ".ddtree-staging.json").unlink()  # not finished: built anew
    third, _ = run(root, base, overlay, blobs, release_id="test-3")
    assert imported(third, "import some_lib; print(some_lib.VALUE)") == "2"


@pytest.mark.parametrize("how", ["edited", "gone"])
def test_a_damaged_staging_venv_is_filled_anew(
    root: Path, base: Path, wheels: Dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """With what was damaged in uv's cache, too, whose files it is linked to."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    install = [("some-lib", "2.0", wheels["lib-2"]), ("extra", "1.0", wheels["extra"])]
    overlay, blobs = wheelhouse(install, ["some-lib"])
    _, result = run(root, base, overlay, blobs)
    staging = root / "cache" / "staging" / result["actions"][1]["result"]["staging"]
    file = staging / venvs.SITE / "extra.py"
    if how == "edited":
        file.write_text("EXTRA = False\n")  # where it is
    else:
        file.unlink()
    release, result = run(root, base, overlay, blobs, release_id="test-2")
    assert imported(release, "import extra; print(extra.EXTRA)") == "True"
    assert file.read_text() == "EXTRA = True\n"
    told = notes(result)
    assert "extra.py" in told.pop("staging-damaged")
    if how == "edited" and file.stat().st_dev == tmp_path.stat().st_dev:
        assert "uv cache clean extra`" in told.pop("uv-cache-damaged")
    assert told == {}
    assert notes(run(root, base, overlay, blobs, release_id="test-3")[1]) == {}


@pytest.mark.parametrize("how", ["large", "no RECORD", "RECORD cut at a row", "not in RECORD"])
def test_damage_to_a_staging_venv_that_record_does_not_show(
    root: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    whole = "#" * (300 << 10)  # large enough not to be read each time
    wheel = venvs.make_wheel(tmp_path / "w", "extra", "1.0", {"extra/__init__.py": "", "extra/large.py": whole})
    overlay, blobs = wheelhouse([("extra", "1.0", wheel)], [])
    _, result = run(root, base, overlay, blobs)
    packages = root / "cache" / "staging" / result["actions"][1]["result"]["staging"] / venvs.SITE
    record = packages / "extra-1.0.dist-info" / "RECORD"
    if how == "large":
        with (packages / "extra" / "large.py").open("r+") as stream:  # in place, as uv's cache has it too
            stream.write("!")
    elif how == "not in RECORD":
        (packages / "extra" / "more.py").write_text("")
    else:
        rows = record.read_text().splitlines(keepends=True)
        record.unlink()
        if how == "RECORD cut at a row":
            record.write_text("".join(row for row in rows if "large" not in row))
    release, result = run(root, base, overlay, blobs, release_id="test-2")
    assert (site(release) / "extra" / "large.py").read_text() == whole
    assert sorted(path.name for path in (site(release) / "extra").iterdir()) == ["__init__.py", "large.py"]
    told = notes(result)
    assert told.pop("staging-damaged")
    if how == "large" and packages.stat().st_dev == tmp_path.stat().st_dev:
        assert "uv cache clean extra`" in told.pop("uv-cache-damaged")
    assert told == {}
    assert notes(run(root, base, overlay, blobs, release_id="test-3")[1]) == {}


def test_remove_only(root: Path, base: Path) -> None:
    release, result = run(root, base, venvs.overlay_action([], ["some-lib"], {"kind": "index"}))
    assert not (site(release) / "some_lib").exists()
    assert not list(site(release).glob("some_lib-*"))
    assert imported(release, "import engine; print(engine.VERSION)") == "1.0"
    assert result["actions"][1]["result"]["staging"] is None


def test_file_of_two_owners_stays_when_one_leaves(root: Path, base: Path, tmp_path: Path) -> None:
    one = venvs.make_wheel(tmp_path / "w", "one", "1", {"shared.py": "A = 1\n", "one.py": ""})
    two = venvs.make_wheel(tmp_path / "w", "two", "1", {"shared.py": "A = 1\n", "two.py": ""})
    venvs.install(base, one, two)
    release, result = run(root, base, venvs.overlay_action([], ["one"], {"kind": "index"}))
    assert imported(release, "import shared, two; print(shared.A)") == "1"
    assert not (site(release) / "one.py").exists()
    assert "shared.py (also of two)" in notes(result)["shared-file"]
    assert "shared-file-differs" not in notes(result)


def test_file_overwritten_by_the_one_that_leaves_is_reported(root: Path, base: Path, tmp_path: Path) -> None:
    two = venvs.make_wheel(tmp_path / "w", "two", "1", {"shared.py": "A = 2\n"})
    one = venvs.make_wheel(tmp_path / "w", "one", "1", {"shared.py": "A = 1\n"})
    venvs.install(base, two)
    venvs.install(base, one)
    _, result = run(root, base, venvs.overlay_action([], ["one"], {"kind": "index"}))
    assert "shared.py" in notes(result)["shared-file-differs"]


def test_new_package_over_a_file_of_one_that_stays_is_reported(root: Path, base: Path, tmp_path: Path) -> None:
    stays = venvs.make_wheel(tmp_path / "w", "stays", "1", {"shared.py": "A = 'stays'\n", "same.py": "S = 1\n"})
    venvs.install(base, stays)
    new = venvs.make_wheel(tmp_path / "w", "new", "1", {"shared.py": "A = 'new'\n", "same.py": "S = 1\n"})
    overlay, blobs = wheelhouse([("new", "1", new)], [])
    release, result = run(root, base, overlay, blobs)
    assert imported(release, "import shared; print(shared.A)") == "new"
    message = notes(result)["shared-file"]
    assert "shared.py of stays by that of new" in message
    assert "same.py" not in message


def test_namespace_packages_keep_their_other_parts(root: Path, base: Path, tmp_path: Path) -> None:
    venvs.install(
        base,
        venvs.make_wheel(tmp_path / "w", "nvidia-a", "1", {"nvidia/a/x.py": "V = 1\n"}),
        venvs.make_wheel(tmp_path / "w", "nvidia-b", "1", {"nvidia/b/x.py": "V = 1\n"}),
    )
    new = venvs.make_wheel(tmp_path / "w", "nvidia-a", "2", {"nvidia/a/x.py": "V = 2\n"})
    overlay, blobs = wheelhouse([("nvidia-a", "2", new)], ["nvidia-a"])
    release, result = run(root, base, overlay, blobs)
    assert imported(release, "import nvidia.a.x as a, nvidia.b.x as b; print(a.V, b.V)") == "2 1"
    assert result["notes"] == []


def test_files_that_no_record_names_stay_and_are_noted(root: Path, base: Path) -> None:
    (base / venvs.SITE / "some_lib" / "mine.json").write_text("{}")
    release, result = run(root, base, venvs.overlay_action([], ["some-lib"], {"kind": "index"}))
    assert (site(release) / "some_lib" / "mine.json").read_text() == "{}"
    assert "some_lib/mine.json" in notes(result)["unowned-files"]


def test_package_without_record_is_told_by_its_top_level(root: Path, base: Path) -> None:
    info = base / venvs.SITE / "some_lib-1.0.dist-info"
    (info / "RECORD").unlink()
    (info / "top_level.txt").write_text("some_lib\n")
    release, result = run(root, base, venvs.overlay_action([], ["some-lib"], {"kind": "index"}))
    assert not (site(release) / "some_lib").exists()
    assert not list(site(release).glob("some_lib*"))
    assert "no-record" in notes(result)


@pytest.mark.parametrize("left", ["empty", "torn", "zeros"])
def test_package_whose_record_was_cut_off_is_told_by_its_top_level(root: Path, base: Path, left: str) -> None:
    record = base / venvs.SITE / "some_lib-1.0.dist-info" / "RECORD"
    whole = record.read_bytes()
    record.write_bytes({"empty": b"", "torn": whole[:-12], "zeros": bytes(200_000)}[left])
    release, result = run(root, base, venvs.overlay_action([], ["some-lib"], {"kind": "index"}))
    assert not list(site(release).glob("some_lib*"))
    assert "some-lib 1.0" in notes(result)["no-record"]


def test_files_of_rows_that_a_record_lost_are_noted(root: Path, base: Path) -> None:
    record = base / venvs.SITE / "some_lib-1.0.dist-info" / "RECORD"
    own = [row for row in record.read_text().splitlines() if ".dist-info/" in row]
    record.write_text("".join(f"{row}\n" for row in own))
    release, result = run(root, base, venvs.overlay_action([], ["some-lib"], {"kind": "index"}))
    assert (site(release) / "some_lib" / "old.py").is_file()
    assert "some_lib/old.py" in notes(result)["unowned-files"]


def cut_record(base: Path, name: str) -> None:
    """The rows of an installer that sorts them, up to the last one of the metadata folder."""
    (record,) = base.glob(f"{venvs.SITE}/{name}-*.dist-info/RECORD")
    own = [row for row in record.read_text().splitlines() if ".dist-info/" in row]
    venvs.edit(record, "".join(f"{row}\n" for row in ["../../../bin/tool,,", "__pycache__/six.pyc,,", *sorted(own)]))


@pytest.mark.parametrize(
    ("name", "file", "declared"),
    [
        ("six", "six.py", None),
        ("typing-extensions", "typing_extensions.py", None),
        ("fast", "fast.cpython-311-x86_64-linux-gnu.so", None),
        ("pyfast", "fast/__init__.py", None),
        ("soup4", "pot/__init__.py", None),
        ("soup4", "spaces/pot/__init__.py", None),
        ("yaml-c", "_yaml.abi3.so", "yaml\n_yaml\n"),
        ("yaml-c", "yaml/__init__.py", "yaml\n_yaml\n"),
    ],
)
def test_modules_that_a_record_lost_are_named(
    root: Path, base: Path, tmp_path: Path, name: str, file: str, declared: str | None
) -> None:
    """They stay, and whether they are of the package may be a guess: it must not be silent."""
    folder = tmp_path / "w"
    escaped = name.replace("-", "_")
    files = {file: ""} if declared is None else {file: "", f"{escaped}-1.dist-info/top_level.txt": declared}
    other = {"spaces/other/__init__.py": "", "mine.py": ""}
    venvs.install(
        base, venvs.make_wheel(folder, name, "1", files), venvs.make_wheel(folder, "spaces-other", "1", other)
    )
    cut_record(base, escaped)
    (base / venvs.SITE / "stray.py").touch()
    (metadata,) = base.glob(f"{venvs.SITE}/{escaped}-1.dist-info/METADATA")
    venvs.edit(metadata, metadata.read_text() + "\n```\n>>> from pot import Soup\n")
    release, result = run(root, base, venvs.overlay_action([], [name], {"kind": "index"}))
    assert (site(release) / file).is_file()
    found = notes(result)
    message = found["record-without-modules"]
    assert f"RECORD of {name} " in message
    assert (file.rpartition("/__init__")[0] or file) in message
    assert not any(word in message for word in ("mine", "other", "stray"))
    if name not in ("soup4", "pyfast"):
        assert file in found["unowned-files"]


@pytest.mark.parametrize("declared", [None, "\n", "gone\n"])
def test_a_package_that_is_only_requirements_has_lost_no_modules(
    root: Path, base: Path, tmp_path: Path, declared: str | None
) -> None:
    """Whatever else somebody has put there."""
    files = {} if declared is None else {"some_meta-1.dist-info/top_level.txt": declared}
    meta = venvs.make_wheel(tmp_path / "w", "some-meta", "1", files, data={"share/meta/x": "", "etc/meta": ""})
    venvs.install(base, meta)
    for name in ("_virtualenv.py", "sitecustomize.py", "stray/__init__.py", "Name/only_data.json"):
        (base / venvs.SITE / name).parent.mkdir(exist_ok=True)
        (base / venvs.SITE / name).touch()
    _, result = run(root, base, venvs.overlay_action([], ["some-meta"], {"kind": "index"}))
    assert notes(result) == {}


def test_what_another_package_owns_is_not_what_a_record_lost(root: Path, base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    fork = venvs.make_wheel(folder, "six-fork", "1", {"six.py": ""})
    venvs.install(base, venvs.make_wheel(folder, "six", "1", {"six.py": ""}), fork)
    cut_record(base, "six")
    _, result = run(root, base, venvs.overlay_action([], ["six"], {"kind": "index"}))
    assert notes(result) == {}


def test_editable_installs_leave_without_touching_the_project(root: Path, base: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "old_style").mkdir(parents=True)
    (project / "old_style" / "__init__.py").write_text("OLD = True\n")
    (project / "old_style.egg-info").mkdir()
    (project / "old_style.egg-info" / "PKG-INFO").write_text("Metadata-Version: 1.0\nName: old-style\nVersion: 1.0\n")
    (base / venvs.SITE / "old-style.egg-link").write_text(f"{project}\n.")
    (base / venvs.SITE / "easy-install.pth").write_text(f"{project}\n/other\n")
    before = venvs.tree_state(project)
    release, _ = run(root, base, venvs.overlay_action([], ["old-style"], {"kind": "index"}))
    assert (site(release) / "easy-install.pth").read_text() == "/other\n"
    assert not (site(release) / "old-style.egg-link").exists()
    assert (base / venvs.SITE / "easy-install.pth").read_text() == f"{project}\n/other\n"
    assert venvs.tree_state(project) == before


def test_package_that_is_a_link_to_a_checkout(root: Path, base: Path, tmp_path: Path, wheels: Dict[str, Path]) -> None:
    checkout = tmp_path / "checkout"
    (base / venvs.SITE / "some_lib").rename(checkout)
    (base / venvs.SITE / "some_lib").symlink_to(checkout)
    before = venvs.tree_state(checkout)
    overlay, blobs = wheelhouse([("some-lib", "2.0", wheels["lib-2"])], ["some-lib"])
    release, result = run(root, base, overlay, blobs)
    assert venvs.tree_state(checkout) == before
    assert imported(release, "import some_lib; print(some_lib.VALUE)") == "2"
    assert "link-removed" in notes(result)


def test_new_files_never_go_through_a_link_that_leaves(
    root: Path, base: Path, tmp_path: Path, wheels: Dict[str, Path]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (base / venvs.SITE / "some_lib").rename(tmp_path / "moved")
    (base / venvs.SITE / "some_lib").symlink_to(tmp_path / "elsewhere")
    overlay, blobs = wheelhouse([("extra", "1.0", wheels["extra"]), ("some-lib", "2.0", wheels["lib-2"])], ["extra"])
    overlay.params["install"] = [entry for entry in overlay.params["install"] if entry["name"] == "some-lib"]
    for info in base.glob(f"{venvs.SITE}/some_lib-*"):
        info.rename(tmp_path / info.name)  # not known as installed, so nobody removes the link first
    with pytest.raises(StepError) as caught:
        run(root, base, overlay, blobs)
    assert caught.value.id == "outside-release"
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_record_that_names_files_outside(root: Path, base: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep me")
    with (base / venvs.SITE / "some_lib-1.0.dist-info" / "RECORD").open("a") as stream:
        stream.write(f"{victim},,\n../../../../../{tmp_path.name}/victim,,\n../../../../victim,,\n")
    _, result = run(root, base, venvs.overlay_action([], ["some-lib"], {"kind": "index"}))
    assert victim.read_text() == "keep me"
    assert "record-outside" in notes(result)


def test_extra_files(root: Path, base: Path, tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    shim.write_text("SHIM = 1\n")
    library = tmp_path / "library"
    library.write_bytes(b"\x7fELF")
    extra = [
        {"path": "{site}/vllm/_custom_ops.py", "sha256": venvs.sha256(shim), "mode": 0o644},
        {"path": "lib/shim/libcuda.so.1", "sha256": venvs.sha256(library), "mode": 0o755},
    ]
    overlay = venvs.overlay_action([], [], {"kind": "index"}, extra_files=extra)
    release, result = run(root, base, overlay, {venvs.sha256(shim): str(shim), venvs.sha256(library): str(library)})
    assert (site(release) / "vllm" / "_custom_ops.py").read_text() == "SHIM = 1\n"
    assert (release / "lib" / "shim" / "libcuda.so.1").stat().st_mode & 0o777 == 0o755
    assert result["actions"][1]["result"]["shims"] == [f"{venvs.SITE}/vllm/_custom_ops.py", "lib/shim/libcuda.so.1"]
    record = json.loads((release / ".ddtree" / "release.json").read_text())
    assert record["shims"] == result["actions"][1]["result"]["shims"]


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "{site}/../../../../x", "."])
def test_extra_files_stay_inside(root: Path, base: Path, tmp_path: Path, path: str) -> None:
    shim = tmp_path / "shim"
    shim.write_text("x")
    extra = [{"path": path, "sha256": venvs.sha256(shim), "mode": 0o644}]
    with pytest.raises(InputError) as caught:
        run(
            root,
            base,
            venvs.overlay_action([], [], {"kind": "index"}, extra_files=extra),
            {venvs.sha256(shim): str(shim)},
        )
    assert caught.value.id == "bad-extra-file"


def test_missing_and_damaged_blobs(root: Path, base: Path, tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    shim.write_text("damaged")
    overlay = venvs.overlay_action(
        [], [], {"kind": "index"}, extra_files=[{"path": "x", "sha256": "0" * 64, "mode": 0o644}]
    )
    for blobs, id in (({}, "blob-missing"), ({"0" * 64: str(shim)}, "blob-damaged")):
        with pytest.raises(StepError) as caught:
            run(root, base, overlay, blobs)
        assert caught.value.id == id
