"""Everything in a venv that can name its own path, in one base venv: nothing of it is left in the clone."""

from __future__ import annotations

import csv
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest
import venvs

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.release.clone import choose_method, clone_tree, finish_folders
from ddtree_deploy.release.executor import apply_plan
from ddtree_deploy.release.files import record_hash_file
from ddtree_deploy.release.relocate import old_paths


def provision(root: Path, base: Path) -> Tuple[Path, Dict[str, Any]]:
    actions = [venvs.clone_action(base, "test-1", "d" * 64), venvs.activate_action()]
    result = apply_plan({"plan": venvs.make_plan(root, base, "test-1", actions)}, silent)
    return root / "releases" / "test-1", result


def furnish(base: Path) -> None:
    """Add what installers and people leave in venvs."""
    site = base / venvs.SITE
    (site / "local.pth").write_text(f"{base}/src\nimport sys\n")
    (site / "legacy.egg-link").write_text(f"{base}/src/legacy\n../")
    (site / "__editable___proj_1_0_finder.py").write_text(f"MAPPING = {{'proj': '{base}/src/proj'}}\n")
    info = site / "proj-1.0.dist-info"
    info.mkdir()
    (info / "direct_url.json").write_text(
        json.dumps({"dir_info": {"editable": True}, "url": f"file://{base}/src/proj"})
    )
    (info / "METADATA").write_text("Name: proj\nVersion: 1.0\n")
    finder = (site / "__editable___proj_1_0_finder.py").read_bytes()
    (info / "RECORD").write_text(
        f"__editable___proj_1_0_finder.py,{venvs.record_hash(finder)},{len(finder)}\n"
        f"proj-1.0.dist-info/direct_url.json,,\n../../../bin/loose,,\nproj-1.0.dist-info/RECORD,,\n"
    )
    (base / "src" / "proj").mkdir(parents=True)
    (base / "src" / "proj" / "__init__.py").write_text("WHO = __file__\n")
    kernel = base / "share" / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    (kernel / "kernel.json").write_text(json.dumps({"argv": [f"{base}/bin/python", "-m", "ipykernel_launcher"]}))
    (base / "bin" / "loose").write_text(f"#!{base}/bin/python\nprint('loose')\n")
    (base / "bin" / "loose").chmod(0o755)
    with (base / "pyvenv.cfg").open("a") as stream:
        stream.write(f"command = {sys.executable} -m venv {base}\n")
    cache = site / "some_lib" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "old.cpython-311.pyc").write_bytes(b"\x00" + str(base).encode())


def test_nothing_names_the_base(root: Path, base: Path) -> None:
    furnish(base)
    before = venvs.tree_state(base)
    release, result = provision(root, base)
    assert venvs.mentions(release, str(base)) == []
    assert venvs.tree_state(base) == before
    assert result["notes"] == []
    assert venvs.run([release / "bin" / "loose"]).stdout == "loose\n"
    where = venvs.run([release / "bin" / "python", "-c", "import sys; print(sys.path[-1])"]).stdout.strip()
    assert where == f"{release}/src"
    url = json.loads((release / venvs.SITE / "proj-1.0.dist-info" / "direct_url.json").read_text())["url"]
    assert url == f"file://{release}/src/proj"
    assert not list(release.rglob("__pycache__/old*"))
    assert f"-m venv {release}" in (release / "pyvenv.cfg").read_text()


def test_records_agree_with_the_rewritten_files(root: Path, base: Path) -> None:
    furnish(base)
    release, _ = provision(root, base)
    checked = 0
    for record in (release / venvs.SITE).glob("*.dist-info/RECORD"):
        with record.open(newline="") as stream:
            for path, digest, size in csv.reader(stream):
                file = release / venvs.SITE / path
                if digest:
                    assert record_hash_file(file) == (digest, int(size)), path
                    checked += 1
    assert checked > 6
    row = (release / venvs.SITE / "proj-1.0.dist-info" / "RECORD").read_text().splitlines()[2]
    assert row == "../../../bin/loose,,"  # had no hash, gets none


