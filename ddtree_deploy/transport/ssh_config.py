"""What ``~/.ssh/config`` says about a host: paramiko's reading of it, with the ``Include`` that paramiko lacks."""

from __future__ import annotations

import glob
import re
import shlex
from pathlib import Path
from typing import Any

import paramiko

from ddtree_deploy.errors import InputError

MAX_DEPTH = 16  # as OpenSSH
_SETTING = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")
_COMMENT = re.compile(r"""((?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\\.|[^"'\\])*?)(?:^|\s+)#""")
_EVERY_HOST = "Host *"
# What has a meaning for us. All else stays as it stands: values of LocalCommand and the like have no comments.
_BLOCKS = ("host", "match")
_OPTIONS = (
    *("hostname", "port", "user", "identityfile", "identitiesonly", "hostkeyalias", "proxyjump", "addressfamily"),
    *("canonicalizehostname", "canonicaldomains", "canonicalizemaxdots", "canonicalizefallbacklocal"),
)


def lookup(alias: str) -> dict[str, Any]:
    """The options for ``alias``, lower-case names in the order in which they were found; ``hostname`` is always there.

    Raises InputError ``ssh-config`` for a file that cannot be read or understood.
    """
    path = Path.home() / ".ssh" / "config"
    try:
        lines = _expanded(path, alias, _EVERY_HOST, 0) if path.exists() else []
        return dict(paramiko.SSHConfig.from_text("\n".join(lines)).lookup(alias))
    except KeyError as error:  # CanonicalizeHostname without CanonicalDomains
        raise _wrong(f"{path} sets no {error.args[0]}", str(path)) from error
    except (OSError, ValueError, RuntimeError, paramiko.SSHException) as error:  # also: open quotes, ~user of nobody
        raise _wrong(f"cannot read {path} for {alias}: {error}", str(path)) from error


def _expanded(path: Path, alias: str, block: str, depth: int) -> list[str]:
    """The lines of ``path`` with those of included files in their places, as far as they are about ``alias``.

    ``block``: the ``Host`` or ``Match`` line that holds where the file is included. It holds again after an Include,
    whatever blocks the included file ends in; and where it does not match, no block of the included file does.
    """
    if depth > MAX_DEPTH:
        raise _wrong(f"Include goes deeper than {MAX_DEPTH} files, or in a circle", str(path))
    lines: list[str] = []
    for number, line in enumerate(path.read_text("utf-8", "surrogateescape").splitlines(), 1):
        setting = _SETTING.match(line.strip())
        word = setting[1].lower() if setting else ""
        value = _without_comment(word, setting[2]) if setting else ""
        if setting and word in (*_BLOCKS, *_OPTIONS):
            line = f"{setting[1]} {value}"
        if word in _BLOCKS:
            block = line
        if word == "proxycommand" and value.lower() == "none":
            line = 'ProxyCommand "none"'  # without quotes paramiko takes it for the first of its block
        if word != "include":
            lines.append(line)
            continue
        where = f"{path}:{number}"
        unconditional = _EVERY_HOST if re.fullmatch(r"match[\s=]+all", block, re.I) else block
        by_host = unconditional.lower().startswith("host")
        if by_host and not _matches(unconditional, alias):
            continue
        for name in _included(value, where):
            inside = _expanded(name, alias, block, depth + 1)
            if any(re.match(r"\s*(host|match)[\s=]", each, re.I) for each in inside):
                if not by_host:  # only a lookup tells whether it matches, and paramiko has no blocks inside blocks
                    raise _wrong(f"{name} has Host or Match lines and is included below {block!r}", where)
                inside.append(block)
            lines += inside
    return lines


def _without_comment(word: str, value: str) -> str:
    """``value`` as OpenSSH 9 takes it: a word that starts with # ends it, unless in quotes. A ProxyJump ends with any
    #, and a ProxyCommand has no comments."""
    if word == "proxycommand":
        return value
    if word == "proxyjump":
        return value.partition("#")[0].rstrip()
    comment = _COMMENT.match(value)
    return comment[1] if comment else value


def _matches(host_line: str, alias: str) -> bool:
    return "compression" in paramiko.SSHConfig.from_text(f"{host_line}\nCompression yes\n").lookup(alias)


def _included(value: str, where: str) -> list[Path]:
    """The files that an Include names; those that do not exist are none."""
    found: list[Path] = []
    for pattern in shlex.split(value):
        if "%" in pattern or "${" in pattern:
            raise _wrong(f"Include {pattern} has a token or a variable, which is not supported", where)
        folder = Path.home() / ".ssh"
        names = glob.glob(str(Path(pattern).expanduser()), root_dir=folder)  # noqa: PTH207 (absolute ones, too)
        found += [folder / name for name in sorted(names) if not (folder / name).is_dir()]
    return found


def _wrong(message: str, where: str) -> InputError:
    return InputError("ssh-config", message, where=where, hint="`ssh -G HOST` says what OpenSSH makes of it")
