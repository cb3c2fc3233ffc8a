"""Rewriting what names its own venv in a special form: shebangs and activate scripts. Agent-safe.

Sources: the kernel reads at most 127 bytes of a shebang before Linux 5.1 (BINPRM_BUF_SIZE) and splits it at blanks,
so installers write the ``exec`` form for longer ones: a file that is a shell script and Python at the same time.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import Optional

from ddtree_deploy.release.paths import PathMentions

SHEBANG_LIMIT = 127
_EXEC = re.compile(
    rb"""\A\#!\s*/bin/sh[ \t]*\r?\n
         '''exec'\ (?P<quote>["']?)(?P<interpreter>/[^"'\n]+?)(?P=quote)(?P<arguments>\ [^\n]*?)?\ "\$0"\ "\$@"[^\n]*\n
         '\ '''[ \t]*\r?\n""",
    re.VERBOSE,
)
_PYTHON = re.compile(rb"(python|pypy)[0-9.]*t?\Z")


def rewrite_shebang(data: bytes, mentions: PathMentions) -> bytes:
    """``data`` with the interpreter of its first lines moved; the rest, and data without a shebang, is untouched.

    A Python interpreter that does not exist (a base venv that was itself moved) is replaced by the release's own.
    """
    form = _EXEC.match(data)
    if form:
        interpreter = _moved(form.group("interpreter"), mentions)
        if interpreter is None:
            return data
        return _head(interpreter, (form.group("arguments") or b"").strip()) + data[form.end() :]
    if not data.startswith(b"#!"):
        return data
    line, _, rest = data.partition(b"\n")
    words = line[2:].strip().split(None, 1)
    if not words:
        return data
    interpreter = _moved(words[0], mentions)
    if interpreter is None:
        return data
    return _head(interpreter, words[1] if len(words) > 1 else b"") + rest


def rewrite_activate(data: bytes, mentions: PathMentions) -> bytes:
    """An activate script, of any shell, for the new venv. What is left to do is the plain replacement of paths.

    A prompt that is the old folder's name becomes the new one; prompts of one's own stay. Where the old path stands
    unquoted, the new one is quoted if it has to be.
    """
    new = os.fsencode(os.path.basename(mentions.new))
    for path in mentions.old:
        unquoted = rb"(VIRTUAL_ENV[ =])" + re.escape(os.fsencode(path)) + rb"(?=[\s;]|\Z)"
        quoted = os.fsencode(shlex.quote(mentions.new))
        data = re.sub(unquoted, lambda match, quoted=quoted: match.group(1) + quoted, data)  # type: ignore[misc]
        old = re.escape(os.fsencode(os.path.basename(path)))
        data = re.sub(rb'(["\'])\(' + old + rb"\) ", lambda match: match.group(1) + b"(" + new + b") ", data)
        data = re.sub(
            rb"(VIRTUAL_ENV_PROMPT[ =]+)([\"'])" + old + rb"([\"'])",
            lambda match: match.group(1) + match.group(2) + new + match.group(3),
            data,
        )
    return data


def _moved(interpreter: bytes, mentions: PathMentions) -> Optional[bytes]:
    """Where the interpreter is from now on, or None when it stays."""
    path = os.fsdecode(interpreter)
    moved = mentions.moved(path)
    if moved != path:
        return os.fsencode(moved)
    if _PYTHON.match(os.path.basename(interpreter)) and os.path.isabs(path) and not os.path.exists(path):
        return os.fsencode(mentions.new) + b"/bin/python"
    return None


def _head(interpreter: bytes, arguments: bytes) -> bytes:
    plain = b"#!" + interpreter + (b" " + arguments if arguments else b"")
    fits = len(plain) <= SHEBANG_LIMIT and not re.search(rb"\s", interpreter)
    if fits or not _PYTHON.match(os.path.basename(interpreter)):
        return plain + b"\n"
    middle = b" " + arguments if arguments else b""
    return b"#!/bin/sh\n'''exec' \"" + interpreter + b'"' + middle + b" \"$0\" \"$@\"\n' '''\n"