@pytest.mark.parametrize("shell", ["sh", "bash"])
@pytest.mark.parametrize("folder", ["root", "my root"])
def test_activate_works(tmp_path: Path, base: Path, shell: str, folder: str) -> None:
    release, _ = provision(tmp_path / folder, base)
    script = f'. "{release}/bin/activate" && command -v engine && echo "$VIRTUAL_ENV" && deactivate'
    done = subprocess.run(
        [shell, "-c", script], check=True, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.stdout.splitlines() == [f"{release}/bin/engine", str(release)]
    assert "(test-1) " in (release / "bin" / "activate").read_text()


def test_every_activate_script_names_the_release(root: Path, base: Path) -> None:
    release, _ = provision(root, base)
    for name in ("activate", "activate.csh", "activate.fish"):
        text = (release / "bin" / name).read_text()
        assert str(release) in text, name
        assert str(base) not in text, name


def test_uv_venvs_with_every_shell(root: Path, tmp_path: Path) -> None:
    base = tmp_path / "uv-base"
    venvs.run([venvs.UV, "venv", "--no-project", "--python", sys.executable, base])
    release, _ = provision(root, base)
    assert venvs.mentions(release, str(base)) == []
    names = sorted(path.name for path in (release / "bin").glob("activate*") if str(release) in path.read_text())
    assert {"activate", "activate.csh", "activate.fish", "activate.nu"} <= set(names)


def test_a_base_given_by_a_symlink_and_known_by_a_third_name(
    root: Path, tmp_path: Path, wheels: Dict[str, Path]
) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "mount").symlink_to("disk")
    base = venvs.make_venv(tmp_path / "mount" / "base")  # calls itself .../mount/base
    venvs.install(base, wheels["engine-1"])
    (tmp_path / "given").symlink_to(tmp_path / "disk" / "base")
    (base / venvs.SITE / "a.pth").write_text(f"{tmp_path}/disk/base/x\n{tmp_path}/given/y\n")
    assert old_paths(str(tmp_path / "given")) == [
        str(tmp_path / "given"),
        str(tmp_path / "disk" / "base"),
        str(tmp_path / "mount" / "base"),
    ]
    release, _ = provision(root, tmp_path / "given")
    for name in ("given", "mount/base", "disk/base"):
        assert venvs.mentions(release, str(tmp_path / name)) == []
    assert (release / venvs.SITE / "a.pth").read_text() == f"{release}/x\n{release}/y\n"
    assert venvs.run([release / "bin" / "engine"]).stdout.startswith("engine 1.0")


@pytest.mark.parametrize("name", ["with blank", "größe", "plus+and%percent"])
def test_base_and_root_with_unusual_names(tmp_path: Path, wheels: Dict[str, Path], name: str) -> None:
    base = venvs.make_venv(tmp_path / f"base {name}")
    venvs.install(base, wheels["engine-1"])
    (base / venvs.SITE / "x.json").write_text(json.dumps({"path": f"{base}/x"}))
    (base / venvs.SITE / "y.json").write_text(json.dumps({"url": (base / "x").as_uri()}))
    release, _ = provision(tmp_path / f"root {name}", base)
    assert json.loads((release / venvs.SITE / "x.json").read_text())["path"] == f"{release}/x"
    assert json.loads((release / venvs.SITE / "y.json").read_text())["url"] == (release / "x").as_uri()
    assert venvs.run([release / "bin" / "engine"]).stdout.startswith("engine 1.0")


def test_a_long_root_gets_scripts_that_run(tmp_path: Path, base: Path) -> None:
    release, _ = provision(tmp_path / ("r" * 120) / "root", base)
    assert (release / "bin" / "engine").read_bytes().startswith(b"#!/bin/sh\n'''exec'")
    assert venvs.run([release / "bin" / "engine"]).stdout.startswith("engine 1.0")


def test_a_compiled_file_that_names_the_base_is_reported(root: Path, base: Path) -> None:
    (base / venvs.SITE / "ext.so").write_bytes(b"\x7fELF\x00" + str(base).encode() + b"/lib\x00")
    release, result = provision(root, base)
    assert [note["id"] for note in result["notes"]] == ["binary-mentions-base"]
    assert "ext.so" in result["notes"][0]["message"]
    assert result["actions"][0]["result"]["binary_mentions"] == [f"{venvs.SITE}/ext.so"]
    assert (release / venvs.SITE / "ext.so").stat().st_ino == (base / venvs.SITE / "ext.so").stat().st_ino


def test_a_zip_with_a_shebang_gets_its_first_line_rewritten(root: Path, base: Path) -> None:
    (base / "bin" / "app.pyz").write_bytes(f"#!{base}/bin/python\n".encode() + b"PK\x03\x04\x00\x00")
    release, result = provision(root, base)
    assert (release / "bin" / "app.pyz").read_bytes() == f"#!{release}/bin/python\n".encode() + b"PK\x03\x04\x00\x00"
    assert result["notes"] == []


