import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from patching_tree import EDITS, NEW, RELEASED, install, snapshot

from ddtree_deploy.errors import InputError
from ddtree_deploy.patching import engine
from ddtree_deploy.patching.commands import apply_path, check_path, export_path, reverse_path
from ddtree_deploy.patching.export import export
from ddtree_deploy.patching.series import load_patch_set
from ddtree_deploy.release.distributions import find_site


def package_files(site):
    return {k: v[0] for k, v in snapshot(site / "sglang").items()}


def test_round_trip(wheel, edited, site, tmp_path):
    out = tmp_path / "sglang-0.5.11"
    exported = export(wheel, edited, out)
    assert load_patch_set(str(out)) == exported
    engine.apply(exported, site)
    assert package_files(site) == package_files(edited)


def test_the_same_bytes_every_time(wheel, edited, tmp_path):
    first, second = tmp_path / "1/set", tmp_path / "2/set"
    for out in (first, second, second):
        export(wheel, edited, out)
    assert snapshot(first) == snapshot(second)


def test_known_names_order_and_introductions_stay(wheel, edited, patch_folder):
    patch = patch_folder / "0001-crlf.patch"
    patch.write_bytes(b"Why.\n\n" + patch.read_bytes())
    (edited / "sglang/__init__.py").write_text("edited = True\n")
    (edited / "sglang/no_newline.py").write_bytes(RELEASED["sglang/no_newline.py"])
    again = export(wheel, edited, patch_folder)
    assert [p.name for p in again.patches] == [
        "0001-crlf.patch",
        "0003-speculative-spec_info.patch",
        "0004-__init__.patch",
    ]
    assert patch.read_bytes().startswith(b"Why.\n\n--- a/")
    assert not (patch_folder / "0002-no_newline.patch").exists()
    assert load_patch_set(str(patch_folder)) == again


def test_byte_code_and_leftovers_do_not_count(wheel, edited, tmp_path):
    for name in ("__pycache__/x.cpython-311.pyc", ".hidden/x.py", "x.so", "spec_info.py.orig", "spec_info.py~"):
        path = edited / "sglang/srt" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"\xff\x00")
    (edited / "other_package.py").write_text("")
    exported = export(wheel, edited, tmp_path / "out")
    assert [n.path for n in exported.new_files] == list(NEW)
    assert [p.path for p in exported.patches] == sorted(EDITS)


def test_refusals(wheel, edited, site, tmp_path):
    (edited / "sglang/srt/untouched.py").unlink()
    binary = install(tmp_path / "binary", {**RELEASED, "sglang/data.bin": b"\xff"})
    other = install(tmp_path / "other", RELEASED, version="0.5.12")
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "sglang-0.5.11-cp311-cp311-linux_x86_64.whl"
    broken.write_bytes(b"not a zip")
    cases = {
        "export-deleted": (wheel, edited),
        "export-binary": (wheel, binary),
        "export-version": (wheel, other),
        "export-nothing": (wheel, site),
        "export-no-package": (wheel, tmp_path / "empty"),
        "bad-wheel": (broken, edited),
    }
    for id, (archive, tree) in cases.items():
        with pytest.raises(InputError) as refused:
            export(archive, tree, tmp_path / "out")
        assert refused.value.id == id
    for name in ("missing-1.0-py3-none-any.whl", "not-a-wheel.zip"):
        with pytest.raises(InputError) as refused:
            export(tmp_path / name, edited, tmp_path / "out")
        assert refused.value.id == "bad-wheel"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "id"),
    [("a\tb.py", "export-name"), ("a\\b.py", "export-name"), (b"a\xff.py", "export-name"), ("a" * 250, "export-name")],
)
def test_names_that_a_patch_set_cannot_hold(wheel, edited, tmp_path, name, id):
    """Found before it is written: what is written can be read."""
    (edited / "sglang" / os.fsdecode(name)).write_bytes(b"")
    with pytest.raises(InputError) as refused:
        export(wheel, edited, tmp_path / "out")
    assert refused.value.id == id and refused.value.message.isprintable()
    assert not (tmp_path / "out").exists()


