from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_deploy.release.paths import PathMentions
from ddtree_deploy.release.scripts import SHEBANG_LIMIT, rewrite_activate, rewrite_shebang

OLD, NEW = "/old/venv", "/srv/releases/r-1"
LONG = "/srv/" + "x" * 150
BODY = b"import sys\nprint(sys.argv[1:])\n"


def exec_form(python: str, arguments: str = "", quote: str = '"') -> bytes:
    return f"#!/bin/sh\n'''exec' {quote}{python}{quote}{arguments} \"$0\" \"$@\"\n' '''\n".encode()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"#!{OLD}/bin/python\n".encode(), f"#!{NEW}/bin/python\n".encode()),
        (f"#!{OLD}/bin/python3.11 -sE\n".encode(), f"#!{NEW}/bin/python3.11 -sE\n".encode()),
        (f"#! {OLD}/bin/python\r\n".encode(), f"#!{NEW}/bin/python\n".encode()),
        (f"#!{OLD}/bin/perl -w\n".encode(), f"#!{NEW}/bin/perl -w\n".encode()),
        (exec_form(f"{OLD}/bin/python"), f"#!{NEW}/bin/python\n".encode()),
        (exec_form(f"{OLD}/bin/python", quote=""), f"#!{NEW}/bin/python\n".encode()),
        (exec_form(f"{OLD}/bin/python", quote="'"), f"#!{NEW}/bin/python\n".encode()),
        (exec_form(f"{OLD}/bin/python", " -E"), f"#!{NEW}/bin/python -E\n".encode()),
        (exec_form("/usr/bin/env"), exec_form("/usr/bin/env")),
        (b"#!/usr/bin/env python3\n", b"#!/usr/bin/env python3\n"),
        (b"#!/bin/sh\necho\n", b"#!/bin/sh\necho\n"),
        (f"#!{OLD}2/bin/sh\n".encode(), f"#!{OLD}2/bin/sh\n".encode()),
        (b"#!/gone/bin/python3\n", f"#!{NEW}/bin/python\n".encode()),  # a base venv that was itself moved
        (f"#!{sys.executable}\n".encode(), f"#!{sys.executable}\n".encode()),
        (b"#!\n", b"#!\n"),
        (b"", b""),
        (b"text\n", b"text\n"),
    ],
)
def test_shebangs(before: bytes, after: bytes) -> None:
    assert rewrite_shebang(before + BODY, PathMentions([OLD], NEW)) == after + BODY


@pytest.mark.parametrize("head", [f"#!{OLD}/bin/python -E\n".encode(), exec_form(f"{OLD}/bin/python", " -E")])
def test_a_shebang_that_gets_too_long_has_the_exec_form(head: bytes) -> None:
    result = rewrite_shebang(head + BODY, PathMentions([OLD], LONG))
    assert result == exec_form(f"{LONG}/bin/python", " -E") + BODY


def test_the_limit_is_exact() -> None:
    room = SHEBANG_LIMIT - len("#!/bin/python")
    fits = rewrite_shebang(f"#!{OLD}/bin/python\n".encode(), PathMentions([OLD], "/" + "x" * (room - 1)))
    assert len(fits.splitlines()[0]) == SHEBANG_LIMIT
    assert fits.startswith(b"#!/xxx")
    longer = rewrite_shebang(f"#!{OLD}/bin/python\n".encode(), PathMentions([OLD], "/" + "x" * room))
    assert longer.startswith(b"#!/bin/sh\n")


@pytest.mark.parametrize("folder", ["a b", "x" * 140, "it is ünicode"])
def test_rewritten_scripts_run(tmp_path: Path, folder: str) -> None:
    new = tmp_path / folder
    (new / "bin").mkdir(parents=True)
    (new / "bin" / "python").symlink_to(sys.executable)
    for name, head in (("plain", f"#!{OLD}/bin/python\n".encode()), ("exec", exec_form(f"{OLD}/bin/python"))):
        script = new / "bin" / name
        script.write_bytes(rewrite_shebang(head + BODY, PathMentions([OLD], str(new))))
        script.chmod(0o755)
        done = subprocess.run([script, "a b", "c"], check=True, capture_output=True, text=True)
        assert done.stdout == "['a b', 'c']\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'PS1="(venv) ${PS1:-}"\n', b'PS1="(r-1) ${PS1:-}"\n'),
        (b'VIRTUAL_ENV_PROMPT="venv"\n', b'VIRTUAL_ENV_PROMPT="r-1"\n'),
        (b'setenv VIRTUAL_ENV_PROMPT "venv"\n', b'setenv VIRTUAL_ENV_PROMPT "r-1"\n'),
        (b'VIRTUAL_ENV_PROMPT="(venv) "\n', b'VIRTUAL_ENV_PROMPT="(r-1) "\n'),
        (b'VIRTUAL_ENV_PROMPT="mine"\n', b'VIRTUAL_ENV_PROMPT="mine"\n'),
        (b"PS1='(venv) '\"${PS1:-}\"\n", b"PS1='(r-1) '\"${PS1:-}\"\n"),
        (b"# the venv module\n", b"# the venv module\n"),
    ],
)
def test_prompts(before: bytes, after: bytes) -> None:
    assert rewrite_activate(before, PathMentions([OLD], NEW)) == after


@pytest.mark.parametrize("line", ["VIRTUAL_ENV={}\n", "setenv VIRTUAL_ENV {}\n", "set -gx VIRTUAL_ENV {};"])
def test_unquoted_paths_get_the_quotes_that_the_new_one_needs(line: str) -> None:
    mentions = PathMentions([OLD], "/srv/my releases/r-1")
    assert rewrite_activate(line.format(OLD).encode(), mentions) == line.format("'/srv/my releases/r-1'").encode()
    assert rewrite_activate(line.format(OLD + "2").encode(), mentions) == line.format(OLD + "2").encode()