def test_symlinks(root: Path, base: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_text("outside")
    links = base / "links"
    links.mkdir()
    (links / "relative").symlink_to("../pyvenv.cfg")
    (links / "absolute").symlink_to(base / "pyvenv.cfg")
    (links / "folder").symlink_to(base / "lib")
    (links / "host").symlink_to(outside)
    (links / "out-and-in").symlink_to("../../base/pyvenv.cfg")
    (links / "leaves").symlink_to("../../outside")
    (links / "dangling").symlink_to("nowhere")
    release, _ = provision(root, base)
    found = {path.name: str(path.readlink()) for path in (release / "links").iterdir()}
    assert found == {
        "relative": "../pyvenv.cfg",
        "absolute": f"{release}/pyvenv.cfg",
        "folder": f"{release}/lib",
        "host": str(outside),
        "out-and-in": f"{release}/pyvenv.cfg",
        "leaves": str(outside),
        "dangling": "nowhere",
    }
    assert (release / "lib64").resolve() == (release / "lib").resolve()
    assert (release / "bin" / "python").resolve() == (base / "bin" / "python").resolve()


def test_odd_names_modes_and_special_files(root: Path, base: Path) -> None:
    odd = base / "odd"
    (odd / "empty").mkdir(parents=True)
    (odd / "line\nbreak").write_text(f"x {base} y")
    Path(os.fsdecode(os.fsencode(odd) + b"/caf\xe9")).write_text(f"z {base}")
    (odd / "secret").write_text("x")
    (odd / "secret").chmod(0o600)
    os.mkfifo(odd / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(odd / "socket"))
    os.link(odd / "secret", odd / "twin")
    (odd / "locked").mkdir()
    (odd / "locked" / "file").write_text(str(base))
    (odd / "locked").chmod(0o555)
    os.utime(odd / "empty", ns=(10**9, 10**9))
    before = venvs.tree_state(base)
    release, result = provision(root, base)
    assert venvs.tree_state(base) == before
    assert (release / "odd" / "line\nbreak").read_text() == f"x {release} y"
    assert Path(os.fsdecode(os.fsencode(release) + b"/odd/caf\xe9")).read_text() == f"z {release}"
    assert (release / "odd" / "empty").stat().st_mtime_ns == 10**9
    assert stat.S_IMODE((release / "odd" / "locked").stat().st_mode) == 0o555
    assert stat.S_IMODE((release / "odd" / "secret").stat().st_mode) == 0o600
    assert (release / "odd" / "twin").stat().st_ino == (release / "odd" / "secret").stat().st_ino
    assert not (release / "odd" / "pipe").exists()
    assert [note["id"] for note in result["notes"]] == ["special-files"]
    assert sorted(result["actions"][0]["result"]["skipped"]) == ["odd/pipe", "odd/socket"]
    (base / "odd" / "locked").chmod(0o755)


@pytest.mark.parametrize("method", ["hardlink", "copy"])
def test_methods_give_the_same_tree(base: Path, tmp_path: Path, method: str) -> None:
    os.link(base / "pyvenv.cfg", base / "twin.cfg")
    cloned = clone_tree(str(base), str(tmp_path / "clone"), method, silent)
    finish_folders(str(tmp_path / "clone"), cloned.folders)
    assert venvs.tree_state(tmp_path / "clone") == venvs.tree_state(base)
    one, two = tmp_path / "clone" / "pyvenv.cfg", tmp_path / "clone" / "twin.cfg"
    assert one.stat().st_ino == two.stat().st_ino
    assert (one.stat().st_ino == (base / "pyvenv.cfg").stat().st_ino) == (method == "hardlink")


def test_another_file_system_means_a_copy(base: Path) -> None:
    shm = Path("/dev/shm")
    if not shm.is_dir() or shm.stat().st_dev == base.stat().st_dev:
        pytest.skip("no second file system here")
    assert choose_method(str(base / "pyvenv.cfg"), str(shm)) == "copy"
    assert choose_method(str(base / "pyvenv.cfg"), str(base)) in ("hardlink", "reflink")
    assert not [path for path in base.iterdir() if "probe" in path.name]


def test_system_site_packages_is_a_warning(root: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    venvs.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", base])
    _, result = provision(root, base)
    assert [(note["severity"], note["id"]) for note in result["notes"]] == [("warning", "system-site-packages")]


@pytest.mark.parametrize(
    ("root_at", "base_at", "id"),
    [
        ("base/root", "base", "root-inside-base"),
        ("root", "root/base", "base-inside-root"),
        ("base", "base", "base-inside-root"),
    ],
)
def test_nested_places_are_refused(tmp_path: Path, root_at: str, base_at: str, id: str) -> None:
    base = venvs.make_venv(tmp_path / base_at)
    before = set(base.rglob("*"))
    with pytest.raises(InputError) as caught:
        provision(tmp_path / root_at, base)
    assert caught.value.id == id
    assert {path for path in set(base.rglob("*")) - before if path.is_file()} <= {
        tmp_path / root_at / "journal.jsonl",
        tmp_path / root_at / "lock",
    }


@pytest.mark.parametrize("kind", ["missing", "folder", "file"])
def test_a_base_that_is_no_venv(tmp_path: Path, root: Path, kind: str) -> None:
    base = tmp_path / "base"
    if kind == "folder":
        base.mkdir()
    elif kind == "file":
        base.write_text("")
    with pytest.raises(InputError) as caught:
        provision(root, base)
    assert caught.value.id == "base-not-a-venv"
    assert not (root / "current").is_symlink()
