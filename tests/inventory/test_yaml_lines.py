"""What YAML makes ambiguous or dangerous is refused, with the place and an id of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddtree_deploy.errors import ExitCode, InputError
from ddtree_deploy.inventory.yaml_lines import MAX_BYTES, Mark, parse_yaml, read_yaml


def refused(text: str | bytes, tmp_path: Path) -> InputError:
    path = tmp_path / "hosts.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        read_yaml(path, "inventory")
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert str(caught.value.where).startswith(str(path))
    return caught.value


def bomb(levels: int, width: int) -> str:
    lines = ["a0: &a0 [lol]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * width)}]" for n in range(1, levels)]
    return "\n".join(lines)


REFUSED = {
    "duplicate key": ("a: 1\nb: 2\na: 3\n", "yaml-duplicate-key", 3, 1, "line 1"),
    "duplicate key, quoted once": ("a:\n  b: 1\n  'b': 2\n", "yaml-duplicate-key", 3, 3, "a.b"),
    "duplicate key in a flow mapping": ("a: {b: 1, c: 2, b: 3}\n", "yaml-duplicate-key", 1, 17, "a.b"),
    "empty file": ("", "yaml-empty", None, None, "empty"),
    "only comments": ("# nothing\n\n", "yaml-empty", None, None, "empty"),
    "only a document marker": ("---\n", "yaml-empty", None, None, "empty"),
    "null": ("~\n", "yaml-empty", None, None, "empty"),
    "tab as indentation": ("a:\n\tb: 1\n", "yaml-tab", 2, 1, "spaces"),
    "tab after spaces": ("a:\n  b: 1\n \tc: 2\n", "yaml-tab", 3, None, "spaces"),
    "tab after a colon": ("a:\t1\n", "yaml-tab", 1, 3, "spaces"),
    "not UTF-8": (b"a: 1\nname: caf\xe9\n", "not-utf8", 2, 10, "offset 14"),
    "not UTF-8 after a BOM": (b"\xef\xbb\xbfa: \xff\n", "not-utf8", 1, 7, "offset 6"),
    "UTF-16": ("a: 1\n".encode("utf-16"), "not-utf8", 1, None, "UTF-16"),
    "NUL byte": ("a: 1\nb: \x00\n", "yaml-bad-character", 2, 4, "U+0000"),
    "a binary file": (b"\x7fELF\x02\x01\x01\x00", "yaml-bad-character", 1, 1, "U+007F"),
    "anchor bomb": (bomb(30, 9), "yaml-alias-bomb", None, None, "50000"),
    "deep alias chain": (bomb(60, 1), "yaml-too-deep", None, None, "40"),
    "alias inside itself": ("a: &a\n  b: *a\n", "yaml-recursive", 1, 4, "itself"),
    "alias without anchor": ("a: *b\n", "yaml-alias", 1, 4, "'b'"),
    "deep nesting": ("[" * 100_000, "yaml-too-deep", 1, 41, "40"),
    "two documents": ("a: 1\n---\nb: 2\n", "yaml-documents", 2, 1, "second"),
    "merge key": ("x: &x {a: 1}\ny:\n  <<: *x\n", "yaml-merge-key", 3, 3, "<<"),
    "python tag": ("a: !!python/object/apply:os.system [id]\n", "yaml-tag", 1, 4, "python"),
    "own tag": ("a: !secret x\n", "yaml-tag", 1, 4, "!secret"),
    "tag that does not fit": ("a: !!int x\n", "yaml-tag", 1, 4, "!!int"),
    "list as key": ("? [a, b]\n: c\n", "yaml-key", 1, 3, "text"),
    "null as key": ("~: c\n", "yaml-key", 1, 1, "empty"),
    "unclosed quote": ("a: 'b\n", "yaml-syntax", None, None, "quote"),
    "two colons": ("a: b: c\n", "yaml-syntax", 1, 5, "not allowed here"),
    "bad indentation": ("a:\n  b: 1\n c: 2\n", "yaml-syntax", 3, 2, "expected"),
    "unclosed bracket": ("a: [1, 2\nb: 3\n", "yaml-syntax", 2, None, "expected"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str, tmp_path: Path) -> None:
    text, id, line, column, words = REFUSED[case]
    error = refused(text, tmp_path)
    assert error.id == id
    assert words in error.message
    if line is not None:
        place = f":{line}" if column is None else f":{line}:{column}"
        assert place in str(error.where)


def test_all_duplicates_are_reported_at_once(tmp_path: Path) -> None:
    error = refused("a: 1\na: 2\nb: {c: 1, c: 2}\n", tmp_path)
    assert [entry["where"].split(":", 1)[1] for entry in error.details["errors"]] == ["2:1", "3:11"]


def test_missing_file_names_the_missing_folder_too(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_yaml(tmp_path / "no" / "hosts.yaml", "inventory")
    assert (caught.value.id, caught.value.exit_code) == ("file-missing", 3)
    assert str(tmp_path / "no") in str(caught.value.hint)
    (tmp_path / "host.yaml").touch()
    with pytest.raises(InputError) as caught:
        read_yaml(tmp_path / "hosts.yaml", "inventory")
    assert caught.value.hint == "there are: host.yaml"


def test_folder_lists_its_yaml_files(tmp_path: Path) -> None:
    (tmp_path / "gpu.yaml").write_text("a: 1")
    with pytest.raises(InputError) as caught:
        read_yaml(tmp_path, "inventory")
    assert caught.value.id == "file-is-folder"
    assert "gpu.yaml" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["a\0b", "x" * 300, "loop.yaml"])
def test_unreadable(name: str, tmp_path: Path) -> None:
    if name == "loop.yaml":
        (tmp_path / name).symlink_to(tmp_path / name)
    with pytest.raises(InputError) as caught:
        read_yaml(tmp_path / name, "inventory")
    assert caught.value.id == "file-unreadable"


def test_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    path.write_text("a: 1")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root reads every file
        os.seteuid(65534)
    try:
        with pytest.raises(InputError) as caught:
            read_yaml(path, "inventory")
    finally:
        os.seteuid(user)
    assert caught.value.id == "file-unreadable"
    assert "Permission denied" in caught.value.message


def test_large_file_is_not_parsed(tmp_path: Path) -> None:
    error = refused(b"a: " + b"x" * MAX_BYTES, tmp_path)
    assert error.id == "file-too-large"


def test_endless_file_is_not_read_to_its_end() -> None:
    with pytest.raises(InputError) as caught:
        read_yaml(Path("/dev/zero"), "inventory")
    assert caught.value.id == "file-too-large"


def test_values_are_what_was_written() -> None:
    text = "\n".join(
        [
            "no: on",
            "yes: [y, off, No, True, TRUE]",
            "port: 022",
            "time: 22:22",
            "hex: 0x16",
            "date: 2026-05-20",
            "number: 22",
            "negative: -3",
            "float: 1.5",
            "exponent: 1e3",
            "truth: [true, false]",
            "nothing: [~, null, ]",
            "text: ['22', \"true\", !!str 22]",
            "8: host",
        ]
    )
    assert parse_yaml(text, Path("f"), "inventory").value == {
        "no": "on",
        "yes": ["y", "off", "No", "True", "TRUE"],
        "port": "022",
        "time": "22:22",
        "hex": "0x16",
        "date": "2026-05-20",
        "number": 22,
        "negative": -3,
        "float": 1.5,
        "exponent": 1000.0,
        "truth": [True, False],
        "nothing": [None, None],
        "text": ["22", "true", "22"],
        "8": "host",
    }


def test_numbers_below_verbatim_keys_keep_their_text() -> None:
    text = "a: {environment: {A: 0.10, B: 1e3, C: true, D: 007, E: [1.0]}, x: 0.10}"
    value = parse_yaml(text, Path("f"), "inventory", frozenset({"environment"})).value
    assert value == {"a": {"environment": {"A": "0.10", "B": "1e3", "C": True, "D": "007", "E": ["1.0"]}, "x": 0.1}}


def test_places() -> None:
    document = parse_yaml("# c\nhosts:\n  a: {port: 1}\n  b:\n    - x\n    - y\n", Path("f"), "inventory")
    assert document.values[("hosts", "a", "port")] == Mark(3, 13)
    assert document.keys[("hosts", "a", "port")] == Mark(3, 7)
    assert document.where(("hosts", "b", 1)) == "f:6:7"
    assert document.where(("hosts", "b"), key=True) == "f:4:3"
    assert document.where(("hosts", "b", 1, "missing")) == "f:6:7"  # the nearest that exists
    assert document.where(("hosts", "c")) == "f:2:1"
    assert document.where() == "f:2:1"


def test_sane_aliases_are_followed() -> None:
    document = parse_yaml("x: &x {a: [1, 2]}\ny: *x\nz: [*x, *x]\n", Path("f"), "inventory")
    assert document.value["z"] == [{"a": [1, 2]}, {"a": [1, 2]}]
    assert document.where(("y", "a", 0)) == "f:1:12"  # where it is written


def test_bom_and_crlf(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: [x]\r\n")
    document = read_yaml(path, "inventory")
    assert document.value == {"a": 1, "b": ["x"]}
    assert document.where(("b", 0)) == f"{path}:2:5"
