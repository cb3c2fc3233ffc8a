"""What is wrong with an inventory, an argument or a file: exit code, what, where and what to do. Hosts: test_bad_hosts.

Each case is the program in a process of its own, as users run it. Nothing may be left of a run that was refused.
"""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from e2e.program import Program
from e2e.refused import QUICK, refused
from e2e.small import Small
from processes import mentioning


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
    "budget empty": (("--budget", ""), "empty-value", ("--budget",)),
    "budget auto on a CPU": (("--budget", "auto"), "budget-auto", ("CUDA graphs", "for example 31")),
    "model missing": (("--model", "/nonexistent/model"), "model-missing", ("/nonexistent/model",)),
    "model empty": (("--model", ""), "empty-value", ("--model",)),
    "model is no model": (("--model", "/usr"), "model-incomplete", ("config.json",)),
    "draft missing": (("--draft", "/nonexistent/model"), "draft-missing", ("/nonexistent/model",)),
    "draft empty": (("--draft", ""), "empty-value", ("--draft",)),
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
        with socket.create_server(("127.0.0.1", 18020)), socket.create_server(("0.0.0.0", 18021)):
            program = released.program(("18020-18029", "18020-18022"))
            refused(program, "launch", "box", code=3, id="ports-exhausted", says=("18020-18022", "wider"))

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
