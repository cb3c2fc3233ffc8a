"""Toolkits, disks, and the whole probe."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from ddtree_deploy.agent.protocol import Progress, silent
from ddtree_deploy.cli.facts_view import render_facts
from ddtree_deploy.codec import from_dict, to_dict
from ddtree_deploy.errors import InputError
from ddtree_deploy.facts import compilers, disk, system, toolkits
from ddtree_deploy.facts.model import Compilers, HostFacts, Toolkit, Venv
from ddtree_deploy.facts.probe import collect
from ddtree_deploy.verify import probe

MOUNTS = r"""sysfs /sys sysfs rw 0 0
/dev/sda1 / ext4 rw 0 0
/dev/sdb1 /data xfs rw 0 0
/dev/sdc1 /data/with\040space btrfs rw 0 0
tank /datalake zfs rw 0 0
overlay /data overlay rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "ext4"),
        ("/opt/ddtree", "ext4"),
        ("/data", "overlay"),
        ("/data/x", "overlay"),
        ("/data/with space/x", "btrfs"),
        ("/datalake/x", "zfs"),
        ("/database", "ext4"),
    ],
)
def test_file_systems(tmp_path: Path, path: str, kind: str) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert disk.filesystem_of(Path(path), mounts) == kind


def test_disk_of_a_folder_that_does_not_exist_yet(tmp_path: Path) -> None:
    found = disk.probe_disk(tmp_path / "a" / "b" / "c")
    assert found.path == str(tmp_path)
    assert found.device == tmp_path.stat().st_dev
    assert 0 < found.free_bytes <= found.total_bytes
    assert disk.writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_trying_a_reflink_leaves_nothing(tmp_path: Path) -> None:
    assert disk._try_reflink(tmp_path) in (True, False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    assert not disk.writable(tmp_path / "a")


def test_what_stands_where_a_root_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "link").symlink_to(tmp_path)
    assert disk.blocked_by(tmp_path / "a" / "b") is None
    assert disk.blocked_by(tmp_path / "link" / "b") is None
    assert disk.blocked_by(tmp_path / "file") == tmp_path / "file"
    assert disk.blocked_by(tmp_path / "file" / "a" / "b") == tmp_path / "file"
    assert disk.blocked_by(tmp_path / "dangling") == tmp_path / "dangling"


