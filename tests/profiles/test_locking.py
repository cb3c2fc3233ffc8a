"""Locks made by the real uv from an index on loopback or a folder."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from small_wheels import index, sha256, wheel

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory import load_inventory
from ddtree_deploy.profiles.lock import parse_lock
from ddtree_deploy.profiles.locking import _failure, find_uv, make_lock, mask_urls, profile_for
from ddtree_deploy.profiles.model import Source
from ddtree_deploy.resources import data_dir


@pytest.fixture(autouse=True)
def own_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """uv without this machine's configuration, and without waiting between attempts."""
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """An index of an engine whose torch has a build of another CUDA on top."""
    root = tmp_path / "index"
    wheel(root / "engine", "engine", "0.5", ["torch==2.11.0", "helper"])
    wheel(root / "torch", "torch", "2.11.0", ["lib-cu13"])
    wheel(root / "torch", "torch", "2.11.0+cu128", ["lib-cu12"])
    for name in ("lib_cu12", "lib_cu13"):
        wheel(root / name.replace("_", "-"), name, "1.0")
    wheel(root / "helper", "helper", "1.0")
    wheel(root / "helper", "helper", "2.0")
    return root


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Nobody listens there, nor is anybody given it meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def versions(text: str) -> dict[str, str]:
    return {package.name: package.version for package in parse_lock(text, Path("lock"))}


def test_lock_from_an_index(packages: Path) -> None:
    with index(packages) as url:
        text = make_lock(["engine==0.5", "torch==2.11.0+cu128"], [url], "3.11", constraints=["helper==1.0"])
    assert versions(text) == {"engine": "0.5", "torch": "2.11.0+cu128", "lib-cu12": "1.0", "helper": "1.0"}
    locked = {package.name: package for package in parse_lock(text, Path("lock"))}
    assert locked["torch"].hashes == [sha256(packages / "torch" / "torch-2.11.0+cu128-py3-none-any.whl")]
    assert locked["torch"].abi_tag == "cu128"
    assert "x86_64" in str(locked["torch"].marker)
    assert url not in text


def test_overrides_and_markers(packages: Path) -> None:
    with index(packages) as url:
        text = make_lock(
            ["engine==0.5 ; python_version < '3.99'"], [url], "3.11", overrides=["torch==2.11.0+cu128", "helper<2"]
        )
    assert versions(text)["torch"] == "2.11.0+cu128"
    assert versions(text)["helper"] == "1.0"


