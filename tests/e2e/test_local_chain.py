"""The main job on this machine, in the order in which people do it: one test a step, on one real release."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from e2e.base_venv import make_plain_venv, site_packages
from e2e.engine_client import generate
from e2e.fixtures import PROFILE, LocalRelease, host_entry
from e2e.program import Program, end, environment, kill_with_agent
from e2e.snapshot import Entry, mentions, snapshot, without_links
from processes import mentioning, wait_until

STEPS = ["clone", "overlay", "patch", "audit", "smoke", "activate"]
CHECKS = ["torch", "torchvision", "algorithm", "modules", "kernel", "server"]


def shell(command: str, **options: Any) -> str:
    """What bash says, in an environment without venvs."""
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment(), **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def journal(root: Path) -> list[dict[str, Any]]:
    """Its whole lines: a run may be writing one."""
    return [json.loads(line) for line in (root / "journal.jsonl").read_text().split("\n")[:-1]]


class TestProvision:
    def test_a_dry_run_says_what_would_be_done(self, local_release: LocalRelease) -> None:
        planned = local_release.planned
        assert planned.code == 2, planned.said
        plan = planned.host["plan"]
        assert [action["step"] for action in plan["actions"]] == STEPS
        changes = {change["name"]: change for change in plan["packages"]}
        assert (changes["packaging"]["change"], changes["packaging"]["old_version"]) == ("replace", "23.2")
        assert changes["sglang"]["new_version"] == "0.5.11"
        assert "cowsay" not in changes
        assert {file["change"] for file in plan["files"]} == {"patch", "new", "shim"}
        assert "sglang/srt/speculative/ddtree_utils.py" in [file["path"] for file in plan["files"]]

    def test_what_was_planned_is_what_was_executed(self, local_release: LocalRelease) -> None:
        planned, executed = local_release.planned.host["plan"], local_release.provisioned.host["plan"]
        assert executed["actions"] == planned["actions"]
        assert executed["packages"] == planned["packages"]
        done = local_release.provisioned.host["result"]
        assert [action["id"] for action in done["actions"]] == [action["id"] for action in planned["actions"]]
        assert done["release_id"] == planned["release_id"] == local_release.current

    def test_killed_while_packages_are_fetched_the_next_run_finishes(self, local_release: LocalRelease) -> None:
        assert local_release.interrupted.code == -signal.SIGKILL
        assert local_release.after_kill  # it was in the middle of something
        notes = [note["id"] for note in local_release.provisioned.host["result"]["notes"]]
        assert "previous-run-interrupted" in notes
        assert list(local_release.root.rglob("*.partial")) == []

    def test_the_second_time_there_is_nothing_to_do(self, local_release: LocalRelease) -> None:
        entries = len(journal(local_release.root))
        again = local_release.program.run("provision", "box", code=0)
        assert "nothing to do" in again.out
        assert local_release.program.run("provision", "box", "--json", code=0).host["changed"] is False
        assert local_release.program.run("plan", "box", "--json", code=0).host["plan"]["actions"] == []
        assert len(journal(local_release.root)) == entries

    def test_the_base_venv_is_what_it_was(self, local_release: LocalRelease) -> None:
        now = snapshot(local_release.base)
        assert without_links(now) == without_links(local_release.base_before)
        shared = [path for path, entry in now.items() if entry[2] > local_release.base_before[path][2]]
        assert len(shared) > 100  # or the test would show nothing: the clone shares inodes

    def test_the_release_mentions_neither_base_nor_workshop(self, local_release: LocalRelease) -> None:
        (staging,) = (local_release.root / "cache" / "staging").iterdir()
        words = [str(local_release.base), str(staging), f"{local_release.id}.partial"]
        assert mentions(local_release.path, words, shared_with=staging) == []

    def test_scripts_of_the_release_work_from_there(self, local_release: LocalRelease) -> None:
        release, base = local_release.path, local_release.base
        assert shell(f"{release}/bin/exec-form").split() == ["script", str(release)]
        assert shell(f"{release}/bin/cowsay -t moo")
        assert str(release) in shell(f"{release}/bin/pip --version")
        assert str(base) not in shell(f"{release}/bin/python -m site")
        assert shell(f"echo a | {release}/bin/tabulate")
        activated = shell(f"source {release}/bin/activate && which python && echo $VIRTUAL_ENV && deactivate")
        assert activated.split() == [f"{release}/bin/python", str(release)]
        config = (release / "pyvenv.cfg").read_text()
        assert f"-m venv {release}\n" in config
        assert (base / "pyvenv.cfg").read_text().split("\ncommand")[0] == config.split("\ncommand")[0]

    def test_editable_installs_and_path_files_work_from_there(self, local_release: LocalRelease) -> None:
        release, outside = local_release.path, local_release.folder / "outer"
        name, file, prefix = shell(f"{release}/bin/inner").split()
        assert (name, file, prefix) == ("inner", f"{release}/src/inner/sources/__init__.py", str(release))
        name, file, prefix = shell(f"{release}/bin/outer").split()
        assert (name, file, prefix) == ("outer", f"{outside}/src/outer/__init__.py", str(release))
        code = "import from_path_file; print(from_path_file.PLACE)"
        assert shell(f"{release}/bin/python -c '{code}'").strip() == f"{release}/extra/from_path_file.py"
        site = site_packages(release)
        url = json.loads((site / "inner-1.0.dist-info" / "direct_url.json").read_text())["url"]
        assert url == f"file://{release}/src/inner"
        url = json.loads((site / "outer-1.0.dist-info" / "direct_url.json").read_text())["url"]
        assert url == f"file://{outside}"

    def test_records_of_the_release_are_true(self, local_release: LocalRelease) -> None:
        """As an installer would see it: every file of its RECORDs is there with that hash."""
        code = (
            "import base64, hashlib, importlib.metadata as m\n"
            "import sysconfig\n"
            "for d in m.distributions(path=[sysconfig.get_path('purelib')]):\n"
            "    if d.name in ('cowsay', 'inner', 'outer', 'packaging', 'tabulate', 'pip', 'sglang'):\n"
            "        for f in d.files:\n"
            "            p = f.locate()\n"
            "            if not p.exists(): print('missing', d.name, f)\n"
            "            elif f.hash:\n"
            "                h = hashlib.new(f.hash.mode, p.read_bytes()).digest()\n"
            "                h = base64.urlsafe_b64encode(h).rstrip(b'=').decode()\n"
            "                if h != f.hash.value: print('differs', d.name, f)\n"
        )
        done = subprocess.run([local_release.python, "-c", code], capture_output=True, text=True, check=True)
        missing = [line for line in done.stdout.splitlines() if "__pycache__" not in line]
        assert missing == []

    def test_no_file_of_the_release_that_was_changed_is_shared(self, local_release: LocalRelease) -> None:
        record = json.loads((local_release.path / ".ddtree" / "release.json").read_text())
        changed = [local_release.path / path for path in record["rewritten"]]
        changed += [
            site_packages(local_release.path) / file["path"] for file in record["files"] if file["change"] != "shim"
        ]
        assert len(changed) > 20
        assert [str(path) for path in changed if path.exists() and path.stat().st_nlink > 1] == []


class TestVerify:
    def test_every_check_has_its_result(self, local_release: LocalRelease) -> None:
        junit = local_release.folder / "verify.xml"
        ran = local_release.program.run("verify", "box", "--json", "--junit", str(junit), code=0)
        assert ran.host["ok"] and ran.host["release"] == local_release.id
        assert [check["id"] for check in ran.host["checks"]] == CHECKS
        assert {check["status"] for check in ran.host["checks"]} <= {"ok", "warning"}
        cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
        assert len(cases) == len(CHECKS)
        assert not [case for case in cases if case.find("failure") is not None]

    def test_static_as_a_table(self, local_release: LocalRelease) -> None:
        ran = local_release.program.run("verify", "box", "--static", code=0)
        assert local_release.id in ran.out

    def test_a_changed_engine_file_is_found(self, local_release: LocalRelease) -> None:
        file = site_packages(local_release.path) / "sglang/srt/speculative/ddtree_utils.py"
        before = file.read_bytes()
        try:
            file.write_bytes(before + b"\n# edited\n")
            ran = local_release.program.run("verify", "box", "--static", code=1)
            assert "ddtree_utils.py" in ran.out
        finally:
            file.write_bytes(before)


class TestAbi:
    def test_the_release_has_no_errors(self, local_release: LocalRelease) -> None:
        report = local_release.program.run("abi", f"box:{local_release.path}", "--json", timeout=300, code=0).host
        assert report["counts"]["error"] == 0
        assert report["torch"].startswith("2.") and report["distributions"] > 100

    def test_the_difference_to_the_base(self, local_release: LocalRelease) -> None:
        places = (f"box:{local_release.base}", f"box:{local_release.id}")
        found = local_release.program.run("diff", *places, "--json", timeout=300, code=0).host
        changes = {change["name"]: change for change in found["packages"]}
        assert (changes["packaging"]["change"], changes["packaging"]["old_version"]) == ("replace", "23.2")
        assert changes["sglang"]["new_version"] == "0.5.11"
        assert "cowsay" not in changes  # what the profile does not name is kept


class TestSurvey:
    def test_before_and_after(self, local_release: LocalRelease) -> None:
        """The base has no engine; a venv with the released one, and the release."""
        folder = local_release.folder
        plain = make_plain_venv(folder / "plain", "sglang==0.5.11")
        inventory = folder / "survey.yaml"
        entries = host_entry("none", folder / "none", local_release.base, "18000-18009")
        entries += host_entry("before", folder / "none", plain, "18000-18009")
        inventory.write_text("hosts:\n" + entries, "utf-8")
        none = Program(inventory).run("survey", "none", code=3)
        assert "sglang" in none.err and "hint:" in none.err
        before = Program(inventory).run("survey", "before", "--json", code=0).host
        after = local_release.program.run("survey", "box", "--json", code=0).host  # of the current release
        assert before["version"] == after["version"] == "0.5.11"
        names = [{algorithm["name"] for algorithm in found["algorithms"]} for found in (before, after)]
        assert "DDTREE" not in names[0] and "DDTREE" in names[1]
        assert before["changes"]["changed"] == []
        human = Program(inventory).run("survey", "before", code=0)
        assert "torch_native" in human.out and ".py:" in human.out


@pytest.mark.engine
class TestServe:
    def test_from_launch_to_stop(self, local_release: LocalRelease) -> None:
        program = local_release.program
        empty = program.run("status", "box", "--json", code=0)
        assert empty.host["services"] == []
        try:
            launched = program.run("launch", "box", "--budget", "31", "--json", timeout=400, code=0)
            (service,) = launched.host["services"]
            assert (service["state"], service["budget"], service["changed"]) == ("ready", "31", True)
            assert 18000 <= service["port"] <= 18009
            assert service["probe"]["ok"]
            answer = generate(service["port"], 128)
            assert answer["meta_info"]["completion_tokens"] == 128
            assert answer["meta_info"]["spec_verify_ct"] < 100

            again = program.run("launch", "box", "--budget", "31", code=0)
            assert "nothing to do" in again.out
            assert program.run("launch", "box", "--json", code=0).host["changed"] is False

            other = program.run("launch", "box", "--budget", "15", code=3)
            assert "service-running" in other.err and "--replace" in other.err

            status = program.run("status", "box", "--json", code=0).host["services"]
            assert [(found["name"], found["state"], found["probe"]["ok"]) for found in status] == [
                ("cpu", "ready", True)
            ]
            assert str(service["port"]) in program.run("status", "box", code=0).out

            lines = program.run("logs", "box", "-n", "5", code=0).out.splitlines()
            assert len(lines) == 5
            self._follow(program, service["port"])

            kept = program.run("prune", "box", "--keep", "0", "--json", code=0).host["kept"]
            assert local_release.id in [entry["id"] for entry in kept]
        finally:
            stopped = program.run("stop", "box", "--json")
        assert stopped.code == 0, stopped.said
        assert mentioning(str(local_release.root / "releases")) == {}
        with socket.socket() as port:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(("127.0.0.1", service["port"]))
        assert program.run("stop", "box", code=0).out
        states = [found["state"] for found in program.run("status", "box", "--json", code=0).host["services"]]
        assert states == ["stopped"]

    def _follow(self, program: Program, port: int) -> None:
        """``logs -f`` prints what the service says meanwhile, and ends with Ctrl-C."""
        process = program.start("logs", "box", "-f", "-n", "0")
        try:
            assert process.stdout is not None and process.stderr is not None
            os.set_blocking(process.stdout.fileno(), False)
            seen = b""

            def line() -> bool:
                nonlocal seen
                generate(port, 4)
                time.sleep(1)
                with contextlib.suppress(BlockingIOError):
                    seen += os.read(process.stdout.fileno(), 65536)  # type: ignore[union-attr]
                return b"POST /generate" in seen

            wait_until(line, "a line of the log", 60)
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(60) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            end(process)


@pytest.fixture(scope="module")
def second(local_release: LocalRelease) -> Program:
    """The same host with another base venv: another release."""
    base = make_plain_venv(local_release.folder / "base2", "packaging==23.2", "cowsay==6.1")
    inventory = local_release.folder / "second.yaml"
    inventory.write_text("hosts:\n" + host_entry("box", local_release.root, base, "18000-18009"), "utf-8")
    return Program(inventory)


@pytest.fixture(scope="module")
def second_before(local_release: LocalRelease, second: Program) -> dict[str, Entry]:
    """That base venv before anything was done with it."""
    return snapshot(local_release.folder / "base2")


@pytest.mark.usefixtures("second_before")
class TestInterrupted:
    """Runs that are ended in the middle, on a root with a good release, until the last one finishes."""

    def test_a_second_run_is_locked_out_and_the_first_killed_while_it_lays_packages_over(
        self, local_release: LocalRelease, second: Program
    ) -> None:
        with running(second, local_release.root, "overlay") as process:
            error = second.run("provision", "box", "--json", code=6).json["error"]
            assert error["id"] == "locked" and error["hint"]
            assert all(word in error["message"] for word in ("provision", PROFILE, "pid"))
            assert "locked" in second.run("prune", "box", "--keep", "1", code=6).err
            kill(process, local_release)

    def test_killed_while_it_is_imported(self, local_release: LocalRelease, second: Program) -> None:
        with running(second, local_release.root, "smoke") as process:
            assert "another run holds the lock" in second.run("plan", "box", code=2).out
            kill(process, local_release)
        assert second.run("verify", "box", "--static", "--json", code=0).host["release"] == local_release.id
        assert "left by an interrupted run" in second.run("plan", "box", code=2).out

    def test_ctrl_c_leaves_nothing(self, local_release: LocalRelease, second: Program) -> None:
        with running(second, local_release.root, "audit") as process:
            os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=100)
            assert process.returncode == 130, out + err
            assert "interrupted" in err and "Traceback" not in err
        assert local_release.current == local_release.id
        assert unfinished(local_release.root) == []
        assert mentioning(str(local_release.root / "releases")) == {}
        assert journal(local_release.root)[-1]["event"] == "run-end"

    def test_the_next_run_finishes(
        self, local_release: LocalRelease, second: Program, second_before: dict[str, Entry]
    ) -> None:
        done = second.run("provision", "box", "--json", timeout=900, code=0)
        assert done.host["result"]["previous"] == local_release.id
        assert local_release.current == done.host["result"]["release_id"] != local_release.id
        assert unfinished(local_release.root) == []
        now = snapshot(local_release.folder / "base2")
        assert without_links(now) == without_links(second_before)
        assert [path for path, entry in now.items() if entry[2] > second_before[path][2]]


class TestReleases:
    def test_back_and_forth(self, local_release: LocalRelease, second: Program) -> None:
        first, newest = local_release.id, local_release.current
        assert newest != first
        listed = second.run("releases", "box", "--json", code=0).host
        assert [release["id"] for release in listed["releases"]] == [first, newest]
        assert (listed["current"], listed["previous"]) == (newest, first)
        back = second.run("rollback", "box", code=0)
        assert first in back.out and local_release.current == first
        second.run("rollback", "box", "--to", newest, code=0)
        assert local_release.current == newest
        assert "nothing to do" in second.run("rollback", "box", "--to", newest, code=0).out
        assert second.run("provision", "box", "--json", code=0).host["changed"] is False
        second.run("rollback", "box", "--to", first, code=0)
        planned = second.run("plan", "box", "--json", code=2).host["plan"]
        assert [action["step"] for action in planned["actions"]] == ["activate"]
        assert second.run("provision", "box", "--json", code=0).host["result"]["current"] == newest
        second.run("rollback", "box", "--to", first, code=0)

    def test_pruned_the_base_venv_has_its_link_counts_back(
        self, local_release: LocalRelease, second: Program, second_before: dict[str, Entry]
    ) -> None:
        """A third release, built without checks, so that the second one is neither current nor the one before."""
        folder, releases = local_release.folder, local_release.root / "releases"
        (doomed,) = [path.name for path in releases.iterdir() if path.name != local_release.id]
        playbook = folder / "quick.yaml"
        playbook.write_text("name: quick\nsteps: [clone, overlay, patch, activate]\n", "utf-8")
        second.run("provision", "box", "--playbook", str(playbook), code=0)
        third = local_release.current
        pruned = second.run("prune", "box", "--keep", "1", "--json", code=0).host
        assert pruned["removed"] == [doomed]
        assert {path.name for path in releases.iterdir()} == {local_release.id, third}
        second.run("rollback", "box", code=0)
        assert local_release.current == local_release.id
        assert second.run("prune", "box", "--keep", "0", "--json", code=0).host["removed"] == [third]
        assert snapshot(folder / "base2") == second_before

    def test_the_first_release_still_verifies(self, local_release: LocalRelease) -> None:
        local_release.program.run("verify", "box", "--static", code=0)
        assert without_links(snapshot(local_release.base)) == without_links(local_release.base_before)


class running:
    """A provision in the background, from the moment at which ``step`` has begun. A context manager that kills it."""

    def __init__(self, program: Program, root: Path, step: str) -> None:
        self.program, self.root, self.step = program, root, step

    def __enter__(self) -> subprocess.Popen[str]:
        known = len(journal(self.root))
        self.process = self.program.start("provision", "box", "--json")
        try:
            wait_until(lambda: self._begun(known), f"step {self.step}", 300)
        except BaseException:
            end(self.process)
            raise
        return self.process

    def _begun(self, known: int) -> bool:
        assert self.process.poll() is None, self.process.communicate()
        return any(entry["event"] == "begin" and entry["step"] == self.step for entry in journal(self.root)[known:])

    def __exit__(self, *_: object) -> None:
        end(self.process)


def kill(process: subprocess.Popen[str], release: LocalRelease) -> None:
    """SIGKILL for the controller and the agent; ``current`` stays, and nothing goes on."""
    assert process.poll() is None
    kill_with_agent(process.pid)
    assert process.wait(60) == -signal.SIGKILL
    assert release.current == release.id
    assert unfinished(release.root) != []
    wait_until(lambda: mentioning(str(release.root / "releases")) == {}, "the end of its processes")


def unfinished(root: Path) -> list[str]:
    return [path.name for path in (root / "releases").iterdir() if path.name.endswith(".partial") or path.is_symlink()]
