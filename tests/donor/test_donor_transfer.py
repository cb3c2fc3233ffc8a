"""Files of a donor: listed with their hashes, sent where they are not there already, checked, put together."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import venvs
from donor_steps import brought, inventory, provisioned, received, sent, tree_of, wanted

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.donor.model import Manifest, parse_manifest
from ddtree_deploy.donor.records import END, FILE, encode_json, next_record
from ddtree_deploy.errors import DriftError, InputError, LockedError, StepError
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.lock import Lock
from ddtree_deploy.release.prune import prune

SITE = venvs.SITE


def store(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "cache" / "donor").iterdir())


def test_what_arrives_is_what_the_donor_has(donor: Path, root: Path, base: Path) -> None:
    before = venvs.tree_state(donor)
    done = brought(donor, root, base)
    tree = tree_of(root, done)
    for path, (kind, mode, _, target, digest) in venvs.tree_state(tree).items():
        if kind != "other" and not path.startswith((".ddtree", "pyvenv.cfg")):
            assert before[path][0] == kind and before[path][3:] == (target, digest)
            assert kind == "link" or before[path][1] == mode
    assert (tree / "share" / "some_lib" / "data.txt").exists() and os.access(tree / "bin" / "some-lib", os.X_OK)
    assert (tree / SITE / "some_lib" / "link.py").readlink() == Path("new.py")
    assert venvs.tree_state(donor) == before
    assert store(root) == []


@pytest.mark.parametrize("how", ["edited", "gone"])
def test_a_damaged_tree_is_put_together_anew(donor: Path, root: Path, base: Path, how: str) -> None:
    done = brought(donor, root, base)
    file = tree_of(root, done) / SITE / "extra.py"
    if how == "edited":
        file.write_text("EXTRA = False\n")
    else:
        file.unlink()
    want = wanted(root, base, inventory(donor))
    asked = [entry[1] for entry in want["files"]]
    assert not want["ready"] and f"{SITE}/extra.py" in asked and f"{SITE}/native/lib.so" not in asked
    assert brought(donor, root, base) == done
    assert file.read_text() == "EXTRA = True\n"
    assert wanted(root, base, inventory(donor))["ready"] and store(root) == []


def test_an_overlay_takes_it_like_any_staging_tree(donor: Path, root: Path, base: Path) -> None:
    release, notes = provisioned(root, base, brought(donor, root, base))
    code = "import some_lib, extra, native; print(some_lib.VALUE, extra.EXTRA, native.V)"
    assert venvs.run([release / "bin" / "python", "-c", code]).stdout == "2 True 3\n"
    assert (release / "bin" / "some-lib").read_text().startswith(f"#!{release}/bin/python")
    assert venvs.mentions(release, str(donor)) == [] and venvs.mentions(release, "cache/staging") == []
    assert notes == {}


def test_an_overlay_to_which_nothing_was_brought(root: Path, base: Path) -> None:
    with pytest.raises(StepError) as caught:
        provisioned(root, base, {"staging": "0" * 64, "site": SITE, "names": []})
    assert caught.value.id == "donor-not-brought"


def test_only_what_is_not_there_already_is_sent(donor: Path, root: Path, base: Path, wheels: dict[str, Path]) -> None:
    venvs.install(base, wheels["extra"])  # the base has one of the packages
    found = inventory(donor)
    want = wanted(root, base, found)
    assert not any(path.endswith(("/extra.py", "extra-1.0.dist-info/METADATA")) for _, path, *_ in want["files"])
    assert want["bytes"] == sum(size for _, _, size, _ in want["files"])
    assert want["present_bytes"] + want["bytes"] == sum(row[1] for row in found["manifest"]["files"])
    contents = [row[3] for row in found["manifest"]["files"]]
    assert len(want["files"]) < len(set(contents)) < len(contents)  # equal files are sent once
    done = received(root, want, sent(donor, want))
    assert wanted(root, base, inventory(donor))["ready"]
    shutil.rmtree(tree_of(root, done))
    shutil.copytree(donor, root / "releases" / "older", symlinks=True)  # a release with the same files
    again = wanted(root, base, inventory(donor))
    assert [path for _, path, *_ in again["files"] if path.startswith(SITE) and "dist-info" not in path] == []


def test_a_file_that_is_said_to_be_there_is_read_first(donor: Path, root: Path, base: Path, wheels: Any) -> None:
    venvs.install(base, wheels["extra"])
    rotten = base / SITE / "extra.py"
    venvs.edit(rotten, b"X" * rotten.stat().st_size)
    want = wanted(root, base, inventory(donor))
    assert any(path.endswith("/extra.py") for _, path, *_ in want["files"])
    tree = tree_of(root, received(root, want, sent(donor, want)))
    assert (tree / SITE / "extra.py").read_text() == "EXTRA = True\n"


@pytest.mark.parametrize("compress", [False, True])
def test_an_interrupted_transfer_goes_on_where_it_was(donor: Path, root: Path, base: Path, compress: bool) -> None:
    big = donor / SITE / "native" / "lib.so"
    venvs.edit(big, os.urandom(3 << 20) + b"0" * (1 << 20))
    (donor / SITE / "native-3.0.dist-info" / "RECORD").unlink()
    first = wanted(root, base, inventory(donor))
    data = sent(donor, first, compress)
    with pytest.raises(StepError) as caught:
        received(root, first, data[: len(data) * 2 // 3], last=False)
    assert caught.value.id == "transfer-interrupted"
    (partial,) = [name for name in store(root) if name.endswith(".partial")]
    arrived = (root / "cache" / "donor" / partial).stat().st_size
    assert 0 < arrived < big.stat().st_size
    second = wanted(root, base, inventory(donor))
    assert second["digest"] == first["digest"]
    assert second["bytes"] < first["bytes"] - arrived + 1
    offsets = {path: offset for _, path, _, offset in second["files"]}
    assert offsets[f"{SITE}/native/lib.so"] == arrived
    done = received(root, second, sent(donor, second, compress))
    assert venvs.sha256(tree_of(root, done) / SITE / "native" / "lib.so") == venvs.sha256(big)


def test_what_arrived_of_another_content_is_asked_for_anew(donor: Path, root: Path, base: Path) -> None:
    want = wanted(root, base, inventory(donor))
    digest = next(row[3] for row in inventory(donor)["manifest"]["files"] if row[0].endswith("native/lib.so"))
    Path(root / "cache" / "donor" / f"{digest}.partial").write_bytes(b"not the beginning of it")
    want = wanted(root, base, inventory(donor))
    done = received(root, want, sent(donor, want))
    assert done["again"] == 1
    want = wanted(root, base, inventory(donor))
    assert [path for _, path, *_ in want["files"]] == [f"{SITE}/native/lib.so"]
    done = received(root, want, sent(donor, want))
    assert venvs.sha256(tree_of(root, done) / SITE / "native" / "lib.so") == digest


def test_bytes_that_change_on_the_way_are_noticed(donor: Path, root: Path, base: Path) -> None:
    done = brought(donor, root, base, change=lambda data: data.replace(b"x" * 1000, b"y" * 1000, 1))
    assert done["again"] == 1 and not (root / "cache" / "staging").exists()


def test_a_file_found_in_the_store_is_read_again(donor: Path, root: Path, base: Path) -> None:
    want = wanted(root, base, inventory(donor))
    data = sent(donor, want)
    with pytest.raises(StepError):
        received(root, want, data, last=False)
    kept = [name for name in store(root) if not name.endswith(".json")]
    assert len(kept) == len(want["files"])
    big = max((root / "cache" / "donor" / name for name in kept), key=lambda path: path.stat().st_size)
    venvs.edit(big, b"y" * big.stat().st_size)  # the disk forgot
    again = wanted(root, base, inventory(donor))
    assert [path for _, path, *_ in again["files"]] == [f"{SITE}/native/lib.so"]


class TestDonorsThatAreNotWhatTheySay:
    def test_a_text_file_that_was_edited_is_taken_and_said(self, donor: Path, root: Path, base: Path) -> None:
        venvs.edit(donor / SITE / "some_lib" / "__init__.py", b"VALUE = 2  # edited\n")
        release, notes = provisioned(root, base, brought(donor, root, base))
        assert "some_lib/__init__.py (20 bytes instead of 10)" in notes["donor-edited"]
        assert f"some-lib in {donor} was edited" in notes["donor-edited"]
        assert "edited" in (release / SITE / "some_lib" / "__init__.py").read_text()

    def test_one_of_the_same_size_shows_when_it_is_sent(self, donor: Path, root: Path, base: Path) -> None:
        venvs.edit(donor / SITE / "some_lib" / "__init__.py", b"VALUE = 9\n")
        release, notes = provisioned(root, base, brought(donor, root, base))
        assert "some_lib/__init__.py (another sha256)" in notes["donor-edited"]
        assert (release / SITE / "some_lib" / "__init__.py").read_text() == "VALUE = 9\n"

    @pytest.mark.parametrize("same_size", [False, True])
    def test_compiled_code_that_differs_from_record_is_damaged(
        self, donor: Path, root: Path, base: Path, same_size: bool
    ) -> None:
        library = donor / SITE / "native" / "lib.so"
        venvs.edit(library, b"\x7fELF" + b"y" * (300_000 if same_size else 200_000))
        with pytest.raises(StepError) as caught:
            brought(donor, root, base)
        assert caught.value.id == "donor-damaged" and "native/lib.so" in caught.value.message
        assert "--take-edited" in (caught.value.hint or "")
        done = brought(donor, root, base, take_edited=True)
        release, notes = provisioned(root, base, done, take_edited=True)
        assert venvs.sha256(release / SITE / "native" / "lib.so") == venvs.sha256(library)
        assert "native/lib.so" in notes["donor-edited"]

    def test_a_file_that_is_gone(self, donor: Path) -> None:
        (donor / SITE / "some_lib" / "new.py").unlink()
        with pytest.raises(StepError, match=r"some_lib/new\.py") as caught:
            inventory(donor)
        assert caught.value.id == "source-incomplete"

    def test_a_package_that_is_not_there(self, donor: Path, tmp_path: Path) -> None:
        with pytest.raises(StepError) as caught:
            inventory(donor, {"some-lib": "9.0"})
        assert caught.value.id == "source-lacks"
        with pytest.raises(InputError) as missing:
            inventory(tmp_path)
        assert missing.value.id == "donor-missing"

    @pytest.mark.parametrize("how", ["longer", "other", "gone"])
    def test_a_file_that_changes_meanwhile(self, donor: Path, root: Path, base: Path, how: str) -> None:
        (donor / SITE / "native-3.0.dist-info" / "RECORD").unlink()  # its files are read for their hashes
        want = wanted(root, base, inventory(donor))
        library = donor / SITE / "native" / "lib.so"
        if how == "gone":
            library.unlink()
        else:
            venvs.edit(library, b"z" * (library.stat().st_size + (how == "longer")))
        with pytest.raises(DriftError) as caught:
            received(root, want, sent(donor, want))
        assert caught.value.id == "donor-changed" and "native/lib.so" in caught.value.message
        left = wanted(root, base, inventory(donor)) if how != "gone" else None
        assert left is None or [path for _, path, *_ in left["files"]] == [f"{SITE}/native/lib.so"]

    def test_a_venv_that_changed_since_the_plan(self, donor: Path) -> None:
        with pytest.raises(DriftError) as caught:
            inventory(donor, fingerprint="that of another time")
        assert caught.value.id == "donor-changed"

    def test_two_owners_of_a_file(self, donor: Path, root: Path, base: Path, tmp_path: Path) -> None:
        one = venvs.make_wheel(tmp_path / "w", "one", "1", {"shared.so": "A = 1\n"})
        two = venvs.make_wheel(tmp_path / "w", "two", "1", {"shared.so": "A = 22\n"})
        venvs.install(donor, one, two)
        packages = {"one": "1", "two": "1"}
        _, notes = provisioned(root, base, brought(donor, root, base, packages), packages)
        assert "shared.so of one, two" in notes["shared-file"]


class TestWhatComesFromElsewhere:
    def manifest(self, **changes: Any) -> dict[str, Any]:
        file = ["lib/x.py", 1, 0o644, "0" * 64, 0, 0]
        return {**Manifest("/v", ["/v"], "lib", [("a", "1", "", 0)], [file]).to_dict(), **changes}  # type: ignore[list-item]

    def test_a_good_one(self) -> None:
        assert parse_manifest(self.manifest()).files[0].path == "lib/x.py"

    @pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "", "a//b", "./a", ".."])
    def test_paths_that_lead_out(self, path: str) -> None:
        for changes in (
            {"files": [[path, 1, 0o644, "0" * 64, 0, 0]]},
            {"links": {path: "x"}},
            {"site": path},
        ):
            with pytest.raises(StepError) as caught:
                parse_manifest(self.manifest(**changes))
            assert caught.value.id == "bad-manifest"

    @pytest.mark.parametrize(
        "row",
        [["x", 1, 0o644, "nohash", 0, 0], ["x", -1, 0o644, "0" * 64, 0, 0], ["x", 1, 0o4755, "0" * 64, 0, 0], ["x"]],
    )
    def test_rows_that_are_none(self, row: list[Any]) -> None:
        with pytest.raises(StepError) as caught:
            parse_manifest(self.manifest(files=[row]))
        assert caught.value.id == "bad-manifest"

    def test_a_link_cannot_lead_a_file_out(self, donor: Path, root: Path, base: Path, tmp_path: Path) -> None:
        found = inventory(donor)
        found["manifest"]["links"][f"{SITE}/some_lib"] = str(tmp_path)
        want = wanted(root, base, found)
        with pytest.raises((StepError, OSError)):
            received(root, want, sent(donor, want))
        assert not list(tmp_path.glob("*.py"))

    def test_files_nobody_asked_for(self, donor: Path, root: Path, base: Path) -> None:
        want = wanted(root, base, inventory(donor))
        with pytest.raises(StepError) as caught:
            received(root, want, encode_json(FILE, {"file": 9999, "offset": 0}))
        assert caught.value.id == "transfer-garbled"
        with pytest.raises(StepError) as caught:
            received(root, want, b"HTTP/1.1 400 Bad Request\r\n\r\n")
        assert caught.value.id == "transfer-garbled"

    def test_a_request_for_files_outside(self, donor: Path) -> None:
        with pytest.raises(StepError) as caught:
            sent(donor, {"files": [[0, "../../etc/passwd", 1, 0]]})
        assert caught.value.id == "bad-manifest"


def test_files_of_a_donor_that_nobody_asked_for(root: Path) -> None:
    with pytest.raises(StepError) as caught:
        received(root, {"digest": "0" * 64}, b"")
    assert caught.value.id == "donor-not-wanted"


def test_prune_forgets_transfers_that_nobody_went_on_with(donor: Path, root: Path, base: Path) -> None:
    release, _ = provisioned(root, base, brought(donor, root, base))
    old, young = root / "cache" / "donor" / ("0" * 64 + ".partial"), root / "cache" / "donor" / ("1" * 64)
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (1, 1))
    prune(str(root), 1, silent)
    assert not old.exists() and young.exists()
    assert len(list((root / "cache" / "staging").iterdir())) == 1 and release.exists()


def test_another_run_holds_the_lock(donor: Path, root: Path, base: Path) -> None:
    want = wanted(root, base, inventory(donor))
    with Lock(Layout(root).lock, "somebody"), pytest.raises(LockedError):
        received(root, want, sent(donor, want))


def test_no_space_is_said_before_anything_is_sent(
    donor: Path, root: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1000))
    with pytest.raises(StepError) as caught:
        wanted(root, base, inventory(donor))
    assert caught.value.id == "no-space" and caught.value.details["free_bytes"] == 1000
    assert "64.0 MiB to spare" in caught.value.message


def test_records_end_with_what_the_donor_read(donor: Path, root: Path, base: Path) -> None:
    import io

    want = wanted(root, base, inventory(donor))
    stream = io.BytesIO(sent(donor, want))
    kinds = []
    with pytest.raises(EOFError):
        while True:
            kinds.append(next_record(stream)[0])
    assert kinds.count(FILE) == kinds.count(END) == len(want["files"])


def test_hashes_are_kept_by_what_a_file_is(tmp_path: Path) -> None:
    from ddtree_deploy.release.hashes import HashCache

    file, cache = tmp_path / "file", tmp_path / "cache" / "hashes.json"
    file.write_bytes(b"one")
    first = HashCache(str(cache))
    digest = first.sha256(str(file))
    assert digest == venvs.sha256(file) and first.read_bytes == 3
    first.save()
    os.link(file, tmp_path / "hard")
    second = HashCache(str(cache))
    assert second.sha256(str(tmp_path / "hard")) == digest and second.read_bytes == 0
    venvs.edit(file, b"two")
    assert second.sha256(str(file)) == venvs.sha256(file) != digest
    cache.write_text("{not json")
    assert HashCache(str(cache)).known(str(file)) is None


def test_files_behind_links_that_lead_out_of_the_donor_are_files(
    donor: Path, root: Path, base: Path, tmp_path: Path
) -> None:
    """As ``uv pip install --link-mode symlink`` makes them, into uv's cache."""
    cache = tmp_path / "uv-cache"
    cache.mkdir()
    for name in ("extra.py", "native/lib.so", "extra-1.0.dist-info/METADATA"):
        (donor / SITE / name).rename(cache / Path(name).name)
        (donor / SITE / name).symlink_to(cache / Path(name).name)
    done = brought(donor, root, base)
    shutil.rmtree(cache)  # another host has none
    release, notes = provisioned(root, base, done)
    assert [path for path in release.rglob("*") if path.is_symlink() and str(cache) in str(path.readlink())] == []
    assert venvs.run([release / "bin" / "python", "-c", "import extra; print(extra.EXTRA)"]).stdout == "True\n"
    assert (release / SITE / "some_lib" / "link.py").readlink() == Path("new.py"), "one that stays inside is a link"
    assert notes == {}
