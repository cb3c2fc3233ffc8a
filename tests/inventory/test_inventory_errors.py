"""Every error of an inventory says file:line:column, the key, what was expected and what was found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inventory_files import fails, load, one_fails

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.validation import MAX_SHOWN
from ddtree_deploy.plan.inputs import BUDGET_MAX

# key and value of a host (line 3, column 5) -> id, line:column, words of the message, words of the hint
BAD = {
    "unknown key": ("bugdet: 3", "unknown-key", "3:5", "hosts.a.bugdet", "'budget'"),
    "unknown key far from all": ("colour: red", "unknown-key", "3:5", "hosts.a.colour", "known keys: api_key"),
    "key of another place": ("user: root", "unknown-key", "3:5", "hosts.a.user", "under 'connection'"),
    "key of another place that is near": ("port: 22", "unknown-key", "3:5", "hosts.a.port", "or did you mean 'ports'"),
    "unknown key below": ("connection: {usr: x}", "unknown-key", "3:18", "hosts.a.connection.usr", "'user'"),
    "wrong type": ("root: 5", "wrong-type", "3:11", "expected text, found the number 5", "quotes"),
    "list for text": ("model: [a]", "wrong-type", "3:12", "expected text, found a list", ""),
    "text for a mapping": ("environment: HOME", "wrong-type", "3:18", "found the text 'HOME'", ""),
    "text for a list": ("groups: g", "wrong-type", "3:13", "expected a list, found the text 'g'", "list"),
    "unquoted version": ("model: 1.0", "wrong-type", "3:12", "expected text, found the number 1.0", "quotes"),
    "octal port": ("connection: {port: 022}", "wrong-type", "3:24", "found the text '022'", "write 22: a leading"),
    "sexagesimal port": ("connection: {port: 22:22}", "wrong-type", "3:24", "found the text '22:22'", "base 60"),
    "quoted port": ("connection: {port: '22'}", "wrong-type", "3:24", "found the text '22'", "without quotes"),
    "port with underscore": ("connection: {port: 2_2}", "wrong-type", "3:24", "found the text '2_2'", "plain decimal"),
    "truth for a port": ("connection: {port: true}", "wrong-type", "3:24", "a whole number, found true", ""),
    "fraction for a port": ("connection: {port: 22.5}", "wrong-type", "3:24", "a whole number, found the number", ""),
    "port 0": ("connection: {port: 0}", "bad-value", "3:24", "at least 1, found 0", ""),
    "port 65536": ("connection: {port: 65536}", "bad-value", "3:24", "at most 65535, found 65536", ""),
    "connection of another kind": (
        "connection: docker",
        "bad-connection",
        "3:17",
        "found the text 'docker'",
        "address",
    ),
    "connection kind": ("connection: {kind: telnet}", "bad-value", "3:24", "'ssh' or 'local'", ""),
    "local with a user": ("connection: {kind: local, user: x}", "bad-connection", "3:17", "has no user", "remove"),
    "address with a user": ("connection: {address: me@gpu}", "bad-address", "3:27", "'me@gpu'", "keys of their own"),
    "address with a port": ("connection: {address: 'gpu:22'}", "bad-address", "3:27", "'gpu:22'", "keys of their own"),
    "address out of range": ("connection: {address: 10.0.0.256}", "bad-address", "3:27", "'10.0.0.256'", ""),
    "address with an option": ("connection: {address: -oProxyCommand=x}", "bad-address", "3:27", "expected a host", ""),
    "user with an option": ("connection: {user: -x}", "bad-value", "3:24", "user name", ""),
    "jump without host": ("connection: {jump: 'me@'}", "bad-jump", "3:24", "'me@'", "gate.example.com"),
    "jump with a bad port": ("connection: {jump: ['a', 'b:70000']}", "bad-jump", "3:30", "'b:70000'", ""),
    "no time to connect": ("connection: {connect_timeout: 0}", "bad-value", "3:35", "at least 1", ""),
    "relative root": ("root: ddtree", "bad-path", "3:11", "'ddtree'", "begin it with /"),
    "root is /": ("root: /", "bad-path", "3:11", "below /", ""),
    "root with ..": ("root: /opt/../srv", "bad-path", "3:11", "without '..'", ""),
    "root with .. below the home": ("root: ~/../srv", "bad-path", "3:11", "without '..'", ""),
    "root that PATH breaks at": ("root: '/opt/a:b'", "bad-path", "3:11", "':'", "another"),
    "relative base": ("base: ./venv", "bad-path", "3:11", "absolute path", "~/"),
    "empty text": ("model: ''", "bad-value", "3:12", "found an empty text", ""),
    "budget 0": ("budget: 0", "budget-out-of-range", "3:13", f"out of range (1 to {BUDGET_MAX}, or auto)", "none"),
    "budget -1": ("budget: -1", "budget-out-of-range", "3:13", "budget -1", "draft-tree nodes"),
    "budget 100000": ("budget: 100000", "budget-out-of-range", "3:13", "budget 100000", "nodes"),
    "budget just above": (f"budget: {BUDGET_MAX + 1}", "budget-out-of-range", "3:13", f"{BUDGET_MAX + 1}", ""),
    "budget as fraction": ("budget: 7.5", "budget-invalid", "3:13", "whole number or auto, found the number 7.5", ""),
    "budget as truth": ("budget: true", "budget-invalid", "3:13", "found true", ""),
    "budget octal": ("budget: 015", "budget-invalid", "3:13", "found the text '015'", "write 15"),
    "budget word": ("budget: max", "budget-invalid", "3:13", "found the text 'max'", "nodes"),
    "gpus as a number": ("gpus: 0", "wrong-type", "3:11", "found the number 0", "[0, 1]"),
    "gpus as text": ("gpus: 0,1", "wrong-type", "3:11", "found the text '0,1'", "[0, 1]"),
    "gpus of text": ("gpus: [0, one]", "wrong-type", "3:11", "a list with the text 'one'", ""),
    "gpus of truth": ("gpus: [true]", "wrong-type", "3:11", "a list with true", ""),
    "gpus negative": ("gpus: [0, -1]", "bad-value", "3:11", "found -1", ""),
    "gpus twice": ("gpus: [0, 1, 0]", "bad-value", "3:11", "GPU 0 is listed twice", ""),
    "no gpus": ("gpus: []", "bad-value", "3:11", "empty list", "CPU"),
    "ports backwards": ("ports: 30099-30000", "bad-ports", "3:12", "ends before", "write 30000-30099"),
    "ports beyond": ("ports: 65000-66000", "bad-ports", "3:12", "1 to 65535", ""),
    "ports with a colon": ("ports: 30000:30099", "bad-ports", "3:12", "30000-30099", "base 60"),
    "ports as words": ("ports: many", "bad-ports", "3:12", "found the text 'many'", ""),
    "one port": ("ports: 30000", "bad-ports", "3:12", "1 service needs 2 ports", "one for its own"),
    "listen with a port": ("listen: 127.0.0.1:80", "bad-address", "3:13", "expected an IP address", "ports"),
    "listen everywhere": ("listen: '*'", "bad-address", "3:13", "found the text '*'", "0.0.0.0"),
    "listen beyond loopback": ("listen: 0.0.0.0", "api-key-required", "3:13", "0.0.0.0", "api_key: env:NAME"),
    "listen on IPv6": ("listen: '::'", "api-key-required", "3:13", "listens on ::", "api_key"),
    "two sources": ("source: {index: default, wheelhouse: /x}", "bad-source", "3:13", "found index and wheelhouse", ""),
    "no source": ("source: {}", "bad-source", "3:13", "found none", ""),
    "source by another name": ("source: pypi", "bad-source", "3:13", "found the text 'pypi'", "index: URL"),
    "index that is a folder": ("source: {index: /wheels}", "bad-index", "3:21", "URL", "wheelhouse"),
    "index that is a word": ("source: {index: pypi}", "bad-index", "3:21", "'pypi'", "https://"),
    "index over ftp": ("source: {extra_index: ['ftp://x/simple']}", "bad-index", "3:28", "ftp", "https://"),
    "donor unknown": ("source: {donor: 'b:/venv'}", "unknown-host", "3:21", "'b:/venv'", "HOST:/path"),
    "donor relative": ("source: {donor: 'a:venv'}", "bad-path", "3:21", "absolute path", "begin it with /"),
    "donor itself": ("source: {donor: a}", "bad-source", "3:21", "itself", "another venv"),
    "no launch time": ("launch_timeout: 0", "bad-value", "3:21", "at least 1", ""),
    "launch time with a unit": ("launch_timeout: 10m", "wrong-type", "3:21", "a whole number, found the text", ""),
    "arguments as text": ("engine_arguments: --tp 2", "wrong-type", "3:23", "found the text", "["),
    "argument list that begins with a value": ("engine_arguments: [tp, '2']", "bad-engine-argument", "3:23", "--", ""),
    "argument with its value inside": (
        "engine_arguments: ['--tp 2']",
        "bad-engine-argument",
        "3:23",
        "'--tp 2'",
        "item",
    ),
    "argument twice": ("engine_arguments: {tp: 2, --tp: 4}", "bad-engine-argument", "3:37", "twice", ""),
    "argument in two spellings": ("engine_arguments: {a-b: 2, a_b: 4}", "bad-engine-argument", "3:37", "twice", "_"),
    "argument that is launch's": ("engine_arguments: {port: 1}", "reserved-engine-argument", "3:23", "--port", "port"),
    "argument with a mapping": ("engine_arguments: {tp: {a: b}}", "wrong-type", "3:23", "found a mapping", ""),
    "variable without a value that is a list": ("environment: {A: [x]}", "wrong-type", "3:22", "found a list", "value"),
    "variable with a bad name": ("environment: {A-B: x}", "bad-environment", "3:24", "A-B", "letters"),
    "variable of two lines": ('environment: {A: "x\\ny"}', "bad-environment", "3:22", "one line", ""),
    "reference without a name": ("environment: {A: 'env:'}", "bad-environment", "3:22", "reference", "value"),
    "unknown group": ("groups: [gpus]", "unknown-group", "3:14", "unknown group 'gpus'", "known: none"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_host(case: str, tmp_path: Path) -> None:
    text, id, place, words, hint = BAD[case]
    error = one_fails(tmp_path, text)
    assert error.id == id
    assert str(error.where) == f"{tmp_path}/hosts.yaml:{place}"
    assert words in error.message
    assert hint in str(error.hint or "")


@pytest.mark.parametrize(
    ("text", "id", "place", "words", "hint"),
    [
        ("[a, b]", "wrong-type", "1:1", "expected a mapping of keys to values, found a list", ""),
        ("hosts", "wrong-type", "1:1", "found the text 'hosts'", ""),
        ("defaults: {}", "missing-key", "1:1", "the key 'hosts' is missing", ""),
        ("hosts: {}", "no-hosts", "1:8", "at least one host", ""),
        ("hosts:", "wrong-type", "1:7", "found nothing", ""),
        ("hosts: [a, b]", "wrong-type", "1:8", "expected a mapping of keys to values, found a list", "name: value"),
        ("hosts: {a: local}", "wrong-type", "1:12", "hosts.a: expected a mapping", ""),
        ("hosts: {'a b': {}}", "bad-name", "1:9", "'a b' is not a name for a host", "letters"),
        ("hosts: {'gpu:1': {}}", "bad-name", "1:9", "'gpu:1'", ""),
        ("hosts: {-x: {}}", "bad-name", "1:9", "'-x'", ""),
        ("hosts: {all: {}}", "bad-name", "1:9", "every host", ""),
        ("hosts: {a: {}}\ngroups: {a: {}}", "name-clash", "1:9", "a group of that name", "rename"),
        ("hosts: {a: {}}\ngroups: {g: {groups: [h]}}", "unknown-key", "2:14", "groups.g.groups", "under 'hosts'"),
        ("hosts: {a: {groups: [gpu]}}\ngroups: {gpus: {}}", "unknown-group", "1:22", "'gpu'", "'gpus'"),
        ("hosts: {a: {groups: [g, g]}}\ngroups: {g: {}}", "bad-value", "1:25", "listed twice", ""),
        ("host: {a: {}}", "unknown-key", "1:1", "unknown key", "'hosts'"),
        ("hosts: {a: {}}\ndefault: {}", "unknown-key", "2:1", "default", "'defaults'"),
        ("hosts: {a: {}}\ndefaults: {bugdet: 1}", "unknown-key", "2:12", "defaults.bugdet", "'budget'"),
    ],
)
def test_bad_file(text: str, id: str, place: str, words: str, hint: str, tmp_path: Path) -> None:
    error = fails(tmp_path, text)
    assert (error.id, str(error.where)) == (id, f"{tmp_path}/hosts.yaml:{place}")
    assert words in error.message
    assert hint in str(error.hint or "")


def test_errors_between_keys_are_told_where_the_key_is(tmp_path: Path) -> None:
    text = """\
        defaults: {listen: 0.0.0.0}
        groups: {many: {gpus: [0, 1]}}
        hosts:
          a: {groups: [many], ports: 30000-30001}
          b: {listen: 127.0.0.1, groups: [many], gpus: all}
        """
    errors = fails(tmp_path, text).details["errors"]
    assert [(error["id"], error["key"], error["where"].split(":", 1)[1]) for error in errors] == [
        ("api-key-required", "hosts.a", "1:20"),
        ("bad-ports", "hosts.a", "4:30"),
    ]


def test_several_errors_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    error = fails(tmp_path, "defaults:\n  budget: 0\nhosts:\n  a:\n    gpus: 3\n    colour: red\n  b:\n    root: x\n")
    assert [(entry["id"], entry["key"]) for entry in error.details["errors"]] == [
        ("budget-out-of-range", "defaults.budget"),
        ("wrong-type", "hosts.a.gpus"),
        ("unknown-key", "hosts.a.colour"),
        ("bad-path", "hosts.b.root"),
    ]
    assert [entry["where"].split(":", 1)[1] for entry in error.details["errors"]] == ["2:11", "5:11", "6:5", "8:11"]
    assert error.message.startswith("defaults.budget: ")
    assert error.message.endswith("(and 3 more)")
    assert error.where == error.details["errors"][0]["where"]


def test_very_many_errors_are_counted(tmp_path: Path) -> None:
    error = fails(tmp_path, "hosts:\n" + "".join(f"  h{n}: {{budget: 0}}\n" for n in range(30)))
    assert len(error.details["errors"]) == MAX_SHOWN
    assert error.details["more"] == 30 - MAX_SHOWN
    assert [entry["key"] for entry in error.details["errors"]] == [f"hosts.h{n}.budget" for n in range(MAX_SHOWN)]


SECRETS = {
    "api key": "api_key: sk-very-secret",
    "api key as a number": "api_key: 123456",
    "api key with a bad name": "api_key: 'env:sk-very-secret'",
    "api key as a list": "api_key: [sk-very-secret]",
    "token in the environment": "environment: {HF_TOKEN: sk-very-secret}",
    "key in the environment": "environment: {OPENAI_API_KEY: sk-very-secret}",
    "password in the environment": "environment: {PASSWORD: sk-very-secret}",
    "index": "source: {index: 'https://me:sk-very-secret@example.com/simple'}",
    "extra index": "source: {extra_index: ['https://sk-very-secret@example.com/simple']}",
    "engine argument": "engine_arguments: {api-key: sk-very-secret}",
    "engine argument in a list": "engine_arguments: [--api-key, sk-very-secret]",
    "engine argument with underscores": "engine_arguments: {api_key: sk-very-secret}",
    "engine argument with dashes and underscores": "engine_arguments: {--admin_api_key: sk-very-secret}",
    "engine argument in short": "engine_arguments: {api-ke: sk-very-secret}",
    "engine argument in very short": "engine_arguments: [--ap, sk-very-secret]",
    "engine argument in capitals": "engine_arguments: [--API-KEY=sk-very-secret]",
    "engine argument in the key": "engine_arguments: {'api-key=sk-very-secret': true}",
    "password of a key file": "engine_arguments: {ssl_keyfile_pass: sk-very-secret}",
    "proxy": "environment: {HTTPS_PROXY: 'http://me:sk-very-secret@proxy.example.com:3128'}",
    "proxy said to be text": "environment: {HTTPS_PROXY: {value: 'http://me:sk-very-secret@proxy.example.com'}}",
    "no user": "environment: {CACHE: 'redis://:sk-very-secret@cache.example.com/0'}",
    "token as the user": "environment: {REPOSITORY: 'https://sk-very-secret@example.com/x.git'}",
    "one of several URLs": "environment: {URLS: 'http://a.example.com,http://me:sk-very-secret@b.example.com'}",
}


@pytest.mark.parametrize("case", SECRETS)
def test_secret_in_plain_text_is_refused_and_not_repeated(case: str, tmp_path: Path) -> None:
    error = one_fails(tmp_path, SECRETS[case])
    assert error.id == "secret-in-plain-text"
    assert "env:" in str(error.hint)
    shown = json.dumps(error.to_dict())
    assert "very-secret" not in shown
    assert "123456" not in shown


@pytest.mark.parametrize(
    "name", ["model-pa", "model_path", "--model_path", "mode", "po", "speculative_algo", "spec", "base-gpu"]
)
def test_other_spellings_of_what_launch_sets(name: str, tmp_path: Path) -> None:
    error = one_fails(tmp_path, f"engine_arguments: {{{name}: x}}")
    assert error.id == "reserved-engine-argument"


def test_flags_that_only_begin_alike(tmp_path: Path) -> None:
    text = "hosts: {a: {engine_arguments: {ssl-keyfile: /k, model-impl: auto, nccl-init-addr: x, tp: 2, api: null}}}"
    with pytest.raises(InputError):
        load(tmp_path, text)  # --api may be --api-key, even where it takes one back
    arguments = load(tmp_path, text.replace(", api: null", "")).host("a").engine_arguments
    assert list(arguments[::2]) == ["--ssl-keyfile", "--model-impl", "--nccl-init-addr", "--tp"]


def test_urls_without_a_password(tmp_path: Path) -> None:
    urls = ["http://proxy.example.com:3128", "ssh://git@example.com/x", "https://example.com/@scope/a:b@c", "a:b@c"]
    for url in urls:
        assert load(tmp_path, f"hosts: {{a: {{environment: {{URL: '{url}'}}}}}}").host("a").environment == {"URL": url}


def test_what_only_looks_like_a_secret_can_be_said(tmp_path: Path) -> None:
    text = """
        hosts:
          a:
            environment:
              NEXT_TOKEN: {value: not-a-secret}
              MAX_TOKEN: 5
              TOKENIZERS_PARALLELISM: false
              EMPTY_TOKEN: ""
              URL: {value: "file:not-a-reference"}
    """
    assert load(tmp_path, text).host("a").environment == {
        "NEXT_TOKEN": "not-a-secret",
        "MAX_TOKEN": "5",
        "TOKENIZERS_PARALLELISM": "false",
        "EMPTY_TOKEN": "",
        "URL": "file:not-a-reference",
    }
