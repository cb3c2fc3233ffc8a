import json
import os
from pathlib import Path

from abi.fixtures import Venv

from ddtree_deploy.abi.audit import audit_environment
from ddtree_deploy.abi.cache import Cache
from ddtree_deploy.abi.tree import entry_of


def reads(cache: Cache, path: Path, value: str, scope: str = "") -> tuple[str, bool]:
    """(what the cache gives, whether it had to read)."""
    called = []

    def read() -> str:
        called.append(1)
        return value

    return cache.get(entry_of(str(path)), "kind", read, scope), bool(called)


def test_a_file_is_read_once_also_by_another_name(tmp_path: Path) -> None:
    path, link = tmp_path / "a.so", tmp_path / "b.so"
    path.write_text("x")
    os.link(path, link)
    first = Cache(str(tmp_path / "cache"))
    assert reads(first, path, "one") == ("one", True)
    assert reads(first, link, "two") == ("one", False)
    first.save()
    assert reads(Cache(str(tmp_path / "cache")), link, "three") == ("one", False)


def test_a_changed_file_and_another_scope_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_text("x")
    cache = Cache()
    reads(cache, path, "one")
    assert reads(cache, path, "two", "other") == ("two", True)
    path.write_text("longer")
    assert reads(cache, path, "three", "other") == ("three", True)


def test_a_damaged_cache_and_a_folder_that_cannot_be_are_no_errors(tmp_path: Path) -> None:
    path = tmp_path / "a.so"
    path.write_text("x")
    folder = tmp_path / "cache"
    folder.mkdir()
    for content in ("{", "[]", '{"format": "0", "entries": {}}', json.dumps({"format": "x", "entries": [1]})):
        (folder / "files.json").write_text(content)
        assert reads(Cache(str(folder)), path, "one") == ("one", True)
    blocked = Cache(str(path / "below-a-file"))
    assert reads(blocked, path, "one") == ("one", True)
    blocked.save()


def test_a_remembered_audit_finds_the_same(venv: Venv, tmp_path: Path) -> None:
    venv.torch()
    venv.kernel("kernel", "namespace c10 { int device_count_v2(int); } int run() { return c10::device_count_v2(1); }")
    cache = str(tmp_path / "cache")
    reports = [audit_environment(str(venv.root), venv.host, cache_dir=folder) for folder in (None, cache, cache)]
    assert reports[0].findings == reports[1].findings == reports[2].findings
    assert [f.id for f in reports[2].findings if f.severity == "error"] == ["undefined-torch-symbol"]
    # A torch that defines the name, under the same path: what was remembered of the kernel no longer holds.
    venv.torch(extra_source="namespace c10 { int device_count_v2(int x) { return x; } }")
    assert audit_environment(str(venv.root), venv.host, cache_dir=cache).counts["error"] == 0
