"""The package as people install it: `pip install .` into an empty venv, run from another folder."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.base_venv import PYTHON, make_plain_venv, site_packages
from e2e.program import PROJECT, Program, environment

HEAVY = {"torch", "sglang", "sglang-kernel", "sgl-kernel", "triton", "transformers", "numpy", "flashinfer-python"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    venv = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([str(PYTHON), "-m", "venv", str(venv)], check=True)
    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(PROJECT)], check=True, env=environment())
    return venv


@pytest.fixture
def program(installed: Path, tmp_path: Path) -> Program:
    """Nothing of the source tree is near."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    return Program(command=(str(installed / "bin" / "ddtree-deploy"),), cwd=elsewhere)


def test_it_pulls_nothing_heavy(installed: Path) -> None:
    command = [str(installed / "bin" / "python"), "-m", "pip", "list", "--format", "json"]
    listed = json.loads(subprocess.run(command, capture_output=True, check=True, env=environment()).stdout)
    names = {package["name"].lower().replace("_", "-") for package in listed}
    assert "ddtree-deploy" in names
    assert names & HEAVY == set()
    assert not [name for name in names if name.startswith("nvidia-")]


def test_it_is_not_the_source_tree(installed: Path, program: Program) -> None:
    code = "import ddtree_deploy; print(ddtree_deploy.__file__)"
    command = [str(installed / "bin" / "python"), "-c", code]
    place = subprocess.run(command, capture_output=True, text=True, check=True, cwd=program.cwd, env=environment())
    assert place.stdout.startswith(str(site_packages(installed)))


@pytest.mark.parametrize("command", ["", "provision", "launch", "patches apply", "inventory show"])
def test_help(program: Program, command: str) -> None:
    ran = program.run(*command.split(), "--help", code=0)
    assert "Usage: ddtree-deploy" in ran.out and "Example" in ran.out


def test_everything_that_is_data_came_along(program: Program, tmp_path: Path) -> None:
    """The default inventory, profiles with lock and shims, the playbook and the patch set: a plan reads them all."""
    base, facts = make_plain_venv(tmp_path / "base"), tmp_path / "facts.json"
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text(f"hosts: {{box: {{connection: local, root: {tmp_path}/root, base: {base}}}}}\n", "utf-8")
    assert "localhost" in program.run("inventory", "show", code=0).out
    named = Program(inventory, command=program.command, cwd=program.cwd)
    named.run("facts", "box", "--save", str(facts), code=0)  # through the agent that the wheel builds
    words = ("provision", "box", "--dry-run", "--facts", str(facts), "--json")
    for profile, count in (("sglang-0.5.11-cpu", 6), ("sglang-0.5.11-cu130", 6)):
        ran = named.run(*words, "--profile", profile, "--without-gpu", code=2)
        plan = ran.host["plan"]
        assert len(plan["actions"]) == count
        assert plan["patch_set"] == "sglang-0.5.11"
        assert len(plan["packages"]) > 150 and len(plan["files"]) > 10
    assert not (tmp_path / "root").exists()
    assert "sglang" in program.run("patches", "check", str(base), code=3).err  # it has its patch set, base no engine


BASH = """\
eval "$(ddtree-deploy --show-completion)"
for line in "ddtree-deploy prov" "ddtree-deploy plan local" "ddtree-deploy plan --profile sglang-0.5.11-cp"; do
    read -ra COMP_WORDS <<<"$line"
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _ddtree_deploy_completion ddtree-deploy
    echo "${COMPREPLY[@]}"
done
"""


def test_completion_in_a_shell(program: Program) -> None:
    """Commands, hosts of the inventory, and profiles, by the script that bash is given."""
    folder = Path(program.command[0]).parent
    variables = environment()
    variables["PATH"] = f"{folder}:{variables['PATH']}"
    done = subprocess.run(["bash", "-c", BASH], capture_output=True, text=True, env=variables, cwd=program.cwd)
    assert done.stdout.splitlines() == ["provision", "localhost", "sglang-0.5.11-cpu"], done.stderr
