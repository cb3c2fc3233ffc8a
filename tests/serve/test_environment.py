from __future__ import annotations

import json
from pathlib import Path

import pytest
from served_host import Host
from stand_in_engine import make_release

from ddtree_deploy.errors import InputError
from ddtree_deploy.serve.environment import profile_arguments, resolve_release, service_environment


def test_only_what_is_meant_to_get_in(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "PATH", "VIRTUAL_ENV", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "/leak")
    monkeypatch.setenv("LANG", "C.UTF-8")
    environment = service_environment(host.release, {"A": "1"}, gpu_index=3)
    assert "/leak" not in environment.values()
    assert environment["PATH"].split(":")[:2] == [f"{host.release}/bin", "/usr/local/sbin"]
    assert (environment["A"], environment["LANG"], environment["PYTHONNOUSERSITE"]) == ("1", "C.UTF-8", "1")
    assert (environment["CUDA_DEVICE_ORDER"], environment["CUDA_VISIBLE_DEVICES"]) == ("PCI_BUS_ID", "3")


def test_a_user_without_a_home(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under a uid of its own: no HOME, and no entry in passwd."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)
    assert service_environment(host.release)["HOME"] == "/"


def test_profile_then_overrides(host: Host) -> None:
    record = {"environment": {"A": "{release}/a", "B": "b"}, "engine_arguments": ["--file={release}/x"]}
    (host.release / ".ddtree" / "release.json").write_text(json.dumps(record))
    environment = service_environment(host.release, {"B": "mine", "PATH": "/opt/cuda/bin"})
    assert environment["A"] == f"{host.release}/a"
    assert environment["B"] == "mine"
    assert environment["PATH"] == f"{host.release}/bin:/opt/cuda/bin"
    assert profile_arguments(host.release) == [f"--file={host.release}/x"]


def test_which_release(host: Host) -> None:
    assert resolve_release(host.root, None) == host.release
    assert resolve_release(host.root, "stand-in-1") == host.release
    assert resolve_release(host.root, str(host.release)) == host.release
    with pytest.raises(InputError):
        resolve_release(host.root, "other")


def refused(host: Host, release: str | None) -> InputError:
    with pytest.raises(InputError) as caught:
        resolve_release(host.root, release)
    return caught.value


def test_a_current_that_is_not_ours_is_named_and_not_followed(host: Host, tmp_path: Path) -> None:
    current = host.root / "current"
    others = make_release(tmp_path / "others")
    for target in (others, "..", "releases/no-record"):
        (host.root / "releases" / "no-record" / "bin").mkdir(parents=True, exist_ok=True)
        current.unlink()
        current.symlink_to(target)
        error = refused(host, None)
        assert (error.id, error.where) == ("current-elsewhere", str(current))
        assert str(current.resolve()) in error.message and "rollback" in str(error.hint)
    current.unlink()
    current.symlink_to("releases/gone")
    error = refused(host, None)
    assert (error.id, error.where) == ("release-missing", str(host.root / "releases" / "gone"))
    current.unlink()
    others.rename(current)
    assert refused(host, None).id == "current-not-a-link"


def test_a_release_that_is_half_built_is_not_run(host: Host) -> None:
    partial = make_release(host.root / "releases" / "half.partial")
    (host.root / "releases" / "half").symlink_to("half.partial")
    (host.root / "current").unlink()
    (host.root / "current").symlink_to("releases/half")
    for release in ("half", str(partial), None):
        assert refused(host, release).id == "release-incomplete"
    assert refused(host, "half.partial").id == refused(host, "..").id == "bad-release-id"


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_broken_record_is_an_error(host: Host, text: str) -> None:
    path: Path = host.release / ".ddtree" / "release.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        service_environment(host.release)
    assert caught.value.id == "release-record"
    assert caught.value.where == str(path)
