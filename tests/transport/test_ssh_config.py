"""~/.ssh/config as OpenSSH reads it: what ``ssh -G`` says of the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.transport import ConnectionSettings
from ddtree_deploy.transport.hops import chain
from ddtree_deploy.transport.ssh_config import MAX_DEPTH


@pytest.fixture
def ssh(home: Path) -> Path:
    (home / ".ssh").mkdir()
    return home / ".ssh"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def label(address: str = "gpu1") -> str:
    return " ".join(hop.label for hop in chain(ConnectionSettings("ssh", address, user="root")))


def refused(address: str = "gpu1") -> InputError:
    with pytest.raises(InputError) as caught:
        label(address)
    return caught.value


@pytest.mark.parametrize(
    "include",
    ["Include hosts.d/one", "include=hosts.d/*", 'INCLUDE "hosts.d/one" other', "Include ~/.ssh/hosts.d/on? # comment"],
)
def test_included_files_are_read(include: str, ssh: Path) -> None:
    write(ssh / "hosts.d" / "one", "Host gpu1\n HostName 10.0.0.7\n Port 2207\n")
    (ssh / "hosts.d" / "folder").mkdir()
    write(ssh / "config", f"{include}\nHost *\n Port 2208\n")
    assert label() == "root@10.0.0.7:2207"
    assert label("gpu2") == "root@gpu2:2208"


def test_an_absolute_path_and_files_that_are_not_there(ssh: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere", "HostName 10.0.0.8\n")
    write(ssh / "config", f"Include {tmp_path}/elsewhere missing nothing/*.conf\n")
    assert label() == "root@10.0.0.8:22"


def test_several_files_come_in_their_order_and_the_first_value_counts(ssh: Path) -> None:
    for name in ("b", "a"):
        write(ssh / "d" / name, f"HostName {name}.example.com\n")
    write(ssh / "config", "Include d/*\nHostName c.example.com\n")
    assert label() == "root@a.example.com:22"


def test_an_include_below_a_host_counts_for_that_host(ssh: Path) -> None:
    write(ssh / "inner", "Port 2201\nHost gpu1 gpu2\n HostName 10.0.0.9\n")
    write(ssh / "config", "Host gpu1\n Include inner\n HostKeyAlias rack\nHost *\n Port 2299\n")
    assert label("gpu1") == "root@10.0.0.9:2201"
    assert label("gpu2") == "root@gpu2:2299", "no block of the included file counts for it"
    assert chain(ConnectionSettings("ssh", "gpu1"))[0].name == "rack", "the block goes on after the Include"
    assert chain(ConnectionSettings("ssh", "gpu2"))[0].name == "[gpu2]:2299"


def test_an_include_before_all_blocks_ends_with_its_file(ssh: Path) -> None:
    write(ssh / "inner", "Host other\n HostName 10.0.0.9\n")
    write(ssh / "config", "Include inner\nPort 2200\n")
    assert label("gpu1") == "root@gpu1:2200"


def test_includes_in_included_files(ssh: Path) -> None:
    for number in range(MAX_DEPTH):
        write(ssh / f"f{number}", f"Include f{number + 1}\n")
    write(ssh / f"f{MAX_DEPTH}", "Port 2216\n")
    write(ssh / "config", "Include f1\n")
    assert label() == "root@gpu1:2216"
    write(ssh / "config", "Include f0\n")
    assert "deeper" in refused().message


def test_a_circle_of_includes(ssh: Path) -> None:
    write(ssh / "config", "Include config config\n")
    error = refused()
    assert (error.id, error.exit_code) == ("ssh-config", 3)
    write(ssh / "circle", "Include circle\n" * 9)
    write(ssh / "config", "Match host other\n Include circle\n")
    assert "circle goes deeper" in refused().message, "and at once"


def test_an_include_below_a_match(ssh: Path) -> None:
    write(ssh / "plain", "Port 2205\n")
    write(ssh / "blocks", "Host *\n Port 2206\n")
    write(ssh / "config", "Match host gpu1\n Include plain\nMatch all\n Include blocks\n")
    assert (label("gpu1"), label("gpu2")) == ("root@gpu1:2205", "root@gpu2:2206")
    write(ssh / "config", "Port 22\nMatch host gpu1\n Include blocks\n")
    error = refused()
    assert error.id == "ssh-config" and "Match host gpu1" in error.message
    assert error.where == f"{ssh}/config:3"
    assert label("gpu2") == "root@gpu2:22", "the block is not about it"


def test_what_is_refused_below_a_match_is_so_where_it_matches(ssh: Path) -> None:
    write(ssh / "blocks", "Host *\n Port 2206\n")
    write(ssh / "nested", "Port 2205\nInclude blocks\n")
    write(
        ssh / "config", "Host gpu1\n HostName 10.0.0.9\nMatch host 10.0.0.9\n Include nested\nMatch all\n Port 2201\n"
    )
    assert refused("gpu1").where == f"{ssh}/nested:2"
    assert label("gpu2") == "root@gpu2:2201"
    write(ssh / "config", "Match host gpu1 user root\n Include %h.conf\n")
    assert "%h.conf" in refused("gpu1").message
    assert label("gpu2") == "root@gpu2:22"


@pytest.mark.parametrize(
    "criteria", ["host gpu1 tagged x", "sessiontype=shell Host gpu1", "!localnetwork 10.0.0.0/8 host gpu1,gpu3"]
)
def test_match_criteria_that_are_not_known(criteria: str, ssh: Path) -> None:
    write(ssh / "config", f"Match {criteria}\n ForwardAgent yes\n Port 2205\nHost *\n Port 2206\n")
    error = refused("gpu1")
    assert (error.id, error.exit_code, error.where) == ("ssh-config", 3, f"{ssh}/config:1")
    assert any(error.message.endswith(name) for name in (": tagged", ": sessiontype", ": !localnetwork"))
    assert label("gpu2") == "root@gpu2:2206"
    write(ssh / "config", f"Match {criteria}\n ForwardAgent yes\nHost *\n Port 2206\n")
    assert label("gpu1") == "root@gpu1:2206", "nothing in the block has a meaning for us"
    write(ssh / "ports", "Port 2205\n")
    write(ssh / "config", f"Match {criteria}\n Include ports\n")
    assert refused("gpu1").where == f"{ssh}/config:1"
    assert label("gpu2") == "root@gpu2:22"


def test_a_match_of_unknown_criteria_alone(ssh: Path) -> None:
    write(ssh / "config", "Match command x version y\n User al\n")
    assert refused().message.endswith(": command, version")


@pytest.mark.parametrize("criteria", ["HOST gpu1", "host=gpu1", "!host gpu2", 'Host "gpu1"', "all", "final host gpu1"])
def test_match_criteria_in_other_spellings(criteria: str, ssh: Path) -> None:
    write(ssh / "config", f"match {criteria}\n Port 2205\nMatch HOST other\n User al\nHost gpu2\n HostName gpu2\n")
    assert label("gpu1") == "root@gpu1:2205"
    assert label("gpu2") == ("root@gpu2:2205" if criteria == "all" else "root@gpu2:22")


@pytest.mark.parametrize("pattern", ["%h.conf", "${HOME}/x"])
def test_tokens_are_refused_rather_than_ignored(pattern: str, ssh: Path) -> None:
    write(ssh / "config", f"Include {pattern}\n")
    error = refused()
    assert error.id == "ssh-config" and pattern in error.message


def test_a_file_in_another_encoding(ssh: Path) -> None:
    (ssh / "config").write_bytes(b"# Rechner im B\xfcro\nPort 2200\n")
    assert label() == "root@gpu1:2200"


@pytest.mark.parametrize(
    "text",
    [
        *('Host "gpu1', "Match all host", "CanonicalizeHostname yes", "Include ~nobody-here/x", "Port"),
        *("Port # 22", "User #al", "ProxyJump #gate", "Match # all", "Match host"),
    ],
)
def test_what_cannot_be_understood_is_bad_input(text: str, ssh: Path) -> None:
    write(ssh / "config", text + "\n")
    assert refused().id == "ssh-config"


@pytest.mark.parametrize("value", ["abc", "0", "70000", "-1", "22#the usual one", "²"])
def test_a_port_that_is_none(value: str, ssh: Path) -> None:
    write(ssh / "config", f"Host gpu1\n Port {value}\n")
    error = refused()
    assert (error.id, error.exit_code) == ("ssh-config", 3)
    assert "gpu1" in error.message and value in error.message
    assert label("gpu2") == "root@gpu2:22"


@pytest.mark.parametrize("none", ["ProxyCommand none", "ProxyCommand NONE", 'ProxyCommand "none"'])
@pytest.mark.parametrize("other", ["ProxyCommand nc %h %p", "ProxyJump gate"])
def test_no_proxy_overrides_that_of_all_hosts(none: str, other: str, ssh: Path) -> None:
    write(ssh / "config", f"Host gpu1\n {none}\nHost *\n {other}\n")
    assert label("gpu1") == "root@gpu1:22"


@pytest.mark.parametrize("none", ["none", "None", "NONE"])
def test_no_jump_overrides_that_of_all_hosts(none: str, ssh: Path) -> None:
    write(ssh / "config", f"Host gpu1\n ProxyJump {none}\nHost *\n ProxyJump gate\n")
    assert label("gpu1") == "root@gpu1:22"


def test_of_a_proxy_command_and_a_jump_the_first_counts(ssh: Path) -> None:
    write(ssh / "config", "Host gpu1\n ProxyCommand nc %h %p\nHost gpu2\n ProxyJump none\nHost *\n ProxyJump a@gate\n")
    assert refused("gpu1").id == "proxy-command"
    write(ssh / "config", "Host gpu*\n ProxyJump a@gate\nHost *\n ProxyCommand nc %h %p\n")
    assert refused("gpu1").id == "proxy-command", "that of the jump host"
    write(ssh / "config", "Host gate\n ProxyCommand none\nHost *\n ProxyJump a@gate\n ProxyCommand nc %h %p\n")
    assert label("gpu1") == "a@gate:22 root@gpu1:22"
    write(ssh / "config", "ProxyJump none\nProxyCommand nc %h %p\n")
    assert refused("gpu1").id == "proxy-command"


def test_jumps_of_the_inventory_go_before_a_proxy_command(ssh: Path) -> None:
    write(ssh / "config", "Host gpu1\n ProxyCommand nc %h %p\n")
    hops = chain(ConnectionSettings("ssh", "gpu1", user="root", jump=["a@gate"]))
    assert [hop.label for hop in hops] == ["a@gate:22", "root@gpu1:22"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HostName 4.4.4.4 # c\nUser al # x\nPort 2200 # x", "al@4.4.4.4:2200"),
        ("HostName\t4.4.4.4\t#c\nUser = al #\nPort=2200 ## x", "al@4.4.4.4:2200"),
        ("User al#x", "al#x@gpu1:22"),
        ('User "al # x"', "al # x@gpu1:22"),
        ('User "al # x" # y " z', "al # x@gpu1:22"),
        ("User al\nHost gpu1\n ProxyJump b@j # via j", "b@j:22 al@gpu1:22"),
        ("User al\nHost gpu1\n ProxyJump b@j#via j", "b@j:22 al@gpu1:22"),
        ("ProxyJump none # no jump\nProxyJump b@j\nUser al", "al@gpu1:22"),
        ("Host gpu1 # other\n User al", "al@gpu1:22"),
        ("Host other # gpu1 *\n User bob\nHost *\n User al", "al@gpu1:22"),
        ('Host other "# x" gpu1\n User al', "al@gpu1:22"),
        ("Match host gpu1 # the one\n User al", "al@gpu1:22"),
        ("Match host other #c\n User bob\nMatch all # c\n User al", "al@gpu1:22"),
        ("LocalCommand # x\nSetEnv A='b # c\nUser al", "al@gpu1:22"),
    ],
)
def test_comments_at_the_end_of_a_line(text: str, expected: str, ssh: Path) -> None:
    write(ssh / "config", text + "\n")
    assert " ".join(hop.label for hop in chain(ConnectionSettings("ssh", "gpu1"))) == expected


def test_a_comment_behind_an_identity_file(ssh: Path) -> None:
    for name in ("one", "the other"):
        write(ssh / name, "key")
    write(ssh / "config", f'IdentityFile {ssh}/one # x\nIdentityFile "{ssh}/the other" # y\nIdentitiesOnly yes # z\n')
    hop = chain(ConnectionSettings("ssh", "gpu1"))[0]
    assert (hop.identities, hop.only_identities) == ((ssh / "one", ssh / "the other"), True)


def test_a_proxy_command_has_no_comments(ssh: Path) -> None:
    write(ssh / "config", "ProxyCommand none # for OpenSSH a command\n")
    assert refused().id == "proxy-command"


def test_a_match_is_about_the_user_of_the_inventory(ssh: Path) -> None:
    write(ssh / "bob", "key")
    write(
        ssh / "config",
        f"IdentityFile {ssh}/%r\nHost gpu*\n User al\nMatch user bob\n Port 2201\nMatch user al\n Port 2202\n",
    )
    hops = chain(ConnectionSettings("ssh", "gpu1", user="bob", jump=["bob@gpu3", "gpu4", "bob@gpu5:22"]))
    assert [hop.label for hop in hops] == ["bob@gpu3:2201", "al@gpu4:2202", "bob@gpu5:22", "bob@gpu1:2201"]
    assert hops[-1].identities == (ssh / "bob",)
    assert chain(ConnectionSettings("ssh", "gpu1"))[0].label == "al@gpu1:2202"
    assert chain(ConnectionSettings("ssh", "gpu1", user="eve"))[0].label == "eve@gpu1:22"