def test_a_link_to_a_folder_is_not_left_out_silently(wheel, edited, tmp_path):
    for target in (tmp_path, "nowhere"):
        (edited / "sglang/more").symlink_to(target)
        with pytest.raises(InputError) as refused:
            export(wheel, edited, tmp_path / "out")
        assert refused.value.id == "export-link"
        (edited / "sglang/more").unlink()
    (edited / "sglang/same.py").symlink_to("crlf.py")
    patch_set = export(wheel, edited, tmp_path / "out")
    assert "sglang/same.py" in [new.path for new in patch_set.new_files]


@pytest.mark.parametrize("path", ["sglang/srt/untouched.py", "sglang/crlf.py", *NEW])
def test_a_mode_is_not_left_out_silently(wheel, edited, tmp_path, path):
    (edited / path).chmod(0o755)
    with pytest.raises(InputError) as refused:
        export(wheel, edited, tmp_path / "out")
    assert (refused.value.id, refused.value.where) == ("export-mode", path)


def test_modes_of_the_wheel_and_of_a_file_system_without_modes_do_not_count(edited, tmp_path):
    wheel = tmp_path / "sglang-0.5.11-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in RELEASED.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = (0o100755 if name.endswith("untouched.py") else 0o100644) << 16
            archive.writestr(info, content)
    (edited / "sglang/srt/untouched.py").chmod(0o755)
    export(wheel, edited, tmp_path / "out")
    for path in edited.rglob("*"):
        path.chmod(0o755)
    export(wheel, edited, tmp_path / "out")


def test_a_long_path_gives_a_patch_a_name_that_fits(tmp_path):
    path = "sglang/" + "/".join(["folder" * 8] * 6) + "/module.py"
    wheel = tmp_path / "sglang-0.5.11-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(path, b"a\n")
    tree = install(tmp_path / "tree", {path: b"b\n"})
    (patch,) = export(wheel, tree, tmp_path / "out").patches
    assert patch.name.endswith("folder-module.patch") and len(patch.name) < 120
    assert load_patch_set(str(tmp_path / "out")).patches == [patch]


def test_an_export_over_a_damaged_folder_repairs_it(wheel, edited, patch_folder):
    """As one leaves that was killed, or as somebody left it who worked in the wrong place."""
    before = snapshot(patch_folder)
    (patch_folder / "files" / next(iter(NEW))).write_text("changed here\n")
    (patch_folder / "0001-crlf.patch").write_text("")
    (patch_folder / "0002-no_newline.patch").unlink()
    export(wheel, edited, patch_folder)
    assert snapshot(patch_folder) == before


def test_two_new_files_of_one_source_get_their_own(wheel, edited, patch_folder):
    (new,) = load_patch_set(str(patch_folder)).new_files
    series = patch_folder / "series.yaml"
    series.write_text(f"{series.read_text()}- {{path: sglang/two.py, source: {new.source}, sha256: {new.sha256}}}\n")
    (edited / "sglang/two.py").write_text("another\n")
    export(wheel, edited, patch_folder)
    contents = {each.path: each.content for each in load_patch_set(str(patch_folder)).new_files}
    assert contents == {new.path: new.content, "sglang/two.py": "another\n"}


