"""What ``~/.ssh/config`` says about a host: paramiko's reading of it, with the ``Include`` that paramiko lacks."""

from __future__ import annotations

import glob
import re
import shlex
from pathlib import Path
from typing import Any, Optional

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
_CRITERIA_ALONE = ("all", "canonical", "final")
_CRITERIA = ("host", "originalhost", "user", "localuser", "exec")


def lookup(alias: str, user: Optional[str] = None) -> dict[str, Any]:
    """The options for ``alias``, lower-case names in the order in which they were found; ``hostname`` is always there.
    ``user``: who is known to log in whatever the file says, as in ``ssh USER@alias``; ``Match user`` is about that one.

    Raises InputError ``ssh-config`` for a file that cannot be read or understood.
    """
    path = Path.home() / ".ssh" / "config"
    reading = _Reading(alias)
    try:
        lines = [f"User {user}"] if user else []  # the first value counts
        lines += reading.expanded(path, _EVERY_HOST, 0) if path.exists() else []
        options = dict(paramiko.SSHConfig.from_text("\n".join(lines)).lookup(alias))
    except KeyError as error:  # CanonicalizeHostname without CanonicalDomains
        raise _wrong(f"{path} sets no {error.args[0]}", str(path)) from error
    except (OSError, ValueError, RuntimeError, paramiko.SSHException) as error:  # also: open quotes, ~user of nobody
        raise _wrong(f"cannot read {path} for {alias}: {error}", str(path)) from error
    for name, wrong in reading.wrong.items():
        if name in options:
            raise wrong
    return options


class _Reading:
    """``~/.ssh/config`` as paramiko can read it.

    ``wrong``: what is not supported in blocks of which only the lookup tells whether they match, by the option that
    stands in its place.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias
        self.wrong: dict[str, InputError] = {}

    def expanded(self, path: Path, block: str, depth: int) -> list[str]:
        """The lines of ``path`` with those of included files in their places, as far as they are about the host.

        ``block``: the ``Host`` or ``Match`` line that holds where the file is included. It holds again after an
        Include, whatever blocks the included file ends in; and where it does not match, no block of that file does.
        """
        if depth > MAX_DEPTH:
            # No InputError: it is wrong wherever it stands, and going on would double the work with each file.
            raise ValueError(f"Include of {path} goes deeper than {MAX_DEPTH} files, or in a circle")
        lines: list[str] = []
        unknown: Optional[InputError] = None  # about the block, for the first option that has a meaning for us
        for number, line in enumerate(path.read_text("utf-8", "surrogateescape").splitlines(), 1):
            where = f"{path}:{number}"
            setting = _SETTING.match(line.strip())
            word = setting[1].lower() if setting else ""
            value = _without_comment(word, setting[2]) if setting else ""
            if word in _BLOCKS:
                value, unknown = _known_criteria(value, where) if word == "match" else (value, None)
                block = f"{word.title()} {value}"
            elif unknown and word in (*_OPTIONS, "proxycommand", "include"):
                lines.append(self._in_place_of(unknown))
                unknown = None
            if setting and word in (*_BLOCKS, *_OPTIONS):
                line = f"{word.title()} {value}"
            if word == "proxycommand" and value.lower() == "none":
                line = 'ProxyCommand "none"'  # without quotes paramiko takes it for the first of its block
            lines += self._included(value, block, depth, where) if word == "include" else [line]
        return lines

    def _included(self, value: str, block: str, depth: int, where: str) -> list[str]:
        if block == "Match all":
            block = _EVERY_HOST
        by_host = block.startswith("Host")
        if by_host and not _matches(block, self.alias):
            return []
        lines: list[str] = []
        try:
            for name in _files(value, where):
                inside = self.expanded(name, block, depth + 1)
                if any(re.match(r"(Host|Match) ", each) for each in inside):
                    if not by_host:  # paramiko has no blocks inside blocks
                        raise _wrong(f"{name} has Host or Match lines and is included below {block!r}", where)
                    inside.append(block)
                lines += inside
        except InputError as error:
            if by_host:
                raise
            lines.append(self._in_place_of(error))
        return lines

    def _in_place_of(self, error: InputError) -> str:
        name = f"ddtreewrong{len(self.wrong)}"
        self.wrong[name] = error
        return f"{name} yes"


def _known_criteria(value: str, where: str) -> tuple[str, Optional[InputError]]:
    """The criteria of a Match as paramiko wants them, without those that it takes for true as it does not know them;
    and what is wrong with it if there are such."""
    known: list[str] = []
    unknown: list[str] = []
    words = shlex.split(value)
    while words:
        word, equals, parameter = words.pop(0).partition("=")
        name = word.lower()
        arguments = [parameter] if equals else words[:1]
        if name.lstrip("!") in _CRITERIA_ALONE:
            arguments = []
        elif not equals:
            del words[:1]
        if name.lstrip("!") in (*_CRITERIA_ALONE, *_CRITERIA):
            known += [name, *arguments]
        else:
            unknown.append(word)
    error = _wrong(f"Match {value} has criteria that are not supported: {', '.join(unknown)}", where)
    return shlex.join(known) or ("all" if unknown else ""), error if unknown else None


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


def _files(value: str, where: str) -> list[Path]:
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