def test_toolkits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old, text, none = (tmp_path / name for name in ("cuda-13.0", "cuda-10.2", "cuda-12.8", "cuda-none"))
    for folder in (new, old, text, none):
        (folder / "bin").mkdir(parents=True)
    (new / "version.json").write_text(json.dumps({"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}))
    (old / "version.txt").write_text("CUDA Version 10.2.89\n")
    (text / "include").mkdir()
    (text / "include" / "cuda.h").write_text("#define CUDA_VERSION 12080\n")
    nvcc = text / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.8, V12.8.93'\n")
    nvcc.chmod(0o755)
    (tmp_path / "cuda").symlink_to("cuda-13.0")
    monkeypatch.setattr(toolkits, "_usual", lambda: [tmp_path / "cuda", new, old, none])
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", f"{nvcc.parent}:/usr/bin:/bin")
    assert toolkits.find_toolkits() == [
        Toolkit(str(old), "10.2.89"),
        Toolkit(str(text), "12.8.93"),
        Toolkit(str(new), "13.0.2"),
    ]


def test_compilers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are looked for where a service does: not on the caller's PATH, nor in its CUDA_HOME."""

    def tool(path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o755)
        return str(path)

    tool(tmp_path / "mine" / "nvcc")
    monkeypatch.setenv("PATH", f"{tmp_path / 'mine'}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(compilers, "SYSTEM_PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(probe, "USUAL_CUDA", str(tmp_path / "cuda"))
    monkeypatch.setattr(probe, "LIBRARY_FOLDERS", ())
    base = Venv(str(tmp_path / "venv"), True, python="3.11.2", base_prefix=str(tmp_path))
    assert compilers.find_compilers(None) == Compilers()
    assert compilers.find_compilers(base) == Compilers(python_header=False)
    tool(tmp_path / "include" / "python3.11" / "Python.h")
    clang, usual = tool(tmp_path / "bin" / "clang"), tool(tmp_path / "cuda" / "bin" / "nvcc")
    assert compilers.find_compilers(base) == Compilers(clang, None, usual, False, True)
    tool(tmp_path / "cuda" / "lib64" / "libcudart.so")
    assert compilers.find_compilers(base) == Compilers(clang, None, usual, True, True)
    gcc, cxx, nvcc = (tool(tmp_path / "bin" / name) for name in ("gcc", "c++", "nvcc"))
    assert compilers.find_compilers(base) == Compilers(gcc, cxx, nvcc, False, True), "linked in the folder of this nvcc"
    tool(tmp_path / "lib64" / "libcudart.so")
    assert compilers.find_compilers(base) == Compilers(gcc, cxx, nvcc, True, True)


@pytest.mark.parametrize("damage", ["broken link", "folder", "no x", "only with a version"])
def test_what_cannot_be_run_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setattr(compilers, "SYSTEM_PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(probe, "USUAL_CUDA", str(tmp_path / "cuda"))
    for path in (tmp_path / "bin" / "gcc", tmp_path / "cuda" / "bin" / "nvcc"):
        path.parent.mkdir(parents=True)
        if damage == "broken link":
            path.symlink_to(tmp_path / "gone")
        elif damage == "folder":
            path.mkdir()
        elif damage == "no x":
            path.touch(0o644)
        else:
            path.with_name(f"x86_64-linux-gnu-{path.name}-12").touch(0o755)
    assert compilers.find_compilers(None) == Compilers()


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, None),  # facts of an older version
        (Compilers(), "C not found, C++ not found, nvcc not found, libcudart.so not asked, Python.h not asked"),
        (
            Compilers("/usr/bin/gcc", "/usr/bin/c++", "/usr/local/bin/nvcc", False, True),
            "C /usr/bin/gcc, C++ /usr/bin/c++, nvcc /usr/local/bin/nvcc, libcudart.so not found, Python.h there",
        ),
    ],
)
def test_compilers_as_people_read_them(found: Compilers | None, said: str | None) -> None:
    console = Console(width=200)
    facts = from_dict(HostFacts, {**collect({"root": "/none"}, silent), "compilers": to_dict(found) if found else None})
    with console.capture() as printed:
        render_facts(console, "gpu1", facts)
    lines = [line for line in printed.get().splitlines() if "compilers: " in line]
    assert [line.partition("compilers: ")[2] for line in lines] == ([said] if said else [])


def test_the_system() -> None:
    glibc = system.glibc_version()
    assert glibc is None or glibc[0] == "2"
    assert system.user_name()
    assert system.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def test_everything_in_one_call(venv: Path, site: Path, install, tmp_path: Path) -> None:
    install("sglang", "0.5.11", files={"sglang/__init__.py": b""})
    seen: list[Progress] = []
    root = tmp_path / "deep" / "root"
    data = collect(
        {"root": str(root), "base": str(venv), "engine": "SGLang", "patch_files": ["sglang/__init__.py"]}, seen.append
    )
    facts = from_dict(HostFacts, json.loads(json.dumps(data)))
    assert facts.root == str(root)
    assert facts.base is not None and facts.base.problem is None
    assert facts.engine is not None and facts.engine.version == "0.5.11"
    assert facts.compilers is not None and facts.compilers.python_header is not None
    assert facts.root_disk is not None and facts.root_disk.path == str(tmp_path)
    assert facts.base_disk is not None and facts.base_disk.path == str(venv)
    assert (facts.releases, facts.services, facts.partial, facts.current, facts.locked_by) == ([], [], [], None, None)
    assert seen[-1].finished
    assert not root.parent.exists()


def test_without_a_base(tmp_path: Path) -> None:
    facts = from_dict(HostFacts, collect({"root": str(tmp_path / "root")}, silent))
    assert (facts.base, facts.engine, facts.base_disk) == (None, None, None)


def test_a_base_that_is_missing(tmp_path: Path) -> None:
    params = {"root": str(tmp_path / "root"), "base": str(tmp_path / "none"), "engine": "sglang"}
    facts = from_dict(HostFacts, collect(params, silent))
    assert facts.base is not None and not facts.base.exists
    assert facts.engine is None


def test_a_root_where_we_have_been(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "releases" / "p-0123456789ab.partial").mkdir(parents=True)
    (root / "releases" / "p-aaaaaaaaaaaa").mkdir()
    (root / "current").symlink_to("releases/p-aaaaaaaaaaaa")
    before = sorted(path.lstat().st_mtime_ns for path in [root, *root.rglob("*")])
    facts = from_dict(HostFacts, collect({"root": str(root)}, silent))
    assert facts.partial == ["p-0123456789ab.partial"]
    assert facts.current == "p-aaaaaaaaaaaa"
    assert [(release.id, release.complete, release.current) for release in facts.releases] == [
        ("p-aaaaaaaaaaaa", False, True)
    ]
    assert sorted(path.lstat().st_mtime_ns for path in [root, *root.rglob("*")]) == before


def test_a_run_that_holds_the_lock_is_named(tmp_path: Path) -> None:
    from ddtree_deploy.release.layout import Layout
    from ddtree_deploy.release.lock import Lock

    with Lock(Layout(tmp_path).lock, "provision"):
        assert "provision" in str(from_dict(HostFacts, collect({"root": str(tmp_path)}, silent)).locked_by)
    assert from_dict(HostFacts, collect({"root": str(tmp_path)}, silent)).locked_by is None


@pytest.mark.parametrize("root", ["relative/root", "/", "/with:colon"])
def test_a_root_that_cannot_be(root: str) -> None:
    with pytest.raises(InputError) as caught:
        collect({"root": root}, silent)
    assert caught.value.id == "bad-root"


def test_whether_current_is_a_link(tmp_path: Path) -> None:
    def is_link() -> bool:
        return from_dict(HostFacts, collect({"root": str(tmp_path)}, silent)).current_is_link

    current = tmp_path / "current"
    assert is_link()  # nothing there yet
    current.symlink_to("releases/gone")
    assert is_link()
    current.unlink()
    current.write_text("x")
    assert not is_link()
    current.unlink()
    current.mkdir()
    assert not is_link()
