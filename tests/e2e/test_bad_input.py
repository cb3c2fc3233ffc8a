"""What is wrong with a host, an inventory or an argument: exit code, what, where and what to do, in one place.

Each case is the program in a process of its own, as users run it. Nothing may be left of a run that was refused.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.base_venv import make_plain_venv, site_packages
from e2e.fixtures import host_entry
from e2e.program import Program, Ran, mentioning
from e2e.small import Small, make_small, unmount
from profiles.small_wheels import wheel

QUICK = ("provision", "box", "--playbook", "quick")
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another user, or a file system of its own")


def refused(program: Program, *words: str, code: int, id: str, says: tuple[str, ...] = (), hint: bool = True) -> Ran:
    """The run ended with ``code`` and the error ``id``, which says ``says`` and what to do."""
    ran = program.run(*words, code=code)
    assert f"error: {id}\n" in ran.err, ran.said
    assert "Traceback" not in ran.err, ran.said
    assert not hint or "\nhint: " in ran.err, ran.said
    missing = [word for word in says if word not in ran.err]
    assert not missing, f"{missing}: {ran.said}"
    return ran


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Small]:
    small = make_small(tmp_path / "small")
    yield small
    assert mentioning(str(small.folder)) == {}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Small:
    """One with a release, for commands that need one."""
    small = make_small(tmp_path_factory.mktemp("released"))
    small.program().run(*QUICK, code=0)
    return small


@pytest.fixture
def cpu(tmp_path: Path) -> tuple[Path, Program]:
    """A base venv without packages, and the CPU profile on it; never provisioned."""
    base = make_plain_venv(tmp_path / "base")
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text("hosts:\n" + host_entry("box", tmp_path / "root", base, "37030-37039"), "utf-8")
    return base, Program(inventory)


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
        for words in (("plan", "box", "--playbook", "quick"), QUICK):
            refused(program, *words, code=3, id="root-not-a-folder", says=(str(small.root),))
        for command in ("releases", "status", "stop"):
            program.run(command, "box", code=0)
        for words in (("rollback", "box"), ("prune", "box", "--keep", "1"), ("launch", "box"), ("verify", "box")):
            assert "agent-crashed" not in program.run(*words, code=3).err
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
        says = ("sglang 0.5.11",)
        refused(small.program(), *QUICK, "--source", f"donor:{small.base}", code=3, id="donor-lacks", says=says)

    def test_another_source_altogether(self, small: Small) -> None:
        refused(small.program(), *QUICK, "--source", "ftp:x", code=3, id="bad-source", says=("wheelhouse:FOLDER",))


class TestGpus:
    def test_an_index_that_does_not_exist(self, small: Small) -> None:
        program = small.program(("budget: 31", "gpus: [7]"))
        refused(program, *QUICK, code=3, id="gpu-not-found", says=("GPU 7", "inventory"))

    def test_a_gpu_profile_without_one(self, cpu: tuple[Path, Program]) -> None:
        _, program = cpu
        words = ("plan", "box", "--profile", "sglang-0.5.11-cu130")
        refused(program, *words, code=3, id="no-gpu", says=("--without-gpu",))
        program.run(*words, "--without-gpu", code=2)

    def test_builds_that_only_another_index_has(self, cpu: tuple[Path, Program]) -> None:
        _, program = cpu
        words = ("plan", "box", "--profile", "sglang-0.5.11-cu128")
        refused(program, *words, code=3, id="profile-needs-index", says=("CUDA 12.8", "extra_index"))


LAUNCH: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "budget -1": (("--budget", "-1"), "budget-out-of-range", ("-1", "1 to 511")),
    "budget 0": (("--budget", "0"), "budget-out-of-range", ("budget 0", "none for plain decoding")),
    "budget 100000": (("--budget", "100000"), "budget-out-of-range", ("100000", "1 to 511")),
    "budget just above": (("--budget", "512"), "budget-out-of-range", ("512",)),
    "budget in words": (("--budget", "abc"), "budget-invalid", ("'abc'", "whole number")),
    "budget broken": (("--budget", "1.5"), "budget-invalid", ("'1.5'",)),
    "budget empty": (("--budget", ""), "budget-invalid", ("''",)),
    "budget auto on a CPU": (("--budget", "auto"), "budget-auto", ("CUDA graphs", "for example 31")),
    "model missing": (("--model", "/nonexistent/model"), "model-missing", ("/nonexistent/model",)),
    "model empty": (("--model", ""), "model-missing", ()),
    "model is no model": (("--model", "/usr"), "model-incomplete", ("config.json",)),
    "draft missing": (("--draft", "/nonexistent/model"), "draft-missing", ("/nonexistent/model",)),
    "draft empty": (("--draft", ""), "draft-missing", ()),
    "gpu missing": (("--gpus", "7"), "gpus-on-cpu", ("CPU",)),
    "gpus in words": (("--gpus", "first"), "bad-gpus", ("'first'",)),
    "algorithm unknown": (("--algorithm", "eagle"), "usage", ("'eagle'", "'ddtree'")),
    "release missing": (("--release", "small-0123456789ab"), "release-missing", ("small-0123456789ab",)),
    "option unknown": (("--budgets", "31"), "usage", ("--budgets",)),
}


class TestLaunch:
    @pytest.mark.parametrize("case", LAUNCH)
    def test_arguments(self, released: Small, case: str) -> None:
        words, id, says = LAUNCH[case]
        refused(released.program(), "launch", "box", *words, code=3, id=id, says=says)
        assert not list(released.root.glob("services/*/*"))  # nothing was even tried

    @pytest.mark.parametrize("budget", ["-1", "0", "100000", "512", "abc", "1.5", "'31'", "null"])
    def test_budgets_of_the_inventory(self, released: Small, budget: str) -> None:
        program = released.program(("budget: 31", f"budget: {budget}"))
        ran = program.run("launch", "box", code=3)
        assert "budget" in ran.err and "hint: " in ran.err
        if budget != "null":  # said nowhere is found out at launch, the others by place
            assert "hosts.yaml:10:13" in ran.err, ran.said

    def test_ports_that_are_used_up(self, released: Small) -> None:
        with socket.create_server(("127.0.0.1", 37020)), socket.create_server(("0.0.0.0", 37021)):
            program = released.program(("37020-37029", "37020-37022"))
            refused(program, "launch", "box", code=3, id="ports-exhausted", says=("37020-37022", "wider"))

    def test_without_a_release(self, small: Small) -> None:
        for words in (("launch", "box"), ("verify", "box")):
            refused(small.program(), *words, code=3, id="no-current-release", says=(str(small.root), "provision"))

    def test_an_engine_that_ends_at_once(self, released: Small) -> None:
        """The wheel has no server: exit 5 with the engine's own words, and nothing goes on."""
        try:
            says = ("cpu", "log")
            refused(released.program(), "launch", "box", code=5, id="engine-died", says=says)
            status = released.program().run("status", "box", code=1)
            assert "No module named" in status.out
            assert mentioning(str(released.root / "releases")) == {}
        finally:
            shutil.rmtree(released.root / "services")

    def test_a_service_that_was_never_launched(self, released: Small) -> None:
        refused(released.program(), "logs", "box", code=3, id="no-services", says=("launch",))
        refused(released.program(), "restart", "box", code=3, id="no-services")


