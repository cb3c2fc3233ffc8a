"""What is wrong with a host: its base venv, its root, its disk, its engine, its sources. See ``test_bad_input``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.base_venv import make_plain_venv, site_packages
from e2e.program import Program
from e2e.refused import AS_NOBODY, QUICK, as_root, refused
from e2e.small import Small, make_small, unmount
from profiles.small_wheels import wheel


class TestBase:
    def test_missing(self, small: Small) -> None:
        shutil.rmtree(small.base)
        for words in (("plan", "box"), QUICK):
            refused(small.program(), *words, code=3, id="base-missing", says=(str(small.base), "python3 -m venv"))
        assert not small.root.exists()

    @pytest.mark.parametrize("kind", ["folder", "file", "dangling"])
    def test_not_a_venv(self, small: Small, kind: str) -> None:
        shutil.rmtree(small.base)
        if kind == "folder":
            small.base.mkdir()
        elif kind == "file":
            small.base.touch()
        else:
            small.base.symlink_to(small.folder / "nothing")
        id = "base-missing" if kind == "dangling" else "base-not-a-venv"
        refused(small.program(), *QUICK, code=3, id=id, says=(str(small.base),))

    def test_whose_interpreter_is_gone(self, small: Small) -> None:
        for name in (small.base / "bin").glob("python*"):
            name.unlink()
            name.symlink_to("/nonexistent/python3")
        refused(small.program(), *QUICK, code=3, id="base-not-a-venv", says=(str(small.base),))

    def test_of_another_python(self, cpu: tuple[Path, Program]) -> None:
        """With a real one where there is one, and with what its facts would say."""
        base, program = cpu
        other = next(filter(None, map(shutil.which, ("python3.13", "python3.10", "python3.9"))), None)
        facts = base.parent / "facts.json"
        program.run("facts", "box", "--save", str(facts), code=0)
        text = json.loads(facts.read_text())
        text["base"]["python"] = "3.10.4"
        facts.write_text(json.dumps(text))
        says = ("3.10.4", ">=3.11,<3.13", str(base))
        refused(program, "plan", "box", "--facts", str(facts), code=3, id="base-python", says=says)
        if other is not None and subprocess.run([other, "-c", ""], check=False).returncode == 0:
            shutil.rmtree(base)
            subprocess.run([other, "-m", "venv", "--without-pip", str(base)], check=True)
            refused(program, "provision", "box", code=3, id="base-python", says=(">=3.11,<3.13", str(base)))

    def test_inside_the_root(self, small: Small) -> None:
        program = small.program((f"root: {small.root}", f"root: {small.folder}"))
        refused(program, *QUICK, code=3, id="base-inside-root", says=(str(small.base),))

    def test_around_the_root(self, small: Small) -> None:
        program = small.program((f"root: {small.root}", f"root: {small.base}/ours"))
        refused(program, *QUICK, code=3, id="root-inside-base", says=(str(small.base),))


class TestRoot:
    @pytest.mark.parametrize("below", ["", "/deeper"])
    def test_a_file_where_it_should_be(self, small: Small, below: str) -> None:
        small.root.write_text("mine")
        program = small.program((f"root: {small.root}", f"root: {small.root}{below}"))
        others = ("releases", "status", "stop", "logs", "rollback", "verify")
        words = [("plan", "box", "--playbook", "quick"), QUICK, ("prune", "box", "--keep", "1"), ("launch", "box")]
        for command in [*words, *((name, "box") for name in others)]:
            refused(program, *command, code=3, id="root-not-a-folder", says=(str(small.root),))
        assert small.root.read_text() == "mine"

    @as_root
    def test_that_cannot_be_written(self, small: Small) -> None:
        small.root.mkdir()
        program = _reachable(small, (f"root: {small.root}", f"root: {small.root}"))
        refused(program, *QUICK, code=3, id="root-not-writable", says=("nobody", str(small.root)))

    @as_root
    def test_on_a_file_system_that_is_read_only(self, small: Small) -> None:
        small.root.mkdir()
        _mount(small.root, "ro")
        try:
            refused(small.program(), *QUICK, code=3, id="root-not-writable", says=(str(small.root),))
        finally:
            unmount(small.root)

    @as_root
    def test_of_a_user_without_privileges(self, small: Small) -> None:
        """Not an error: all of it works in a folder of their own, and other people's releases are left alone."""
        small.root.mkdir()
        os.chown(small.root, 65534, 65534)
        program = _reachable(small)
        program.run(*QUICK, code=0)
        assert program.run(*QUICK, "--json", code=0).host["changed"] is False
        assert program.run("releases", "box", "--json", code=0).host["current"].startswith("small-")
        owners = {path.lstat().st_uid for path in small.root.rglob("*")}
        assert owners == {65534}

    @as_root
    def test_of_another_user(self, small: Small) -> None:
        small.program().run(*QUICK, code=0)
        program = _reachable(small)
        program.run("releases", "box", code=0)
        refused(program, "rollback", "box", code=5, id="root-not-writable", says=(str(small.root),))
        refused(program, "prune", "box", "--keep", "1", code=5, id="root-not-writable", says=(str(small.root),))
        assert "agent-crashed" not in program.run("launch", "box").err