def test_the_index_that_is_named_goes_beside_the_main_one(packages: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    wheel(own / "torch", "torch", "2.11.0+cu999")
    with index(packages) as main, index(own) as extra:
        text = make_lock(["engine==0.5", "torch==2.11.0+cu999"], [main, extra], "3.11")
        assert versions(text) == {"engine": "0.5", "torch": "2.11.0+cu999", "helper": "2.0"}
        with pytest.raises(InputError):
            make_lock(["engine==0.5", "torch==2.11.0+cu999"], [main], "3.11")


def test_lock_from_a_wheelhouse(packages: Path, tmp_path: Path) -> None:
    house = tmp_path / "wheels"
    house.mkdir()
    for path in packages.rglob("*.whl"):
        (house / path.name).write_bytes(path.read_bytes())
    text = make_lock(["engine==0.5", "torch==2.11.0+cu128"], [], "3.11", wheelhouse=house)
    assert versions(text)["lib-cu12"] == "1.0"


def test_unreachable_index(closed_port: int) -> None:
    url = f"http://me:secret-word@127.0.0.1:{closed_port}/simple"
    with pytest.raises(InputError) as caught:
        make_lock(["engine==0.5"], [url], "3.11")
    error = caught.value
    assert (error.id, error.exit_code) == ("index-unreachable", 3)
    assert "127.0.0.1" in error.message
    assert "refused" in error.message
    assert "secret-word" not in json.dumps(error.to_dict())


def test_unreachable_extra_index(packages: Path, closed_port: int) -> None:
    with index(packages) as url, pytest.raises(InputError) as caught:
        make_lock(["engine==0.5"], [url, f"http://127.0.0.1:{closed_port}/"], "3.11")
    assert caught.value.id == "index-unreachable"


def test_index_that_refuses(packages: Path) -> None:
    with index(packages, refusing=True) as url, pytest.raises(InputError) as caught:
        make_lock(["engine==0.5"], [url], "3.11")
    assert caught.value.id == "index-refused"
    assert "403" in caught.value.message


@pytest.mark.parametrize(
    ("requirements", "constraints", "id", "words"),
    [
        (["engine==0.5", "torch==2.11.0+cu126"], [], "no-such-version", "torch==2.11.0+cu126"),
        (["engine==0.6"], [], "no-such-version", "engine==0.6"),
        (["nothing-of-the-kind"], [], "no-such-package", "nothing-of-the-kind"),
        (["engine==0.5"], ["helper<1"], "lock-failed", "helper"),
    ],
)
def test_no_solution(requirements: list[str], constraints: list[str], id: str, words: str, packages: Path) -> None:
    with index(packages) as url, pytest.raises(InputError) as caught:
        make_lock(requirements, [url], "3.11", constraints=constraints)
    assert (caught.value.id, caught.value.exit_code) == (id, 3)
    assert words in caught.value.message
    assert "unsatisfiable" in caught.value.details["resolver"]


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_another_python_is_neither_needed_nor_fetched(
    version: str, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS", "automatic")
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_MIRROR", f"http://127.0.0.1:{closed_port}")
    with index(packages) as url:
        assert versions(make_lock(["engine==0.5"], [url], version))["torch"] == "2.11.0+cu128"
        with pytest.raises(InputError) as caught:
            make_lock(["engine==0.6"], [url], version)
    assert caught.value.id == "no-such-version"
    assert "warning" not in caught.value.details["resolver"]


def test_only_the_error_of_uv_says_what_went_wrong() -> None:
    stderr = """\
warning: A managed Python download is available for Python 3.12, but an error occurred when attempting to download it.
  cause: Failed to fetch: `https://example.com/cpython-3.12.tar.gz`
  cause: error sending request for url (https://example.com/cpython-3.12.tar.gz)
error: No solution found when resolving dependencies
  cause: Because there is no version of engine==0.6 and you require engine==0.6, your requirements are unsatisfiable.
"""
    older = stderr.replace("error: No", "  \u00d7 No").replace("  cause: Because", "  \u2570\u2500\u25b6 Because")
    for text in (stderr, older):
        error = _failure(text, [])
        assert (error.id, error.message) == ("no-such-version", "no lock could be made: no index has engine==0.6")
        assert "managed Python" in error.details["resolver"], "all that uv said is kept"


def test_sources_are_not_built(tmp_path: Path) -> None:
    folder = tmp_path / "index" / "onlysource"
    folder.mkdir(parents=True)
    (folder / "onlysource-1.0.tar.gz").write_bytes(b"would run setup.py")
    with index(tmp_path / "index") as url, pytest.raises(InputError) as caught:
        make_lock(["onlysource"], [url], "3.11")
    assert "wheel" in caught.value.message


def test_mask() -> None:
    masked = mask_urls("see http://me:pw@x:81/simple/?t=abc and me", ["http://me:pw@x:81/simple/?t=abc"])
    assert "pw" not in masked
    assert "abc" not in masked
    assert "x:81/simple" in masked


def test_uv_is_found() -> None:
    assert find_uv().is_file()


PROFILE = """
name: mine
engine: engine
engine_version: "0.5"
abi_tag: cu128
requires_python: ">=3.11"
machine: [x86_64]
needs_index: its torch is not public
lock: null
requirements: [engine==0.5, torch==2.11.0+cu128]
"""


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    (tmp_path / "overlays").mkdir()
    (tmp_path / "overlays" / "mine.yaml").write_text(PROFILE)
    path = tmp_path / "hosts.yaml"
    path.write_text("hosts:\n  a: {profile: mine}\n  b: {profile: mine, source: {extra_index: [env:TEST_INDEX]}}\n")
    return path


def test_profile_that_needs_an_index(inventory: Path) -> None:
    host = load_inventory(inventory).host("a")
    for source in (None, Source("donor", "/x")):
        with pytest.raises(InputError) as caught:
            profile_for(host, source=source)
        error = caught.value
        assert (error.id, error.exit_code, error.where) == ("profile-needs-index", 3, f"{inventory}:2:3")
        assert "its torch is not public" in error.message
        assert "extra_index" in str(error.hint)


def test_shipped_cu128_needs_an_index(inventory: Path) -> None:
    with pytest.raises(InputError) as caught:
        profile_for(load_inventory(inventory).host("a"), "sglang-0.5.11-cu128")
    assert caught.value.id == "profile-needs-index"


def test_lock_is_made_once_and_kept(inventory: Path, packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = load_inventory(inventory).host("b")
    kept = inventory.parent / "locks" / "mine.lock"
    with index(packages) as url:
        monkeypatch.setenv("TEST_INDEX", url)
        source = Source("index", url)
        profile = profile_for(host, source=source)
    assert {package.name for package in profile.packages} == {"engine", "torch", "lib-cu12", "helper"}
    assert profile.needs_index is None
    assert kept.is_file()
    assert [path.name for path in kept.parent.iterdir()] == ["mine.lock"]
    assert profile_for(host) == profile  # the index is gone: nothing is asked again
    kept.write_bytes(kept.read_bytes().replace(b"\n", b"\r\n"))  # as git may check it out
    assert profile_for(host) == profile
    with pytest.raises(InputError) as caught:  # kept, but the packages themselves still need the index
        profile_for(load_inventory(inventory).host("a"))
    assert caught.value.id == "profile-needs-index"


def test_lock_of_other_requirements_is_made_again(inventory: Path, packages: Path) -> None:
    host = load_inventory(inventory).host("b")
    with index(packages) as url:
        source = Source("index", url)
        assert profile_for(host, source=source).packages
        own = inventory.parent / "overlays" / "mine.yaml"
        own.write_text(PROFILE.replace("engine==0.5,", "engine==0.5, helper<2,"))
        again = profile_for(host, source=source)
    assert next(package.version for package in again.packages if package.name == "helper") == "1.0"


def test_locks_of_the_shipped_inventory_are_kept_for_the_user(
    inventory: Path, packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    host = load_inventory().host("localhost")
    with index(packages) as url:
        assert profile_for(host, str(inventory.parent / "overlays" / "mine.yaml"), Source("index", url)).packages
    assert (tmp_path / "data" / "ddtree-deploy" / "locks" / "mine.lock").is_file()


def test_index_by_reference_that_is_not_set(inventory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEST_INDEX", raising=False)
    with pytest.raises(InputError) as caught:
        profile_for(load_inventory(inventory).host("b"))
    assert caught.value.id == "secret-missing"


def test_profile_with_a_lock_asks_nobody(inventory: Path) -> None:
    host = replace(load_inventory(inventory).host("a"), profile="sglang-0.5.11-cpu")
    assert len(profile_for(host).packages) > 150


def test_a_path_of_the_command_line_is_relative_to_the_working_folder(
    inventory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = load_profile_text("sglang-0.5.11-cpu").replace("name: sglang-0.5.11-cpu", "name: own")
    work = tmp_path / "work"
    work.mkdir()
    (work / "own.yaml").write_text(own + "description: of the working folder\n")
    (inventory.parent / "own.yaml").write_text(own + "description: of the inventory\n")
    monkeypatch.chdir(work)
    host = load_inventory(inventory).host("a")
    assert profile_for(host, "./own.yaml").description == "of the working folder"
    assert profile_for(replace(host, profile="./own.yaml")).description == "of the inventory"
    assert profile_for(host, "own").description == "of the inventory"


def load_profile_text(name: str) -> str:
    return (data_dir("overlays") / f"{name}.yaml").read_text("utf-8")


def test_without_uv(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)  # as if it were not installed
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError) as caught:
        find_uv()
    assert caught.value.id == "uv-missing"
    assert caught.value.hint is not None and "install uv" in caught.value.hint
