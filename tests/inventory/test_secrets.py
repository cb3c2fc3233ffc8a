"""Secrets are read by reference and never show."""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
import pickle
from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.secrets import MASK, Secret, resolve

VALUE = "s3cr3t-value"


@dataclasses.dataclass
class Holder:
    secret: Secret


def test_value_never_shows(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(VALUE, "env:X")
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>20}", " ".join(map(str, [secret])), repr([secret])]
    shown += [repr(Holder(secret)), str(dataclasses.asdict(Holder(secret))), json.dumps({"a": secret}, default=str)]
    with caplog.at_level(logging.INFO):
        logging.getLogger("x").info("secret %s", secret)
    shown.append(caplog.text)
    assert all(VALUE not in text for text in shown)
    assert all(MASK in text for text in shown)
    with pytest.raises(TypeError):
        json.dumps({"a": secret})
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    assert not hasattr(secret, "__dict__")
    assert copy.deepcopy(secret) is secret
    assert secret.reveal() == VALUE


def test_equality() -> None:
    assert Secret("a") == Secret("a")
    assert Secret("a") != Secret("b")
    assert Secret("a") != "a"


def test_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DDTREE_KEY", VALUE)
    secret = resolve("env:DDTREE_KEY", tmp_path)
    assert (secret.reveal(), secret.reference, secret.warning) == (VALUE, "env:DDTREE_KEY", None)


@pytest.mark.parametrize("content", [VALUE, VALUE + "\n", VALUE + "\r\n"])
def test_file(content: str, tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(content.encode())
    path.chmod(0o600)
    for reference in ("file:key", f"file:{path}", "file:./key"):
        secret = resolve(reference, tmp_path)
        assert (secret.reveal(), secret.warning) == (VALUE, None)


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key").write_text(VALUE)
    assert resolve("file:~/key", tmp_path / "other").reveal() == VALUE


def test_world_readable_file_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(VALUE)
    path.chmod(0o644)
    secret = resolve("file:key", tmp_path)
    assert secret.reveal() == VALUE
    assert "chmod 600" in str(secret.warning)


@pytest.mark.parametrize(
    ("content", "id"),
    [
        (b"", "secret-empty"),
        (b"\n", "secret-empty"),
        (b"  ", "secret-empty"),
        (b"s3cr3t-value\nsecond", "secret-control-character"),
        (b"s3cr3t-value\x00", "secret-control-character"),
        (b"s3cr3t-value\xff", "secret-unreadable"),
        (b"s3cr3t-value" * 10_000, "secret-unreadable"),
    ],
)
def test_bad_file(content: bytes, id: str, tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InputError) as caught:
        resolve("file:key", tmp_path, where="hosts.yaml:3")
    assert (caught.value.id, caught.value.exit_code, caught.value.where) == (id, 3, "hosts.yaml:3")
    assert VALUE not in json.dumps(caught.value.to_dict())


def test_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDTREE_KEY", raising=False)
    with pytest.raises(InputError) as caught:
        resolve("env:DDTREE_KEY", tmp_path)
    assert caught.value.id == "secret-missing"
    assert "export DDTREE_KEY" in str(caught.value.hint)
    monkeypatch.setenv("DDTREE_KEY", "")
    with pytest.raises(InputError) as caught:
        resolve("env:DDTREE_KEY", tmp_path)
    assert caught.value.id == "secret-empty"
    with pytest.raises(InputError) as caught:
        resolve("file:none", tmp_path)
    assert caught.value.id == "secret-missing"
    with pytest.raises(InputError) as caught:
        resolve("file:.", tmp_path)
    assert caught.value.id == "secret-unreadable"
    with pytest.raises(InputError) as caught:
        resolve("file:a\0b", tmp_path)
    assert caught.value.id == "secret-unreadable"


@pytest.mark.parametrize("text", ["s3cr3t-value", "env:", "env:s3cr3t-value", "file:", "vault:x", ""])
def test_not_a_reference(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        resolve(text, tmp_path)
    assert caught.value.id == "secret-not-a-reference"
    assert VALUE not in json.dumps(caught.value.to_dict())
