"""From settings and ~/.ssh/config to the servers that are passed."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.transport import ConnectionSettings
from ddtree_deploy.transport.hops import chain


def settings(address: str = "gpu1", **changes: object) -> ConnectionSettings:
    return ConnectionSettings("ssh", address, **changes)  # type: ignore[arg-type]


@pytest.fixture
def config(home: Path):
    def write(text: str) -> None:
        (home / ".ssh").mkdir(exist_ok=True)
        (home / ".ssh" / "config").write_text(text)

    return write


def labels(value: ConnectionSettings) -> list[str]:
    return [hop.label for hop in chain(value)]


def test_without_a_config() -> None:
    assert labels(settings()) == [f"{getpass.getuser()}@gpu1:22"]
    assert labels(settings(user="root", port=2222)) == ["root@gpu1:2222"]
    assert chain(settings(port=2222))[0].name == "[gpu1]:2222"
    assert chain(settings())[0].name == "gpu1"


def test_an_ipv6_address() -> None:
    hop = chain(settings("fe80::1", user="root", port=22))[0]
    assert (hop.label, hop.name) == ("root@[fe80::1]:22", "fe80::1")


def test_jump_hosts_in_their_order() -> None:
    value = settings(user="root", jump=["a@gate", "b@inner:2200", "c@[fe80::2]:22", "[fe80::3]"])
    me = getpass.getuser()
    assert labels(value) == ["a@gate:22", "b@inner:2200", "c@[fe80::2]:22", f"{me}@[fe80::3]:22", "root@gpu1:22"]


@pytest.mark.parametrize("spec", ["", "user@", "host:0", "host:99999", "host:x", "a:b:c", "@host"])
def test_a_jump_host_that_is_none(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        chain(settings(jump=[spec]))
    assert caught.value.id == "bad-jump"


def test_aliases_of_the_config(config, home: Path) -> None:
    key = home / "key"
    key.write_text("a key")
    config("Host gpu1\n HostName 10.0.0.7\n User train\n Port 2207\n IdentityFile ~/key\n IdentityFile ~/missing\n")
    hop = chain(settings())[0]
    assert (hop.label, hop.name, hop.identities) == ("train@10.0.0.7:2207", "[10.0.0.7]:2207", (key,))
    assert not hop.only_identities
    assert labels(settings(user="root", port=2208)) == ["root@10.0.0.7:2208"], "the inventory wins"
    assert labels(settings(port=22)) == ["train@10.0.0.7:22"], "the usual port, too"


def test_host_key_alias_and_identities_only(config) -> None:
    config("Host gpu1\n HostName 10.0.0.7\n HostKeyAlias rack-7\n IdentitiesOnly yes\n")
    hop = chain(settings(port=2222))[0]
    assert (hop.name, hop.only_identities) == ("rack-7", True)


def test_proxy_jump(config) -> None:
    config(
        "Host gpu1\n User root\n ProxyJump inner\n"
        "Host inner\n HostName 10.0.0.2\n User b\n ProxyJump gate\n"
        "Host gate\n HostName gate.example.com\n User a\n Port 2200\n"
    )
    assert labels(settings()) == ["a@gate.example.com:2200", "b@10.0.0.2:22", "root@gpu1:22"]
    assert labels(settings(jump=["x@other"])) == ["x@other:22", "root@gpu1:22"], "the inventory's jump wins"


def test_several_proxy_jumps_and_none(config) -> None:
    config("Host gpu1\n User root\n ProxyJump a@one,b@two:23\nHost gpu2\n User root\n ProxyJump none\n")
    assert labels(settings()) == ["a@one:22", "b@two:23", "root@gpu1:22"]
    assert labels(settings("gpu2")) == ["root@gpu2:22"]


def test_a_loop_of_jumps(config) -> None:
    config("Host *\n ProxyJump gate\n")
    with pytest.raises(InputError) as caught:
        chain(settings())
    assert caught.value.id == "too-many-jumps"


def test_a_proxy_command_is_refused_rather_than_ignored(config) -> None:
    config("Host gpu1\n ProxyCommand nc %h %p\n")
    with pytest.raises(InputError) as caught:
        chain(settings())
    assert caught.value.id == "proxy-command"


def test_an_identity_that_is_missing_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        chain(settings(identity=str(tmp_path / "nokey")))
    assert caught.value.id == "identity-missing"


def test_a_config_that_cannot_be_read(home: Path) -> None:
    (home / ".ssh" / "config").mkdir(parents=True)
    with pytest.raises(InputError) as caught:
        chain(settings())
    assert caught.value.id == "ssh-config"
