"""Layers merge: defaults < groups in their order < host; each value knows where it comes from."""

from __future__ import annotations

from pathlib import Path

import pytest
from inventory_files import fails, load, one

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory import Connection, default_inventory, load_inventory
from ddtree_deploy.profiles.model import Source
from ddtree_deploy.resources import data_dir

LAYERS = """
defaults:
  connection: {user: root, port: 2222, jump: gate}
  root: /srv/defaults
  model: /models/defaults
  budget: 7
  environment: {A: defaults, B: defaults, C: defaults}
  engine_arguments: {tp: 1, context-length: 1000, trust: true}
groups:
  first:
    root: /srv/first
    model: /models/first
    connection: {user: first}
    environment: {B: first, C: null}
    engine_arguments: [--tp, "2", --extra, x, y]
  second:
    model: /models/second
    environment: {D: env:D}
hosts:
  a:
    groups: [first, second]
    connection: {address: 10.0.0.1}
    budget: auto
    engine_arguments: {context-length: null, metrics: true}
  b:
    groups: [second, first]
    model: null
  c:
    connection: local
"""


def test_merge(tmp_path: Path) -> None:
    host = load(tmp_path, LAYERS).host("a")
    assert host.connection == Connection("ssh", "10.0.0.1", 2222, "first", None, ["gate"], 10, None)
    assert (host.root, host.model, host.budget) == ("/srv/first", "/models/second", "auto")
    assert host.environment == {"A": "defaults", "B": "first"}
    assert host.secret_environment == {"D": "env:D"}
    assert host.engine_arguments == ("--tp", "2", "--trust", "--extra", "x", "y", "--metrics")
    assert host.groups == ("first", "second")


def test_later_group_wins_and_null_takes_back(tmp_path: Path) -> None:
    host = load(tmp_path, LAYERS).host("b")
    assert host.model is None
    assert host.connection.address == "b"
    assert host.root == "/srv/first"
    assert host.origin("model").layer == "built in"


def test_local_takes_nothing_of_ssh(tmp_path: Path) -> None:
    host = load(tmp_path, LAYERS).host("c")
    assert host.connection == Connection("local", "c")
    assert not [key for key in host.origins if key.startswith("connection.") and key != "connection.kind"]


def test_origins(tmp_path: Path) -> None:
    rows = {row.key: (row.value, row.layer, row.where, row.secret) for row in load(tmp_path, LAYERS).describe("a")}
    file = tmp_path / "hosts.yaml"
    assert rows["connection.user"] == ("first", "group first", f"{file}:13:24", False)
    assert rows["connection.address"] == ("10.0.0.1", "host", f"{file}:22:27", False)
    assert rows["connection.port"] == (2222, "defaults", f"{file}:3:34", False)
    assert rows["root"] == ("/srv/first", "group first", f"{file}:11:11", False)
    assert rows["environment.A"] == ("defaults", "defaults", f"{file}:7:20", False)
    assert rows["environment.D"] == ("env:D", "group second", f"{file}:18:22", True)
    assert rows["engine_arguments.--tp"][:2] == (["2"], "group first")
    assert rows["listen"] == ("127.0.0.1", "built in", None, False)
    assert "environment.C" not in rows
    assert "engine_arguments.--context-length" not in rows


def test_without_anything_a_host_is_reached_by_its_name(tmp_path: Path) -> None:
    host = load(tmp_path, "hosts: {gpu-1: }").host("gpu-1")
    assert host.connection == Connection("ssh", "gpu-1")
    assert (host.root, host.ports, host.listen, host.gpus) == ("/opt/ddtree", (30000, 30099), "127.0.0.1", None)


def test_plan_settings(tmp_path: Path) -> None:
    text = """
        root: /srv/d/
        base: ~/venv
        model: Qwen/Qwen3-8B
        draft: /d
        gpus: [1, 3]
        budget: 31
        environment: {A: x, HF_TOKEN: env:HF_TOKEN}
    """
    settings = one(tmp_path, text).to_plan_settings()
    assert (settings.host, settings.root, settings.base) == ("a", "/srv/d", "~/venv")
    assert (settings.gpus, settings.budget) == ([1, 3], "31")
    assert settings.environment == {"A": "x"}  # a secret is no part of a plan


