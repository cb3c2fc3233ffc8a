"""The global options, which may stand before or after the command: ``plan HOST --json`` is ``--json plan HOST``.

Standard library only; used before the command line is parsed, so that a usage error already knows about ``--json``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_FLAGS = {"--json", "--verbose", "--no-color", "--version", "--accept-new-host-keys"}
_VERBOSE = re.compile(r"-v+\Z")
_WITH_VALUE = {"--inventory", "-i"}


@dataclass(frozen=True)
class Arguments:
    """``words`` with the global options first; the flags that error reports need before parsing."""

    words: list[str]
    json: bool
    verbose: bool
    color: bool


def globals_first(words: Sequence[str]) -> Arguments:
    """Move the global options to the front. Everything after ``--`` stays as it is."""
    moved: list[str] = []
    rest: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        if word == "--":
            rest += words[index:]
            break
        if word in _FLAGS or _VERBOSE.match(word) or word.startswith("--inventory="):
            moved.append(word)
        elif word in _WITH_VALUE:
            if index + 1 == len(words):  # alone with it, the parser says what is missing
                rest = []
            moved += words[index : index + 2]
            index += 1
        else:
            rest.append(word)
        index += 1
    verbose = any(word == "--verbose" or _VERBOSE.match(word) for word in moved)
    return Arguments(moved + rest, "--json" in moved, verbose, "--no-color" not in moved)
