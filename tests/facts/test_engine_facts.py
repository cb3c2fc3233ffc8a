"""The engine's files against its RECORD, and the commit of a checkout."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.engine import git_commit, probe_engine
from ddtree_deploy.facts.model import Engine
from ddtree_deploy.facts.packages import read_distributions

FILES = {
    "sglang/__init__.py": b"",
    "sglang/srt/server_args.py": b"class ServerArgs: pass\n",
    "sglang/srt/worker.py": b"import torch\n",
    'sglang/srt/configs/odd, "name".json': b"{}",
}


def probe(site: Path, patch_files: list[str] | None = None, name: str = "sglang") -> Engine | None:
    return probe_engine(site, read_distributions(site), name, patch_files or [])


def found(site: Path, patch_files: list[str] | None = None) -> Engine:
    engine = probe(site, patch_files)
    assert engine is not None
    return engine


def test_as_released(site: Path, install) -> None:
    install("sglang", "0.5.11", files={path: data for path, data in FILES.items() if '"' not in path})
    engine = found(site, ["sglang/srt/worker.py", "sglang/srt/new.py"])
    assert (engine.distribution, engine.version, engine.location) == ("sglang", "0.5.11", str(site))
    assert (engine.changed_files, engine.missing_files, engine.added_files) == ([], [], [])
    digest = hashlib.sha256(FILES["sglang/srt/worker.py"]).hexdigest()
    assert engine.sha256 == {"sglang/srt/worker.py": digest, "sglang/srt/new.py": None}


def test_edited_missing_and_added(site: Path, install) -> None:
    install("sglang", "0.5.11", files={path: data for path, data in FILES.items() if '"' not in path})
    (site / "sglang/srt/server_args.py").write_bytes(b"class ServerArgs: PASS\n")  # of the same size
    (site / "sglang/srt/worker.py").unlink()
    (site / "sglang/srt/ddtree_utils.py").write_text("mine\n")
    (site / "sglang/srt/__pycache__").mkdir()
    (site / "sglang/srt/__pycache__/worker.py").write_text("")
    engine = found(site)
    assert engine.changed_files == ["sglang/srt/server_args.py"]
    assert engine.missing_files == ["sglang/srt/worker.py"]
    assert engine.added_files == ["sglang/srt/ddtree_utils.py"]


def test_scripts_outside_are_not_the_engines_files(site: Path, install) -> None:
    info = install("sglang", "0.5.11", files={"sglang/__init__.py": b""})
    with (info / "RECORD").open("a") as file:
        file.write("../../../bin/sglang,sha256=AAAA,10\n")
    assert found(site).missing_files == []


def test_an_unknown_hash_counts_as_changed(site: Path, install) -> None:
    info = install("sglang", "0.5.11", files={"sglang/__init__.py": b""})
    (info / "RECORD").write_text(
        (info / "RECORD").read_text().replace("sglang/__init__.py,sha256", "sglang/__init__.py,nohash")
    )
    assert found(site).changed_files == ["sglang/__init__.py"]


def test_without_record_there_is_nothing_to_compare(site: Path, install) -> None:
    install("sglang", "0.5.11", files={"sglang/__init__.py": b""}, record=False)
    engine = found(site)
    assert (engine.changed_files, engine.missing_files, engine.added_files) == ([], [], [])


def test_a_record_of_zeros(site: Path, install) -> None:
    info = install("sglang", "0.5.11", files={"sglang/__init__.py": b""})
    (info / "RECORD").write_bytes(bytes(200_000))
    assert found(site).changed_files == []


def test_no_engine(site: Path, install) -> None:
    install("vllm", "0.11")
    assert probe(site) is None


@pytest.mark.parametrize("path", ["/etc/passwd", "../../x", "sglang/../../x"])
def test_paths_stay_inside(site: Path, install, path: str) -> None:
    install("sglang", "0.5.11")
    with pytest.raises(InputError) as caught:
        probe(site, [path])
    assert caught.value.id == "bad-path"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "sglang-src"
    (folder / "python" / "sglang" / "srt").mkdir(parents=True)
    (folder / "python" / "sglang" / "srt" / "worker.py").write_bytes(b"edited\n")

    def git(*arguments: str) -> None:
        command = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    git("init", "-q", "-b", "main")
    git("add", ".")
    git("commit", "-q", "-m", "one")
    return folder


def head(folder: Path) -> str:
    result = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return result.stdout.strip()


def test_an_editable_checkout(site: Path, install, checkout: Path) -> None:
    url = f'{{"url": "file://{checkout}/python", "dir_info": {{"editable": true}}}}'
    install("sglang", "0.5.11.dev3", extra={"direct_url.json": url})
    engine = found(site, ["sglang/srt/worker.py"])
    assert (engine.editable, engine.location) == (f"{checkout}/python", f"{checkout}/python")
    assert engine.commit == head(checkout)
    assert engine.sha256 == {"sglang/srt/worker.py": hashlib.sha256(b"edited\n").hexdigest()}


def test_packages_below_the_project_folder(site: Path, install, checkout: Path) -> None:
    url = f'{{"url": "file://{checkout}", "dir_info": {{"editable": true}}}}'
    install("sglang", "0.5.11.dev3", extra={"direct_url.json": url})
    engine = found(site, ["sglang/srt/worker.py"])
    assert engine.location == f"{checkout}/python"
    assert engine.sha256["sglang/srt/worker.py"]


def test_commits_of_branches_packed_refs_detached_heads_and_worktrees(checkout: Path, tmp_path: Path) -> None:
    commit = head(checkout)

    def git(*arguments: str) -> None:
        subprocess.run(["git", *arguments], cwd=checkout, check=True, capture_output=True)

    assert git_commit(checkout / "python" / "sglang") == commit
    git("pack-refs", "--all")
    assert git_commit(checkout) == commit
    git("worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    assert git_commit(tmp_path / "tree") == commit
    git("checkout", "-q", "--detach")
    assert git_commit(checkout) == commit
    assert git_commit(tmp_path) is None