def test_places_that_a_patch_set_cannot_be_written_to(wheel, edited, tmp_path):
    (tmp_path / "file").touch()
    for name in ("linked", "stray", "folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "linked/files").symlink_to(tmp_path / "folder")
    (tmp_path / "stray/0009-other.patch").touch()
    (tmp_path / "link").symlink_to(edited / "sglang")
    cases = {
        "file": "export-not-written",
        "file/below": "export-not-written",
        "linked": "export-not-written",
        "stray": "series-unlisted",
        "link/set": "export-inside",
    }
    for name, id in cases.items():
        with pytest.raises(InputError) as refused:
            export(wheel, edited, tmp_path / name)
        assert refused.value.id == id, name
    assert not list((tmp_path / "folder").iterdir())
    assert [path.name for path in (tmp_path / "stray").iterdir()] == ["0009-other.patch"]


def test_what_is_no_folder_and_no_wheel_is_said(edited, wheel, tmp_path):
    file = tmp_path / "sglang-0.5.11-py3-none-any.whl"
    folder = tmp_path / "folder-1.0-py3-none-any.whl"
    folder.mkdir()
    nothing = tmp_path / "nothing-1.0-py3-none-any.whl"
    file.write_text("a file")
    for refuse, what, where in (
        (lambda: check_path(file), "a file, not a folder", file),
        (lambda: export_path(file, wheel, tmp_path / "out"), "a file, not a folder", file),
        (lambda: check_path(nothing), "no such folder", nothing),
        (lambda: export_path(edited, nothing, tmp_path / "out"), "no such file", nothing),
        (lambda: export_path(edited, folder, tmp_path / "out"), "a folder, not a wheel", folder),
    ):
        with pytest.raises(InputError, match=what) as refused:
            refuse()
        assert refused.value.where == str(where) and refused.value.hint.startswith("give ")


def test_a_corrupt_member_of_the_wheel(edited, tmp_path):
    path = tmp_path / "sglang-0.5.11-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("sglang/__init__.py", b"marker" * 10)
    path.write_bytes(path.read_bytes().replace(b"markermarker", b"markerMARKER", 1))
    with pytest.raises(InputError) as refused:
        export(path, edited, tmp_path / "out")
    assert refused.value.id == "bad-wheel"


@pytest.mark.parametrize("damage", ["stream", "encrypted", "method"])
def test_a_member_that_cannot_be_unpacked(edited, tmp_path, damage):
    path = tmp_path / "sglang-0.5.11-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("sglang/__init__.py", bytes(range(256)) * 9)
    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    if damage == "stream":
        content[48:60] = b"\xff" * 12
    elif damage == "encrypted":
        content[6] = content[directory + 8] = 1
    else:
        content[8] = content[directory + 10] = 99
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        export(path, edited, tmp_path / "out")
    assert refused.value.id == "bad-wheel"


def test_a_python_that_was_built_without_lzma_reads_wheels():
    code = "import sys; sys.modules['_lzma'] = None; import ddtree_deploy.patching.commands"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_commands_take_a_venv_or_site_packages(patch_folder, wheel, tmp_path):
    venv = tmp_path / "venv"
    site = install(venv / "lib/python3.11/site-packages", RELEASED)
    before = snapshot(site)
    name = str(patch_folder)
    assert check_path(venv, name).summary == "pristine"
    report = apply_path(venv, name)
    assert report.summary == "applied" and report.outcome and len(report.outcome.changed) == 4
    assert check_path(site, name).exit_code == 0
    assert export_path(venv, wheel, tmp_path / "again/sglang-0.5.11").digest == load_patch_set(name).digest
    (site / NEW_FILE).unlink()
    assert check_path(site, name).summary == "partly applied"
    reverse_path(venv, name)
    assert snapshot(site) == before
    (site / "sglang/crlf.py").write_text("edited\n")
    report = check_path(venv, name, wheel)
    assert report.exit_code == 1 and report.summary == "refused"
    assert any(state.edits for state in report.files)


NEW_FILE = next(iter(NEW))


def test_of_two_site_packages_folders_that_of_the_venv_s_python_is_taken(patch_folder, tmp_path):
    name = str(patch_folder)
    site = tmp_path / "venv/lib/python3.11/site-packages"
    install(site, RELEASED)
    (tmp_path / "venv/lib/python3.10/site-packages").mkdir(parents=True)
    with pytest.raises(InputError) as refused:
        check_path(tmp_path / "venv", name)
    assert refused.value.id == "no-venv"
    (tmp_path / "venv/pyvenv.cfg").write_text("home = /usr/bin\nversion_info = 3.11.2.final.0\n")
    assert check_path(tmp_path / "venv", name).site_packages == str(site)


def test_of_two_site_packages_folders_pyvenv_cfg_may_name_the_one_that_is_no_longer_used(patch_folder, tmp_path):
    """The system's Python was upgraded below the venv: its bin/python is another one, its pyvenv.cfg the old one."""
    venv = tmp_path / "venv"
    site = install(venv / "lib/python3.11/site-packages", RELEASED)
    (venv / "lib/python3.10/site-packages").mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.10.2\n")
    (venv / "bin").mkdir()
    (tmp_path / "python3.11").touch(0o755)
    (tmp_path / "python3").symlink_to("python3.11")
    (venv / "bin/python").symlink_to(tmp_path / "python3")
    assert check_path(venv, str(patch_folder)).site_packages == str(site)
    assert find_site(str(venv)) == "lib/python3.11/site-packages"
    (venv / "bin/python").unlink()
    (venv / "bin/python").touch(0o755)  # a copy, whose name says nothing
    assert find_site(str(venv)) == "lib/python3.10/site-packages"


def test_commands_name_what_exists(tmp_path):
    site = install(tmp_path / "site", RELEASED, version="0.4.0")
    with pytest.raises(InputError) as refused:
        check_path(site)
    assert refused.value.id == "engine-version" and "sglang-0.5.11" in refused.value.message
    for path in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError) as refused:
            check_path(path)
        assert refused.value.exit_code == 3