def test_plan_settings_need_a_base(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        one(tmp_path, "model: x").to_plan_settings()
    assert (caught.value.id, caught.value.exit_code) == ("not-set", 3)
    assert caught.value.where == f"{tmp_path}/hosts.yaml:2:3"
    assert "base" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("gpus: all", Source("index")),
        ("source: index", Source("index")),
        ("source: {index: default}", Source("index")),
        ("source: {index: 'https://x/simple'}", Source("index", "https://x/simple")),
        ("source: {index: env:INDEX}", Source("index", "env:INDEX")),
        (
            "source: {extra_index: ['https://x/cu128', file:url]}",
            Source("index", extra=["https://x/cu128", "file:url"]),
        ),
        ("source: {donor: /opt/venv}", Source("donor", "/opt/venv")),
        ("source: {donor: 'b:/opt/venv'}", Source("donor", "/opt/venv", "b")),
        ("source: {donor: b}", Source("donor", "/base/of/b", "b")),
    ],
)
def test_source(text: str, source: Source, tmp_path: Path) -> None:
    inventory = load(tmp_path, f"hosts:\n  b: {{base: /base/of/b}}\n  a:\n    {text}\n")
    assert inventory.plan_source(inventory.host("a")) == source


def test_paths_on_this_machine_are_relative_to_the_file(tmp_path: Path) -> None:
    host = one(tmp_path, "source: {wheelhouse: wheels}\nconnection: {identity: keys/id}")
    assert host.plan_source() == Source("wheelhouse", str(tmp_path / "wheels"))
    assert host.connection.identity == str(tmp_path / "keys" / "id")


def test_donor_host_without_a_base(tmp_path: Path) -> None:
    inventory = load(tmp_path, "hosts:\n  b:\n  a: {source: {donor: b}}\n")
    with pytest.raises(InputError) as caught:
        inventory.plan_source(inventory.host("a"))
    assert caught.value.id == "not-set"


def test_index_urls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INDEX", "https://me:secret@x/simple")
    assert one(tmp_path, "source: index").index_urls() == []
    urls = one(tmp_path, "source: {extra_index: [env:INDEX]}").index_urls()
    assert [url.reveal() for url in urls] == ["default", "https://me:secret@x/simple"]
    urls = one(tmp_path, "source: {index: env:INDEX, extra_index: ['https://y']}").index_urls()
    assert [url.reveal() for url in urls] == ["https://me:secret@x/simple", "https://y"]
    assert "secret" not in repr(urls)
    assert one(tmp_path, "source: {wheelhouse: w}").index_urls() == []
    monkeypatch.delenv("INDEX")
    with pytest.raises(InputError) as caught:
        one(tmp_path, "source: {index: env:INDEX}").index_urls()
    assert (caught.value.id, caught.value.where) == ("secret-missing", f"{tmp_path}/hosts.yaml:3:13")


def test_wide_listening_with_a_key_is_fine(tmp_path: Path) -> None:
    assert one(tmp_path, "listen: 0.0.0.0\napi_key: file:key").listen == "0.0.0.0"
    assert one(tmp_path, "listen: 127.0.0.2").loopback
    assert one(tmp_path, "listen: '::1'").loopback


def test_engine_arguments_keep_numbers_as_written(tmp_path: Path) -> None:
    host = one(tmp_path, "engine_arguments: {mem-fraction-static: 0.80, lr: 1e-5, ids: [01, 2], off: false, on: true}")
    assert host.engine_arguments == ("--mem-fraction-static", "0.80", "--lr", "1e-5", "--ids", "01", "2", "--on")


