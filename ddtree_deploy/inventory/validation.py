"""From pydantic's errors to ours: every one with file:line:column, key, what was expected and what was found."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, Iterable, Optional, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.yaml_lines import Document, KeyPath

MAX_SHOWN = 10

_Model = TypeVar("_Model", bound=BaseModel)


class StrictModel(BaseModel):
    """Base of everything read from YAML: no unknown keys, no conversions, no changes afterwards."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong in a file."""

    id: str
    message: str
    path: KeyPath
    hint: Optional[str] = None
    at_key: bool = False  # point at the key instead of the value
    where: Optional[str] = None  # instead of the place of ``path``


def wrong(id: str, message: str, hint: str = "", at: KeyPath = ()) -> PydanticCustomError:
    """An error that a validator raises; ``message`` must not hold a value that may be secret.

    ``at`` is the place below the validated value.
    """
    return PydanticCustomError("deploy", "{message}", {"id": id, "message": message, "hint": hint, "at": at})


def validate(model: type[_Model], document: Document, misplaced: dict[str, str] | None = None) -> _Model:
    """``document`` as ``model``. Raises one InputError for everything that is wrong.

    ``misplaced`` maps keys that belong elsewhere to the place where they belong.
    """
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        details = error.errors(include_url=False)
        raise report([_finding(model, document, item, misplaced or {}) for item in details], document) from None


def report(findings: list[Finding], document: Document) -> InputError:
    """One InputError for ``findings``, ordered by place. The first is its message; where there are several, up to ten
    are in ``details["errors"]``, and ``details["more"]`` counts the rest."""
    errors = []
    for finding in findings:
        where = finding.where or document.where(finding.path, key=finding.at_key)
        key = dotted(finding.path)
        message = f"{key}: {finding.message}" if key else finding.message
        errors.append({"id": finding.id, "where": where, "key": key, "message": message, "hint": finding.hint})
    errors.sort(key=_place)
    first = errors[0]
    details: dict[str, Any] = {}
    message = str(first["message"])
    if len(errors) > 1:
        message += f" (and {len(errors) - 1} more)"
        details["errors"] = errors[:MAX_SHOWN]
    if len(errors) > MAX_SHOWN:
        details["more"] = len(errors) - MAX_SHOWN
    return InputError(str(first["id"]), message, where=first["where"], hint=first["hint"], details=details)


def _place(entry: dict[str, Any]) -> tuple[list[int], bool]:
    """Line and column; at the same place, what is there comes before what is missing."""
    return [int(part) for part in re.findall(r":(\d+)", str(entry["where"]))[-2:]], entry["id"] == "missing-key"


def dotted(path: KeyPath) -> str:
    """``hosts.gpu-a.gpus[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def near(word: str, known: Iterable[str]) -> Optional[str]:
    """The closest of ``known``, if any is close."""
    found = difflib.get_close_matches(word.lower(), {name.lower(): name for name in known}, n=1, cutoff=0.6)
    return next((name for name in known if name.lower() == found[0]), None) if found else None


def unknown_name(kind: str, name: str, known: Iterable[str], where: Optional[str] = None) -> InputError:
    """``unknown-<kind>``: the close names, and all of them where they are few."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    elif names:
        hint = f"known: {', '.join(names[:20])}{' ...' if len(names) > 20 else ''}"
    else:
        hint = f"no {kind} is defined"
    return InputError(f"unknown-{kind}", f"unknown {kind} {name!r}", where=where, hint=hint)


