"""Engine arguments, a list as on the command line or a mapping; both become flags with values, so that layers merge."""

from __future__ import annotations

from typing import Any

from ddtree_deploy.inventory.validation import found, wrong
from ddtree_deploy.serve.command import OWNED_OPTIONS, SECRET_OPTIONS, stands_for

Flags = dict[str, "list[list[str]] | None"]
"""``--flag``, without ``_`` -> its occurrences, each with its values; None takes the flag of a lower layer back."""


def parse(value: Any) -> Flags:
    """Flags of ``engine_arguments`` as written. Raises pydantic's custom error for what is neither form."""
    if isinstance(value, dict):
        flags: Flags = {}
        for key, item in value.items():
            flag = _flag(str(key))
            if flag in flags:
                hint = "write it once, with or without leading dashes; _ and - in a name are the same"
                raise wrong("bad-engine-argument", f"{flag} is set twice", hint, at=(key,))
            flags[flag] = _occurrences(flag, item)
    elif isinstance(value, list):
        flags = _from_list(value)
    else:
        raise wrong(
            "wrong-type",
            f"expected a list or a mapping of engine arguments, found {found(value)}",
            "write {mem-fraction-static: 0.85} or ['--mem-fraction-static', '0.85']",
        )
    for flag in flags:
        _check_flag(flag)
    return flags


def merge(lower: Flags, higher: Flags) -> Flags:
    """A flag of ``higher`` replaces all of the same flag in ``lower``; order: lower's first."""
    merged = {**lower, **higher}
    return {flag: occurrences for flag, occurrences in merged.items() if occurrences is not None}


def to_list(flags: Flags) -> list[str]:
    """As given to the engine."""
    return [part for flag, runs in flags.items() for values in runs or [] for part in (flag, *values)]


def _flag(name: str) -> str:
    """As the engine's command line wants it, however it is written: ``--enable-metrics`` of ``enable_metrics``."""
    return "--" + name.removeprefix("--").replace("_", "-")


def _check_flag(flag: str) -> None:
    secret, owned = stands_for(flag, SECRET_OPTIONS), stands_for(flag, OWNED_OPTIONS)
    if secret is not None:
        raise wrong("secret-in-plain-text", f"{secret} is not given on a command line", "use api_key: env:NAME")
    if owned is not None:
        meant = owned if flag == owned else f"{flag} (taken for {owned})"
        raise wrong("reserved-engine-argument", f"{meant} is chosen at launch", f"use {OWNED_OPTIONS[owned]} instead")
    if len(flag) < 3 or any(character.isspace() or character == "=" for character in flag):
        raise wrong("bad-engine-argument", f"{flag!r} is not a flag", "one flag an item, values as items of their own")


def _occurrences(flag: str, value: Any) -> list[list[str]] | None:
    if value is None or value is False:
        return None
    if value is True:
        return [[]]
    if isinstance(value, list):
        return [[_text(flag, item) for item in value]]
    return [[_text(flag, value)]]


def _text(flag: str, value: Any) -> str:
    if not isinstance(value, str):
        raise wrong("wrong-type", f"{flag}: expected text or a number, found {found(value)}", "")
    return value


def _from_list(items: list[Any]) -> Flags:
    flags: Flags = {}
    current: list[str] | None = None
    for item in items:
        text = _text("engine_arguments", item)
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            flag = _flag(name)
            current = [value] if equals else []
            occurrences = flags.setdefault(flag, [])
            assert occurrences is not None  # only a mapping takes flags back
            occurrences.append(current)
        elif current is None:
            raise wrong(
                "bad-engine-argument",
                f"expected a flag that begins with --, found {found(text)}",
                "the engine takes no positional arguments",
            )
        else:
            current.append(text)
    return flags
