"""`facts`, `plan` and `provision` as a user types them: saved facts, and this machine through the real agent."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
from cli_support import run, spawn, write_inventory

from ddtree_deploy.resources import data_dir

TEMPLATE = json.loads((Path(__file__).parents[1] / "plan" / "template.json").read_text("utf-8"))
PROFILE = "sglang-0.5.11-cu130"


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    return write_facts(tmp_path)


def write_facts(folder: Path, **changes: Any) -> Path:
    path = folder / "facts.json"
    path.write_text(json.dumps({**TEMPLATE["facts"], **changes}), "utf-8")
    return path


@pytest.mark.parametrize("words", [["plan"], ["provision", "--dry-run"]], ids=" ".join)
def test_planning_from_facts_needs_no_host(words: list[str], facts: Path) -> None:
    ran = run(*words, "--facts", str(facts), "--profile", PROFILE, "--json")
    assert ran.code == ran.json["exit_code"] == 2
    assert ran.err == ""
    (host,) = ran.json["hosts"]
    assert host["host"] == "gpu1" and host["exit_code"] == 2
    steps = [action["step"] for action in host["plan"]["actions"]]
    assert steps == ["clone", "overlay", "patch", "audit", "smoke", "activate"]
    assert host["plan"]["release_id"].startswith(PROFILE + "-")


def test_planning_needs_no_network_and_no_engine(facts: Path) -> None:
    code = (
        "import sys\n"
        "def hook(event, arguments):\n"
        "    if event.split('.')[0] in ('socket', 'subprocess'): raise SystemExit(f'{event} {arguments}')\n"
        "    if event == 'import' and arguments[0].split('.')[0] in ('sglang', 'torch'): raise SystemExit(event)\n"
        "sys.addaudithook(hook)\n"
        "from ddtree_deploy.cli.main import main\n"
        f"sys.exit(main(['plan', '--facts', {str(facts)!r}, '--profile', {PROFILE!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    assert "run `ddtree-deploy provision gpu1`" in done.stdout


def test_the_plan_for_people_is_on_stdout_alone(facts: Path) -> None:
    ran = run("plan", "--facts", str(facts), "--profile", PROFILE, "--no-color")
    assert ran.code == 2 and ran.err == ""
    assert ran.out.splitlines()[-1].startswith("6 actions, ")
    assert "\x1b" not in ran.out


def test_problems_are_bad_input_for_people_and_machines(tmp_path: Path) -> None:
    path = str(write_facts(tmp_path, glibc="2.17"))
    ran = run("plan", "--facts", path, "--profile", PROFILE)
    assert ran.code == 3
    assert "glibc-too-old" in ran.out and "error: glibc-too-old" in ran.err
    document = run("plan", "--facts", path, "--profile", PROFILE, "--json").json
    assert document["error"]["id"] == "glibc-too-old"
    assert document["hosts"][0]["plan"]["actions"] == []


def test_facts_are_about_one_host(tmp_path: Path, facts: Path) -> None:
    inventory = str(write_inventory(tmp_path))
    ran = run("plan", "training", "--facts", str(facts), "--inventory", inventory)
    assert ran.code == 3 and "--facts is about one host" in ran.err
    ran = run("plan", "one", "--facts", str(facts), "--inventory", inventory)
    assert ran.code == 3 and "facts-of-another-base" in ran.err


def test_facts_are_for_planning_only(facts: Path) -> None:
    ran = run("provision", "localhost", "--facts", str(facts))
    assert ran.code == 3 and "--dry-run" in ran.err


def test_unknown_profile_playbook_and_source(facts: Path) -> None:
    for words in (
        ["--profile", "nope"],
        ["--profile", PROFILE, "--playbook", "nope"],
        ["--profile", PROFILE, "--source", "x"],
    ):
        ran = run("plan", "--facts", str(facts), *words)
        assert ran.code == 3, words
        assert "hint: " in ran.err


def test_without_gpu(tmp_path: Path) -> None:
    path = str(write_facts(tmp_path, gpus=[], driver=None, driver_cuda=None))
    assert run("plan", "--facts", path, "--profile", PROFILE).code == 3
    assert run("plan", "--facts", path, "--profile", PROFILE, "--without-gpu").code == 2


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("base") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder)


def test_facts_of_this_machine_and_a_plan_from_them(tmp_path: Path, base: str) -> None:
    inventory = str(write_inventory(tmp_path, base=base))
    saved = tmp_path / "saved.json"
    ran = run("facts", "one", "--inventory", inventory, "--save", str(saved), "--json")
    assert ran.code == 0, ran.err
    found = ran.json["hosts"][0]["facts"]
    assert found["base"]["exists"] and found["base"]["python"].startswith(
        f"{sys.version_info[0]}.{sys.version_info[1]}."
    )
    assert json.loads(saved.read_text("utf-8")) == found

    live = run("plan", "one", "--inventory", inventory, "--json")
    offline = run("plan", "one", "--facts", str(saved), "--inventory", inventory, "--json")
    assert live.code == offline.code
    assert live.json["hosts"][0]["plan"]["release_id"] == offline.json["hosts"][0]["plan"]["release_id"]


@pytest.mark.usefixtures("agent_here")
def test_several_hosts_give_a_table_and_the_worst_code(tmp_path: Path, base: str) -> None:
    inventory = write_inventory(tmp_path, base=base)
    inventory.write_text(inventory.read_text("utf-8").replace(f"two, base: {base}", "two, base: /nonexistent"), "utf-8")
    ran = run("plan", "all", "--inventory", str(inventory))
    assert ran.code == 3
    assert "two: error: base-missing" in ran.err
    table = ran.out.splitlines()[-3:]
    assert table[0].split() == ["host", "exit", "outcome"]
    document = run("plan", "all", "--inventory", str(inventory), "--json").json
    assert [host["host"] for host in document["hosts"]] == ["one", "two"]
    assert document["exit_code"] == 3 and document["error"]["id"] == "base-missing"


@pytest.mark.usefixtures("agent_here")
def test_survey_and_facts_know_the_profiles_beside_the_inventory(tmp_path: Path, base: str) -> None:
    shipped = data_dir("overlays") / "sglang-0.5.11-cpu.yaml"
    (tmp_path / "overlays").mkdir()
    text = shipped.read_text("utf-8").replace("name: sglang-0.5.11-cpu", "name: mine")
    (tmp_path / "overlays" / "mine.yaml").write_text(text, "utf-8")
    inventory = str(write_inventory(tmp_path, "mine", base))
    assert run("facts", "one", "--inventory", inventory).code == 0
    assert "error: no-engine\n" in run("survey", "one", "--inventory", inventory).err


@pytest.mark.usefixtures("agent_here")
def test_facts_of_several_hosts_need_several_files(tmp_path: Path, base: str) -> None:
    inventory = str(write_inventory(tmp_path, base=base))
    assert run("facts", "all", "--inventory", inventory, "--save", str(tmp_path / "f.json")).code == 3
    ran = run("facts", "all", "--inventory", inventory, "--save", str(tmp_path / "{host}.json"))
    assert ran.code == 0
    assert "two: saved in" in ran.out and "two.json" in ran.out
    assert (tmp_path / "one.json").is_file() and (tmp_path / "two.json").is_file()


@pytest.mark.usefixtures("agent_here")
def test_a_host_where_nothing_was_done(tmp_path: Path) -> None:
    inventory = str(write_inventory(tmp_path))
    ran = run("releases", "one", "--inventory", inventory)
    assert (ran.code, ran.out) == (0, "one: no releases\n")
    ran = run("status", "one", "--inventory", inventory)
    assert (ran.code, ran.out) == (0, "one: no services\n")
    assert run("rollback", "one", "--inventory", inventory).code == 3
    assert run("prune", "one", "--keep", "1", "--inventory", inventory).code == 3
    assert run("logs", "one", "--inventory", inventory).code == 3
    assert run("verify", "one", "--inventory", inventory).code == 3
    assert run("survey", "one", "--inventory", inventory).code == 3


def test_a_wrong_python_is_bad_input_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts:\n  a:\n    connection:\n      kind: local\n      python: /no/such/python\n", "utf-8")
    ran = run("status", "a", "--json", "--inventory", str(path))
    assert (ran.code, ran.json["error"]["id"], ran.json["error"]["where"]) == (3, "no-python", f"{path}:5:15")


def test_a_relative_base_is_refused(tmp_path: Path) -> None:
    ran = run("facts", "one", "--base", "some/venv", "--json", "--inventory", str(write_inventory(tmp_path)))
    assert (ran.code, ran.json["error"]["id"], ran.json["error"]["where"]) == (3, "bad-path", "--base")


def test_edited_files_of_no_donor(facts: Path) -> None:
    ran = run("plan", "--facts", str(facts), "--profile", PROFILE, "--take-edited", "--json")
    assert (ran.code, ran.json["error"]["id"], ran.json["error"]["where"]) == (3, "donor-not-named", "--take-edited")


def test_an_unreachable_host_is_exit_4(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text(
        "hosts: {gone: {connection: {address: 127.0.0.1, port: 1}, base: /v, profile: sglang-0.5.11-cpu}}", "utf-8"
    )
    ran = spawn("plan", "gone", "--json", "--inventory", str(path))
    assert ran.code == 4
    assert ran.json["hosts"][0]["exit_code"] == 4 and ran.json["error"]["exit_code"] == 4
