"""`patches`, `abi`, releases and the lock, through the command line and the real local agent."""

from __future__ import annotations

import venv
import zipfile
from pathlib import Path

import pytest
from cli_support import run, write_inventory

from ddtree_deploy.release.files import record_hash
from ddtree_deploy.release.lock import Lock

RELEASED = {"sglang/__init__.py": b"", "sglang/server.py": b"one = 1\ntwo = 2\n"}


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "sglang-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**RELEASED, **_dist_info(RELEASED)}.items():
            archive.writestr(name, content)
    return path


def install(folder: Path) -> Path:
    for name, content in {**RELEASED, **_dist_info(RELEASED)}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def _dist_info(files: dict[str, bytes]) -> dict[str, bytes]:
    info = "sglang-1.0.dist-info"
    metadata = b"Metadata-Version: 2.1\nName: sglang\nVersion: 1.0\n"
    rows = [f"{name},{record_hash(content)},{len(content)}" for name, content in files.items()]
    rows += [f"{info}/METADATA,{record_hash(metadata)},{len(metadata)}", f"{info}/RECORD,,"]
    wheel = b"Wheel-Version: 1.0\nTag: py3-none-any\n"
    record = "\n".join(rows).encode() + b"\n"
    return {f"{info}/METADATA": metadata, f"{info}/WHEEL": wheel, f"{info}/RECORD": record}


def test_a_patch_set_from_export_to_reverse(tmp_path: Path, wheel: Path) -> None:
    edited = install(tmp_path / "edited")
    (edited / "sglang/server.py").write_bytes(b"one = 1\ntwo = 'two'\n")
    (edited / "sglang/tree.py").write_bytes(b"new = True\n")
    out = str(tmp_path / "sglang-1.0")
    ran = run("patches", "export", str(edited), "--wheel", str(wheel), "--out", out, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["patch_set"]["patches"] == ["sglang/server.py"]
    assert ran.json["patch_set"]["new_files"] == ["sglang/tree.py"]

    site = install(tmp_path / "site")
    words = [str(site), "--patch-set", out]
    assert run("patches", "check", *words, "--json").json["report"]["summary"] == "pristine"
    assert run("patches", "apply", *words).code == 0
    assert (site / "sglang/server.py").read_bytes() == b"one = 1\ntwo = 'two'\n"
    assert run("patches", "check", *words, "--json").json["report"]["summary"] == "applied"
    assert "2 files changed" in run("patches", "reverse", *words).out
    assert (site / "sglang/server.py").read_bytes() == RELEASED["sglang/server.py"]
    assert not (site / "sglang/tree.py").exists()

    (site / "sglang/server.py").write_bytes(b"one = 1\ntwo = 'by hand'\n")
    ran = run("patches", "check", *words, "--wheel", str(wheel))
    assert ran.code == 1
    assert "sglang/server.py: edited" in ran.out


def test_patches_of_nothing(tmp_path: Path) -> None:
    assert run("patches", "check", str(tmp_path / "nothing")).code == 3
    assert run("patches", "export", str(tmp_path), "--wheel", "nope.whl", "--out", str(tmp_path / "o")).code == 3


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("abi") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    return folder


def test_abi_of_a_path_needs_no_inventory(environment: Path) -> None:
    ran = run("abi", str(environment), "--inventory", "/nonexistent.yaml", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["hosts"][0]["path"] == str(environment)
    assert str(environment) in run("abi", str(environment)).out


def test_abi_of_a_path_on_a_host(tmp_path: Path, environment: Path) -> None:
    inventory = str(write_inventory(tmp_path))
    ran = run("abi", f"one:{environment}", "--inventory", inventory, "--json")
    assert ran.code == 0, ran.err
    assert ran.json["hosts"][0]["host"] == "one"
    assert run("abi", "three:/opt/venv", "--inventory", inventory).code == 3
    assert run("abi", "one:relative", "--inventory", inventory).code == 3
    for words in (["abi", "one:"], ["diff", "one:", "current"], ["diff", "one:a", "one:"]):
        ran = run(*words, "--inventory", inventory, "--json")
        assert (ran.code, ran.json["error"]["id"]) == (3, "bad-path"), words
    assert run("abi", "/nonexistent/venv").code == 3


def test_abi_errors_are_exit_1(tmp_path: Path) -> None:
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    info = site / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: broken\nVersion: 1.0\nRequires-Dist: absent>=2\n", "utf-8"
    )
    (info / "RECORD").write_text("broken-1.0.dist-info/METADATA,,\nbroken-1.0.dist-info/RECORD,,\n", "utf-8")
    ran = run("abi", str(folder), "--json")
    assert ran.code == 1
    assert ran.json["exit_code"] == 1 and ran.json["hosts"][0]["counts"]["error"] >= 1
    assert "absent" in run("abi", str(folder)).out


def test_a_host_that_another_run_holds_is_exit_6(tmp_path: Path) -> None:
    inventory = str(write_inventory(tmp_path))
    with Lock(tmp_path / "root" / "one" / "lock", "provision of another run"):
        ran = run("prune", "one", "--keep", "1", "--inventory", inventory, "--json")
    assert ran.code == 6
    assert ran.json["error"]["id"] == "locked"
    assert "provision of another run" in ran.json["error"]["message"]
    assert run("prune", "one", "--keep", "1", "--inventory", inventory).code == 0


def test_rollback_to_what_is_not_there(tmp_path: Path) -> None:
    inventory = str(write_inventory(tmp_path))
    (tmp_path / "root" / "one").mkdir(parents=True)
    ran = run("rollback", "one", "--to", "nothing", "--inventory", inventory, "--json")
    assert ran.code == 3
    assert ran.json["error"]["id"] == "no-such-release"