class TestSpace:
    def test_a_plan_says_how_much_is_missing(self, cpu: tuple[Path, Program]) -> None:
        base, program = cpu
        file = base.parent / "facts.json"
        program.run("facts", "box", "--save", str(file), code=0)
        facts = json.loads(file.read_text())
        facts["root_disk"]["free_bytes"] = 1024**3
        file.write_text(json.dumps(facts))
        says = ("needed", "1.0 GiB are free", "are missing", "prune")
        refused(program, "plan", "box", "--facts", str(file), code=3, id="no-space", says=says)

    @as_root
    def test_on_a_real_disk(self, cpu: tuple[Path, Program]) -> None:
        base, program = cpu
        root = base.parent / "root"
        root.mkdir()
        _mount(root, "size=32m")
        try:
            refused(program, "provision", "box", code=3, id="no-space", says=("32.0 MiB are free", "missing", "tmpfs"))
            assert list(root.iterdir()) == []
        finally:
            unmount(root)


class TestEngine:
    def test_a_version_without_a_patch_set(self, tmp_path: Path) -> None:
        small = make_small(tmp_path, version="0.5.10")
        for words in (("plan", "box"), ("provision", "box")):
            refused(small.program(), *words, code=3, id="no-patch-set", says=("sglang 0.5.10", "playbook"))
        assert not small.root.exists()

    def test_a_patch_set_that_does_not_exist(self, small: Small) -> None:
        profile = small.folder / "overlays" / "small.yaml"
        profile.write_text(profile.read_text() + "patch_set: sglang-0.5.10\n", "utf-8")
        refused(small.program(), "plan", "box", code=3, id="no-patch-set", says=("sglang-0.5.10", "sglang-0.5.11"))

    def test_a_patch_set_of_another_version(self, tmp_path: Path) -> None:
        small = make_small(tmp_path, version="0.5.10")
        profile = small.folder / "overlays" / "small.yaml"
        profile.write_text(profile.read_text() + "patch_set: sglang-0.5.11\n", "utf-8")
        refused(small.program(), "plan", "box", code=3, id="patch-set-version", says=("0.5.11", "0.5.10"))

    def test_a_file_that_was_edited_by_hand(self, cpu: tuple[Path, Program]) -> None:
        """The base has the engine already: it would be kept, and patched."""
        base, program = cpu
        shutil.rmtree(base)
        make_plain_venv(base, "sglang==0.5.11")
        edited = site_packages(base) / "sglang/srt/speculative/spec_info.py"
        text = edited.read_text()
        edited.write_text(text + "# mine\n")
        for words in (("plan", "box"), ("provision", "box")):
            says = ("sglang/srt/speculative/spec_info.py",)
            refused(program, *words, code=3, id="engine-file-edited", says=says)
        assert edited.read_text().endswith("# mine\n")
        assert not (base.parent / "root").exists()