@pytest.mark.parametrize("run", [check_path, apply_path, reverse_path])
def test_files_that_cannot_be_read_are_no_bug(patch_folder, site, run, monkeypatch):
    def read(self):
        if self.name == "crlf.py":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self)

    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", read)
    with pytest.raises(InputError) as refused:
        run(site, str(patch_folder))
    assert (refused.value.id, refused.value.where) == ("tree-unreadable", f"{site}/sglang/crlf.py")


def test_record_that_is_a_folder_is_no_bug(patch_folder, site):
    record = site / "sglang-0.5.11.dist-info/RECORD"
    record.unlink()
    record.mkdir()
    with pytest.raises(InputError) as refused:
        check_path(site, str(patch_folder))
    assert refused.value.id == "tree-unreadable"


def test_the_wheel_must_be_the_engines(patch_folder, site, tmp_path):
    other = tmp_path / "sglang-0.5.12-py3-none-any.whl"
    with zipfile.ZipFile(other, "w") as archive:
        archive.writestr("sglang/__init__.py", b"")
    with pytest.raises(InputError) as refused:
        check_path(site, str(patch_folder), other)
    assert refused.value.id == "wheel-version"


@pytest.mark.parametrize("version", ["0.5.11.0", "v0.5.11"])
def test_another_spelling_of_the_version_is_the_same_version(patch_folder, wheel, version, tmp_path):
    """As everywhere in a plan: what it lets pass must not be refused on the host."""
    site = install(tmp_path / version, RELEASED, version=version)
    name = str(patch_folder)
    same = wheel.rename(wheel.with_name("sglang-0.5.11.0-py3-none-any.whl"))
    assert check_path(site, name, same).summary == "pristine"
    assert apply_path(site, name, same).summary == "applied"
    assert export_path(site, same, tmp_path / "out").patches == load_patch_set(name).patches
    assert reverse_path(site, name).summary == "pristine"


def test_the_build_that_a_local_version_names_is_told_by_hashes(patch_folder, wheel, tmp_path):
    """As in a plan, which keeps such an engine and takes it from donors."""
    site = install(tmp_path / "site", RELEASED, version="0.5.11+cu130")
    assert apply_path(site, str(patch_folder), wheel).summary == "applied"
    assert reverse_path(site, str(patch_folder), wheel).summary == "pristine"
    (site / "sglang/crlf.py").write_bytes(b"another build\n")
    assert check_path(site, str(patch_folder)).summary == "refused"

    own = install(tmp_path / "own", RELEASED, version="0.5.11+local")
    with pytest.raises(InputError) as refused:
        check_path(own, str(patch_folder))
    assert refused.value.id == "engine-version"


def test_the_shipped_set_is_found_by_another_spelling_of_the_version(tmp_path):
    site = install(tmp_path / "site", RELEASED, version="0.5.11.0")
    assert check_path(site).patch_set == "sglang-0.5.11"