class TestReleases:
    def test_missing(self, released: Small) -> None:
        program = released.program()
        known = program.run("releases", "box", "--json", code=0).host["current"]
        says = ("small-0123456789ab", known)
        refused(program, "rollback", "box", "--to", "small-0123456789ab", code=3, id="no-such-release", says=says)
        refused(program, "rollback", "box", "--to", "../../etc", code=3, id="bad-release-id", says=("../../etc",))
        refused(program, "rollback", "box", code=3, id="nothing-to-roll-back", says=(known,))
        refused(program, "verify", "box", "--release", "none", code=3, id="release-missing", says=("none",))
        for keep in ("-1", "all"):
            refused(program, "prune", "box", "--keep", keep, code=3, id="usage", says=("--keep",))
        assert program.run("releases", "box", "--json", code=0).host["current"] == known

    def test_nothing_was_ever_provisioned(self, small: Small) -> None:
        program = small.program()
        assert "no releases" in program.run("releases", "box", code=0).out
        refused(program, "rollback", "box", code=3, id="no-root", says=(str(small.root), "provision"))
        refused(program, "prune", "box", "--keep", "1", code=3, id="no-root", says=(str(small.root),))
        assert not small.root.exists()


NAMES: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "host": (("plan", "bax"), "unknown-host", ("'bax'", "did you mean box?")),
    "profile": (("plan", "box", "--profile", "smal"), "unknown-profile", ("'smal'", "did you mean small?")),
    "playbook": (("plan", "box", "--playbook", "quik"), "unknown-playbook", ("'quik'", "did you mean quick?")),
    "profile's file": (("plan", "box", "--profile", "./none.yaml"), "file-missing", ("none.yaml",)),
    "command": (("provisoin", "box"), "usage", ("provisoin",)),
    "no host": (("plan",), "usage", ("HOST",)),
    "donor's host": (("plan", "box", "--source", "donor:bax:/x"), "unknown-host", ("'bax'",)),
    "host of a venv": (("abi", "bax:/x"), "unknown-host", ("'bax'",)),
    "venv": (("abi", "/nonexistent/model"), "no-environment", ("/nonexistent/model",)),
}