def found(value: Any) -> str:
    """What was found, for messages: a kind and a short value."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{str(value).lower()} (a truth value)"
    if isinstance(value, (int, float)):
        return f"the number {value}"
    if isinstance(value, str):
        shown = value if len(value) <= 40 else value[:37] + "..."
        return f"the text {shown!r}" if value else "an empty text"
    return "a list" if isinstance(value, list) else "a mapping"


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of keys to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}


def _finding(model: type[BaseModel], document: Document, error: ErrorDetails, misplaced: dict[str, str]) -> Finding:
    path = _path(document.value, error["loc"])
    context = error.get("ctx") or {}
    kind = error["type"]
    value = error.get("input")
    if kind == "deploy":
        return Finding(context["id"], context["message"], (*path, *context["at"]), context["hint"] or None)
    if kind == "extra_forbidden":
        return _unknown_key(model, path, misplaced)
    if kind == "missing":
        name = str(error["loc"][-1])
        return Finding("missing-key", f"the key {name!r} is missing", path, at_key=True)
    if kind in _EXPECTED:
        expected = _EXPECTED[kind]
        return Finding("wrong-type", f"expected {expected}, found {found(value)}", path, _type_hint(expected, value))
    if kind == "literal_error":
        return Finding("bad-value", f"expected {context['expected']}, found {found(value)}", path)
    if kind == "too_short":
        return Finding("bad-value", "expected at least one item, found none", path)
    limits = {"greater_than_equal": ("at least", "ge"), "less_than_equal": ("at most", "le")}
    if kind in limits:
        words, key = limits[kind]
        return Finding("bad-value", f"expected {words} {context[key]}, found {value}", path)
    return Finding("bad-value", f"{error['msg'][:1].lower()}{error['msg'][1:]}, found {found(value)}", path)


def _path(value: Any, loc: tuple[int | str, ...]) -> KeyPath:
    """``loc`` without what pydantic adds to it (names of union members, ``[key]``)."""
    path: list[int | str] = []
    for part in loc:
        inside = part < len(value) if isinstance(value, list) and isinstance(part, int) else False
        if inside or (isinstance(value, dict) and part in value):
            value = value[part]
            path.append(part)
    return tuple(path)


def _unknown_key(model: type[BaseModel], path: KeyPath, misplaced: dict[str, str]) -> Finding:
    name = str(path[-1])
    known = _keys_at(model, path[:-1])
    close = near(name, known)
    hint = f"did you mean {close!r}?" if close else f"known keys: {', '.join(sorted(known))}"
    place = misplaced.get(name)
    if place and place not in path:
        hint = f"write it under {place!r}" + (f", or did you mean {close!r}?" if close else "")
    return Finding("unknown-key", "unknown key", path, hint, at_key=True)


def _keys_at(model: Any, path: KeyPath) -> list[str]:
    """The keys that the model at ``path`` below ``model`` takes."""
    current = _models(model)
    for part in path:
        below: list[Any] = []
        for candidate in current:
            if isinstance(candidate, type) and issubclass(candidate, BaseModel):
                fields = {(info.alias or name): info for name, info in candidate.model_fields.items()}
                if part in fields:
                    below += _models(fields[str(part)].annotation)
        # a mapping or list of models keeps its models: its keys are names, not fields
        current = below or current
    keys: list[str] = []
    for candidate in current:
        if isinstance(candidate, type) and issubclass(candidate, BaseModel):
            keys += [info.alias or name for name, info in candidate.model_fields.items()]
    return keys


def _models(annotation: Any) -> list[Any]:
    """The pydantic models inside an annotation such as ``dict[str, Model] | None``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models(argument)]


def _type_hint(expected: str, value: Any) -> Optional[str]:
    if expected == "text" and isinstance(value, (bool, int, float)):
        return 'put it in quotes, as in "0.5": YAML reads it as a number or truth value otherwise'
    if expected == "a whole number" and isinstance(value, str):
        return number_hint(value)
    if expected == "true or false" and isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
        return f"write {'true' if value.lower() in ('yes', 'on') else 'false'}"
    if expected == "a list" and not isinstance(value, (list, dict)) and value is not None:
        return "write it as a list: [one, two], or one `- item` a line"
    if expected == "a mapping of keys to values" and isinstance(value, list):
        return "write `name: value`, one a line, without the dashes"
    return None


def number_hint(value: str) -> Optional[str]:
    """What to write instead of a text that some YAML readers take for a number."""
    if re.fullmatch(r"0[0-7]+", value):
        return f"write {value.lstrip('0') or '0'}: a leading zero means octal to some YAML readers"
    if re.fullmatch(r"\d+(:\d+)+", value):
        return "write one number: digits with colons are base 60 to some YAML readers"
    if re.fullmatch(r"[-+]?(0x[0-9a-fA-F]+|0o[0-7]+|0b[01]+|\d[\d_]*)", value):
        return "write plain decimal digits, without quotes, underscores or prefixes"
    return None
