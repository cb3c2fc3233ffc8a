"""Host keys against known_hosts: what OpenSSH would say."""

from __future__ import annotations

import base64
import hashlib
import hmac
import stat
from pathlib import Path

import paramiko
import pytest

from ddtree_deploy.errors import InputError, UnreachableError
from ddtree_deploy.transport.hops import Hop
from ddtree_deploy.transport.known_hosts import KnownHosts


@pytest.fixture(scope="module")
def keys() -> list[paramiko.PKey]:
    return [paramiko.ECDSAKey.generate(), paramiko.ECDSAKey.generate(), paramiko.RSAKey.generate(2048)]


def hop(address: str = "gpu1.example.com", port: int = 22) -> Hop:
    return Hop(address, port, "me", address if port == 22 else f"[{address}]:{port}")


def line(names: str, key: paramiko.PKey, marker: str = "") -> str:
    return f"{marker}{names} {key.get_name()} {key.get_base64()} comment\n"


def check(text: str, key: paramiko.PKey, where: Path, accept_new: bool = False, at: Hop | None = None) -> str:
    """The error's id, or "fine"."""
    file = where / "known_hosts"
    file.write_text(text)
    try:
        KnownHosts(file, accept_new).check(at or hop(), key)
    except UnreachableError as error:
        assert error.exit_code == 4
        return error.id
    return "fine"


def hashed(name: str) -> str:
    salt = b"0123456789abcdef0123"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    ("names", "verdict"),
    [
        ("gpu1.example.com", "fine"),
        ("other,gpu1.example.com,10.0.0.1", "fine"),
        ("GPU1.Example.com", "fine"),
        ("*.example.com", "fine"),
        ("gpu?.example.com", "fine"),
        ("*.example.com,!gpu1.example.com", "host-key-unknown"),
        ("gpu2.example.com", "host-key-unknown"),
        ("[gpu1.example.com]:2222", "host-key-unknown"),
        (hashed("gpu1.example.com"), "fine"),
        (hashed("gpu2.example.com"), "host-key-unknown"),
        ("|1|broken", "host-key-unknown"),
    ],
)
def test_names(names: str, verdict: str, keys: list[paramiko.PKey], tmp_path: Path) -> None:
    assert check(line(names, keys[0]), keys[0], tmp_path) == verdict
    expected = "host-key-changed" if verdict == "fine" else verdict
    assert check(line(names, keys[0]), keys[1], tmp_path) == expected


def test_another_port_is_another_host(keys: list[paramiko.PKey], tmp_path: Path) -> None:
    at = hop(port=2222)
    assert check(line("gpu1.example.com", keys[0]), keys[0], tmp_path, at=at) == "host-key-unknown"
    assert check(line("[gpu1.example.com]:2222", keys[0]), keys[0], tmp_path, at=at) == "fine"
    assert check(line("[*.example.com]:2222", keys[0]), keys[0], tmp_path, at=at) == "fine"
    assert check(line(hashed("[gpu1.example.com]:2222"), keys[0]), keys[0], tmp_path, at=at) == "fine"


def test_a_changed_key_is_refused_even_when_new_ones_are_accepted(keys: list[paramiko.PKey], tmp_path: Path) -> None:
    text = line("gpu1.example.com", keys[0])
    assert check(text, keys[1], tmp_path, accept_new=True) == "host-key-changed"
    assert check(text, keys[2], tmp_path, accept_new=True) == "host-key-changed", "another kind of key is no excuse"
    assert (tmp_path / "known_hosts").read_text() == text


def test_several_keys_of_a_host(keys: list[paramiko.PKey], tmp_path: Path) -> None:
    text = "".join(line("gpu1.example.com", key) for key in keys)
    assert [check(text, key, tmp_path) for key in keys] == ["fine"] * 3
    file = tmp_path / "known_hosts"
    assert KnownHosts(file, False).kinds(hop()) == ["ecdsa-sha2-nistp256", "ssh-rsa"]


def test_a_revoked_key_is_refused(keys: list[paramiko.PKey], tmp_path: Path) -> None:
    text = line("gpu1.example.com", keys[0]) + line("*", keys[0], "@revoked ")
    assert check(text, keys[0], tmp_path) == "host-key-revoked"
    assert check(line("*", keys[0], "@revoked "), keys[0], tmp_path, accept_new=True) == "host-key-revoked"
    assert check(line("*", keys[0], "@revoked "), keys[1], tmp_path, accept_new=True) == "fine"


def test_certificate_authorities_prove_nothing_here(keys: list[paramiko.PKey], tmp_path: Path) -> None:
    assert check(line("*", keys[0], "@cert-authority "), keys[0], tmp_path) == "host-key-unknown"


def test_an_accepted_key_is_appended_and_nothing_else_changes(keys: list[paramiko.PKey], tmp_path: Path) -> None:
    before = "# my hosts\n\nsome nonsense\n" + line("other", keys[1]).rstrip("\n")
    assert check(before, keys[0], tmp_path, accept_new=True) == "fine"
    after = (tmp_path / "known_hosts").read_text()
    assert after == f"{before}\ngpu1.example.com {keys[0].get_name()} {keys[0].get_base64()}\n"
    assert check(after, keys[0], tmp_path) == "fine"
    assert check(after, keys[1], tmp_path) == "host-key-changed"


def test_the_file_is_made_where_there_is_none(home: Path, keys: list[paramiko.PKey]) -> None:
    hosts = KnownHosts(None, True)
    hosts.check(hop(), keys[0])
    hosts.check(hop(), keys[0])
    file = home / ".ssh" / "known_hosts"
    assert len(file.read_text().splitlines()) == 1
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_the_environment_names_the_file(tmp_path: Path, keys: list[paramiko.PKey], monkeypatch) -> None:
    file = tmp_path / "elsewhere"
    file.write_text(line("gpu1.example.com", keys[0]))
    monkeypatch.setenv("DDTREE_KNOWN_HOSTS", str(file))
    KnownHosts(None, False).check(hop(), keys[0])


def test_a_file_that_cannot_be_read_is_no_empty_file(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        KnownHosts(tmp_path, False)
    assert caught.value.id == "known-hosts"