class TestNames:
    @pytest.mark.parametrize("case", NAMES)
    def test_that_nobody_knows(self, released: Small, case: str) -> None:
        words, id, says = NAMES[case]
        refused(released.program(), *words, code=3, id=id, says=says)

    def test_a_step_of_a_playbook(self, small: Small) -> None:
        (small.folder / "quick.yaml").write_text("name: quick\nsteps: [clone, overly, activate]\n", "utf-8")
        refused(small.program(), *QUICK, code=3, id="unknown-step", says=("overly", "quick.yaml:2:16", "overlay"))

    def test_steps_in_a_wrong_order(self, small: Small) -> None:
        (small.folder / "quick.yaml").write_text("name: quick\nsteps: [overlay, clone, activate]\n", "utf-8")
        refused(small.program(), *QUICK, code=3, id="playbook-order", says=("quick.yaml:2",))

    def test_a_command_of_a_playbook_that_fails(self, small: Small) -> None:
        command = "{step: command, name: no luck, argv: ['{release}/bin/python', -c, 'raise SystemExit(7)']}"
        (small.folder / "quick.yaml").write_text(f"name: quick\nsteps: [clone, {command}, activate]\n", "utf-8")
        ran = small.program(("profile: small", "profile: small")).run(*QUICK)
        assert ran.code in (3, 5) and "Traceback" not in ran.err  # without the overlay the engine is missing: 3
        (small.folder / "quick.yaml").write_text(
            f"name: quick\nsteps: [clone, overlay, {command}, activate]\n", "utf-8"
        )
        refused(small.program(), *QUICK, code=5, id="command-failed", says=("no luck", "7"))
        assert not (small.root / "current").is_symlink()
        assert list((small.root / "releases").iterdir()) == []


INVENTORIES: dict[str, tuple[bytes, str, tuple[str, ...]]] = {
    "duplicate key": (
        b"hosts:\n  a: {connection: local}\n  a: {connection: local}\n",
        "yaml-duplicate-key",
        ("bad.yaml:3:3", "a"),
    ),
    "unknown key": (b"hosts:\n  a: {conection: local}\n", "unknown-key", ("bad.yaml:2:7", "conection", "connection")),
    "wrong type": (
        b"hosts:\n  a: {connection: local, gpus: some}\n",
        "wrong-type",
        ("bad.yaml:2:32", "gpus", "expected"),
    ),
    "empty": (b"", "yaml-empty", ("bad.yaml",)),
    "only comments": (b"# nothing\n", "yaml-empty", ("bad.yaml",)),
    "tab": (b"hosts:\n\ta: {}\n", "yaml-tab", ("bad.yaml:2:1", "spaces")),
    "not UTF-8": (b"hosts:\n  caf\xe9: {connection: local}\n", "not-utf8", ("bad.yaml:2", "UTF-8")),
    "anchor bomb": (
        b"a: &a [x, x, x, x, x, x, x, x, x]\n"
        + b"".join(
            b"%c: &%c [%s]\n" % (99 + n, 99 + n, b", ".join([b"*%c" % (98 + n if n else 97)] * 9)) for n in range(8)
        )
        + b"hosts: {}\n",
        "yaml-alias-bomb",
        ("bad.yaml",),
    ),
    "not YAML": (b"hosts: [\n", "yaml-syntax", ("bad.yaml",)),
    "a list": (b"- a\n- b\n", "wrong-type", ("bad.yaml:1:1",)),
    "no hosts": (b"hosts: {}\n", "no-hosts", ("bad.yaml:1",)),
    "relative root": (
        b"hosts:\n  a: {connection: local, root: opt}\n",
        "bad-path",
        ("bad.yaml:2:32", "root", "absolute"),
    ),
    "secret in the open": (b"hosts:\n  a: {connection: local, api_key: abc}\n", "secret-in-plain-text", ("env:NAME",)),
}