@pytest.mark.parametrize("lower", ["{enable-metrics: true}", "{--enable_metrics: true}", "[--enable_metrics]"])
def test_underscores_and_dashes_are_the_same_flag(lower: str, tmp_path: Path) -> None:
    text = "defaults: {engine_arguments: %s}\nhosts: {a: {engine_arguments: %s}}\n"
    for higher in ("{enable_metrics: false}", "{enable-metrics: null}"):
        assert load(tmp_path, text % (lower, higher)).host("a").engine_arguments == ()
    for higher in ("{enable_metrics: x_y}", "[--enable_metrics=x_y]", "[--enable-metrics, x_y]"):
        host = load(tmp_path, text % (lower, higher)).host("a")
        assert host.engine_arguments == ("--enable-metrics", "x_y"), "values stay as they are"
        assert host.origin("engine_arguments.--enable-metrics").layer == "host"


def test_engine_arguments_as_a_list(tmp_path: Path) -> None:
    host = one(tmp_path, "engine_arguments: [--a=1, --b, -1, x, --c, --b, '']")
    assert host.engine_arguments == ("--a", "1", "--b", "-1", "x", "--b", "", "--c")


SELECT = """
groups: {gpu: {}, empty: {}, gpu-old: {}}
hosts:
  gpu-a: {groups: [gpu]}
  gpu-b: {groups: [gpu, gpu-old]}
  cpu-1: {}
  "8": {}
  no: {}
"""


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["gpu-a"], ["gpu-a"]),
        (["cpu-1", "gpu"], ["cpu-1", "gpu-a", "gpu-b"]),
        (["gpu", "gpu-a"], ["gpu-a", "gpu-b"]),
        (["gpu-*"], ["gpu-a", "gpu-b"]),
        (["*-old"], ["gpu-b"]),
        (["?pu-[1b]"], ["gpu-b", "cpu-1"]),
        (["all"], ["gpu-a", "gpu-b", "cpu-1", "8", "no"]),
        (["8", "no"], ["8", "no"]),
    ],
)
def test_select(patterns: list[str], names: list[str], tmp_path: Path) -> None:
    assert [host.name for host in load(tmp_path, SELECT).select(patterns)] == names


@pytest.mark.parametrize(
    ("pattern", "id", "hint"),
    [
        ("gpu-c", "unknown-host", "did you mean"),
        ("gpus", "unknown-host", "did you mean gpu"),
        ("zzz", "unknown-host", "known: 8, cpu-1"),
        ("GPU-A*", "no-host-matches", "known: gpu-a"),
        ("empty", "no-host-matches", "known: gpu-a"),
        ("", "unknown-host", "known"),
    ],
)
def test_select_unknown(pattern: str, id: str, hint: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, SELECT).select([pattern])
    assert caught.value.id == id
    assert hint in str(caught.value.hint)


def test_host_unknown(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load(tmp_path, SELECT).host("gpu-aa")
    assert "gpu-a" in str(caught.value.hint)


def test_settings_do_not_change(tmp_path: Path) -> None:
    inventory = load(tmp_path, SELECT)
    with pytest.raises(Exception, match="frozen"):
        inventory.file.hosts["no"].root = "/x"
    with pytest.raises(AttributeError):
        inventory.host("no").root = "/x"  # type: ignore[misc]


def test_shipped_inventories() -> None:
    default = load_inventory()
    assert default.path == default_inventory()
    host = default.host("localhost")
    assert (host.connection.kind, host.profile) == ("local", "sglang-0.5.11-cpu")
    host.to_plan_settings()
    example = load_inventory(data_dir("inventory") / "example.yaml")
    assert example.host("gpu-b").connection.jump == ["admin@gate.example.com"]
    assert example.plan_source(example.host("gpu-b")) == Source("donor", "/opt/serve/venv", "gpu-a")
    for name in example.hosts:
        example.host(name).to_plan_settings()


def test_errors_of_yaml_reach_the_caller(tmp_path: Path) -> None:
    assert fails(tmp_path, "hosts:\n  a: {}\n  a: {}\n").id == "yaml-duplicate-key"
    assert fails(tmp_path, "").id == "yaml-empty"
    with pytest.raises(InputError) as caught:
        load_inventory(tmp_path / "none.yaml")
    assert caught.value.id == "file-missing"
