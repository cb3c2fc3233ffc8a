from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.release.paths import PathMentions, is_text

NEW = b"/srv/releases/r-1"

MENTIONS = [
    (b"#!/opt/venv/bin/python", b"#!" + NEW + b"/bin/python"),
    (b"VIRTUAL_ENV='/opt/venv'\n", b"VIRTUAL_ENV='" + NEW + b"'\n"),
    (b"PATH=/opt/venv/bin:/usr/bin:/opt/venv", b"PATH=" + NEW + b"/bin:/usr/bin:" + NEW),
    (b"-I/opt/venv/include -Wl,-rpath,/opt/venv/lib", b"-I" + NEW + b"/include -Wl,-rpath," + NEW + b"/lib"),
    (b"-isystem/opt/venv/include", b"-isystem" + NEW + b"/include"),
    (b'{"url": "file:///opt/venv/src/x"}', b'{"url": "file://' + NEW + b'/src/x"}'),
    (b"file://localhost/opt/venv/src", b"file://localhost" + NEW + b"/src"),
    (b"pkg @ file:/opt/venv/x", b"pkg @ file:" + NEW + b"/x"),
    (b"see /opt/venv.", b"see " + NEW + b"."),
    (b"(/opt/venv)", b"(" + NEW + b")"),
    (b"<path>/opt/venv</path>", b"<path>" + NEW + b"</path>"),
    (b'"a\\n/opt/venv/b"', b'"a\\n' + NEW + b'/b"'),
    (b"//opt/venv/x", b"/" + NEW + b"/x"),
    (b"/opt/venv%s", NEW + b"%s"),
    (b"host:/opt/venv/x", b"host:" + NEW + b"/x"),
]
NO_MENTIONS = [
    b"/opt/venv2/bin",
    b"/opt/venv-old/bin",
    b"/opt/venv.bak/bin",
    b"/opt/venv_x",
    b"/opt/venv~",
    b"/opt/venv%20x/bin",
    b"/opt/venv\xc3\xbc/bin",
    b"/mnt/opt/venv/bin",
    b"$HOME/opt/venv",
    b"${ROOT}/opt/venv",
    b"$(ROOT)/opt/venv",
    b"~/opt/venv",
    b"../opt/venv",
    b"data/opt/venv/x",
    b"https://example.org/opt/venv",
]


@pytest.mark.parametrize(("text", "expected"), MENTIONS)
def test_mentions_are_replaced(text: bytes, expected: bytes) -> None:
    mentions = PathMentions(["/opt/venv"], NEW.decode())
    assert mentions.replace(text) == expected
    assert mentions.count(text) >= 1
    assert mentions.count(expected) == 0


@pytest.mark.parametrize("text", NO_MENTIONS)
def test_other_paths_stay(text: bytes) -> None:
    mentions = PathMentions(["/opt/venv"], NEW.decode())
    assert mentions.replace(text) == text
    assert mentions.count(text) == 0


def test_quoted_and_escaped_forms() -> None:
    mentions = PathMentions(["/srv/my venv/größe"], "/opt/new place/ü")
    assert mentions.replace(b"file:///srv/my%20venv/gr%C3%B6%C3%9Fe/x") == b"file:///opt/new%20place/%C3%BC/x"
    assert mentions.replace(rb'"/srv/my venv/gr\u00f6\u00dfe/x"') == rb'"/opt/new place/\u00fc/x"'
    assert mentions.replace("/srv/my venv/größe/x".encode()) == "/opt/new place/ü/x".encode()


def test_several_names_of_one_folder() -> None:
    mentions = PathMentions(["/data/venv", "/mnt/data/venv"], "/new")
    assert mentions.replace(b"/data/venv/a /mnt/data/venv/b /x/mnt/data/venv/c") == b"/new/a /new/b /x/mnt/data/venv/c"
    assert mentions.moved("/mnt/data/venv/bin/python") == "/new/bin/python"
    assert mentions.moved("/data/venv") == "/new"
    assert mentions.moved("/data/venv2") == "/data/venv2"


def test_a_new_path_that_begins_like_the_old_one() -> None:
    mentions = PathMentions(["/opt/dd"], "/opt/ddtree/releases/r")
    once = mentions.replace(b"/opt/dd/bin")
    assert once == b"/opt/ddtree/releases/r/bin"
    assert mentions.replace(once) == once


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_files_of_all_sizes_are_searched(tmp_path: Path, size: int) -> None:
    mentions = PathMentions(["/opt/venv"], "/new")
    path = tmp_path / "file"
    path.write_bytes(b"\x00" * size + b"/opt/venv")
    assert mentions.may_be_in_file(str(path), path.stat().st_size)
    path.write_bytes(b"\x00" * size + b"/opt/vanv")
    assert not mentions.may_be_in_file(str(path), path.stat().st_size)
    path.write_bytes(b"")
    assert not mentions.may_be_in_file(str(path), 0)


def test_text() -> None:
    assert is_text("Grüße\r\n\tx\x1b[0m".encode())
    assert is_text("Grüße".encode("latin-1"))
    assert not is_text(b"\x7fELF\x02\x01")
    assert not is_text(b"a\x00b")