class TestInventory:
    @pytest.mark.parametrize("case", INVENTORIES)
    def test_of_every_kind(self, tmp_path: Path, case: str) -> None:
        content, id, says = INVENTORIES[case]
        file = tmp_path / "bad.yaml"
        file.write_bytes(content)
        refused(Program(file), "plan", "a", code=3, id=id, says=says, hint=False)

    def test_missing(self, tmp_path: Path) -> None:
        refused(Program(tmp_path / "none.yaml"), "plan", "a", code=3, id="file-missing", says=("none.yaml",))

    def test_a_folder(self, tmp_path: Path) -> None:
        refused(Program(tmp_path), "plan", "a", code=3, id="file-is-folder", says=(str(tmp_path),))

    def test_a_secret_that_is_not_set(self, released: Small) -> None:
        program = released.program(("budget: 31", "budget: 31\n    api_key: env:DDTREE_NO_SUCH_VARIABLE"))
        program.run("plan", "box", "--playbook", "quick", code=0)  # not needed for that
        ran = program.run("launch", "box", code=3)
        assert "DDTREE_NO_SUCH_VARIABLE" in ran.err and "hint: " in ran.err


FACTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "facts-not-json"),
    "half": (b'{"hostname": "a"', "facts-not-json"),
    "not text": (b"\xff\x00\x01", "facts-not-json"),
    "a list": (b"[]", "bad-document"),
    "of something else": (b'{"a": 1}', "bad-document"),
    "of a later version": (b'{"schema": 2}', "facts-schema"),
    "of two hosts": (b'{"hosts": [{}, {}]}', "bad-document"),
}


class TestFacts:
    @pytest.mark.parametrize("case", FACTS)
    def test_a_broken_file(self, released: Small, tmp_path: Path, case: str) -> None:
        content, id = FACTS[case]
        file = tmp_path / "facts.json"
        file.write_bytes(content)
        refused(released.program(), "plan", "box", "--facts", str(file), code=3, id=id, says=(str(file), "facts HOST"))

    def test_no_file(self, released: Small) -> None:
        words = ("plan", "box", "--facts", "/nonexistent.json")
        refused(released.program(), *words, code=3, id="facts-unreadable", says=("/nonexistent.json",))

    def test_provisioning_from_them(self, released: Small) -> None:
        words = ("provision", "box", "--facts", "/nonexistent.json")
        refused(released.program(), *words, code=3, id="usage", says=("--dry-run",))

    def test_of_another_base(self, released: Small, small: Small, tmp_path: Path) -> None:
        file = tmp_path / "facts.json"
        small.program().run("facts", "box", "--save", str(file), code=0)
        words = ("plan", "box", "--facts", str(file))
        refused(released.program(), *words, code=3, id="facts-of-another-base", says=(str(small.base),))

    def test_saved_where_nobody_can_write(self, released: Small) -> None:
        words = ("facts", "box", "--save", "/proc/none/facts.json")
        refused(released.program(), *words, code=3, id="facts-not-written", says=("/proc/none",))


def _reachable(small: Small, *changes: tuple[str, str]) -> Program:
    """The program as an unprivileged user who can reach the test's folders."""
    for folder in [small.folder, *small.folder.parents]:
        if folder.stat().st_uid == os.getuid() and not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o055)
        if folder.name.startswith("pytest-of-"):
            break
    home = small.folder / "home"
    home.mkdir(exist_ok=True)
    os.chown(home, 65534, 65534)
    cache = str(home / ".cache")
    return small.program(*changes, prefix=AS_NOBODY, HOME=str(home), XDG_CACHE_HOME=cache, UV_CACHE_DIR=f"{cache}/uv")


def _mount(folder: Path, options: str) -> None:
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False)
    if done.returncode != 0:
        pytest.skip("file systems cannot be mounted here")