class TestSource:
    def test_a_corrupt_wheel(self, small: Small) -> None:
        (file,) = small.wheels.glob("sglang-*")
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
        refused(small.program(), *QUICK, code=3, id="wheel-corrupt", says=(file.name, "fetch it again"))
        assert not small.root.exists()

    @pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a zip"])
    def test_a_wheel_that_is_none(self, small: Small, content: bytes) -> None:
        (file,) = small.wheels.glob("sglang-*")
        file.write_bytes(content)
        refused(small.program(), *QUICK, code=3, id="wheel-corrupt", says=(file.name,))

    def test_a_wheel_of_another_build(self, small: Small) -> None:
        (file,) = small.wheels.glob("torch-*")
        wheel(small.wheels, "torch", "2.11.0", body=b"VERSION = 'another'")
        refused(small.program(), *QUICK, code=3, id="wheel-hash", says=(file.name, "sha256"))

    @pytest.mark.parametrize("tag", ["cp310-cp310-manylinux_2_34_x86_64", "py3-none-macosx_11_0_arm64", "py2-none-any"])
    def test_a_wheel_for_another_python_or_platform(self, small: Small, tag: str) -> None:
        (file,) = small.wheels.glob("torch-*")
        other = file.rename(small.wheels / f"torch-2.11.0-{tag}.whl")
        refused(small.program(), *QUICK, code=3, id="wheel-incompatible", says=(other.name, "Python 3."))

    def test_a_wheel_that_is_missing(self, small: Small) -> None:
        next(small.wheels.glob("torch-*")).unlink()
        refused(small.program(), *QUICK, code=3, id="wheel-missing", says=("torch 2.11.0", str(small.wheels)))

    def test_no_wheelhouse(self, small: Small) -> None:
        shutil.rmtree(small.wheels)
        refused(small.program(), *QUICK, code=3, id="wheelhouse-missing", says=(str(small.wheels),))

    @pytest.mark.parametrize("place", ["127.0.0.1:9", "no-such-index.invalid"])
    def test_an_index_that_cannot_be_reached(self, small: Small, place: str) -> None:
        program = small.program(UV_HTTP_RETRIES="0")
        words = (*QUICK, "--source", f"index:http://{place}/simple")
        refused(program, *words, code=5, id="index-unreachable", says=(place, "uv.log", "HTTPS_PROXY"))
        assert list((small.root / "releases").iterdir()) == []
        assert list(small.root.rglob("*.partial")) == []
        assert not (small.root / "current").is_symlink()
        small.program().run(*QUICK, code=0)

    def test_an_index_that_is_no_url(self, small: Small) -> None:
        refused(
            small.program(), *QUICK, "--source", "index:simple", code=3, id="bad-source", says=("--source", "https")
        )

    def test_a_donor_that_is_none(self, small: Small) -> None:
        refused(small.program(), *QUICK, "--source", "donor:/nonexistent", code=3, id="donor-missing", says=("/nonex",))
        empty, says = make_plain_venv(small.folder / "empty"), ("sglang 0.5.11",)
        refused(small.program(), *QUICK, "--source", f"donor:{empty}", code=3, id="donor-lacks", says=says)
        says = ("is the base venv itself",)
        refused(small.program(), *QUICK, "--source", f"donor:{small.base}", code=3, id="bad-source", says=says)

    def test_another_source_altogether(self, small: Small) -> None:
        refused(small.program(), *QUICK, "--source", "ftp:x", code=3, id="bad-source", says=("wheelhouse:FOLDER",))


def _reachable(small: Small, *changes: tuple[str, str]) -> Program:
    """The program as an unprivileged user who can reach the test's folders."""
    for folder in [small.folder, *small.folder.parents]:
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
        if folder.name.startswith("pytest-of-"):
            break
    # By a shell: setpriv itself may still run what its new user may not.
    tried = [*AS_NOBODY, "sh", "-c", '"$0" -c "import ddtree_deploy"', sys.executable]
    if subprocess.run(tried, capture_output=True, cwd="/", check=False).returncode != 0:
        pytest.skip("an unprivileged user cannot reach this Python or the program (below root's home)")
    home = small.folder / "home"
    home.mkdir(exist_ok=True)
    os.chown(home, 65534, 65534)
    cache = str(home / ".cache")
    return small.program(*changes, prefix=AS_NOBODY, HOME=str(home), XDG_CACHE_HOME=cache, UV_CACHE_DIR=f"{cache}/uv")


def _mount(folder: Path, options: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False)
    if done.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
