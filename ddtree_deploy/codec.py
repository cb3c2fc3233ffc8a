"""Dataclasses to and from JSON, for everything that crosses the agent's wire or a file. Standard library only."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Dict, List, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from ddtree_deploy.errors import InputError

T = TypeVar("T")


def to_dict(value: Any) -> Dict[str, Any]:
    """``dataclasses.asdict`` for a dataclass instance."""
    return dataclasses.asdict(value)


def dumps(value: Any) -> str:
    """Stable JSON (sorted keys, two spaces) of a dataclass or a plain value."""
    plain = to_dict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
    return json.dumps(plain, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def from_dict(cls: Type[T], data: Any, where: str = "") -> T:
    """Build dataclass ``cls`` from ``data``; raises InputError ``bad-document`` naming the field that is wrong."""
    return _convert(cls, data, where or cls.__name__)  # type: ignore[no-any-return]


def _convert(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin is Union:
        options = get_args(kind)
        if value is None and type(None) in options:
            return None
        kinds = [option for option in options if option is not type(None)]
        if len(kinds) == 1:
            return _convert(kinds[0], value, where)
        if any(isinstance(value, option) for option in kinds if isinstance(option, type)):
            return value
        raise _wrong(where, kind, value)
    if origin in (list, List):
        if not isinstance(value, list):
            raise _wrong(where, kind, value)
        (item,) = get_args(kind)
        return [_convert(item, element, f"{where}[{i}]") for i, element in enumerate(value)]
    if origin in (dict, Dict):
        if not isinstance(value, dict):
            raise _wrong(where, kind, value)
        _, item = get_args(kind)
        return {str(key): _convert(item, element, f"{where}.{key}") for key, element in value.items()}
    if dataclasses.is_dataclass(kind):
        return _convert_dataclass(kind, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise _wrong(where, kind, value)


def _convert_dataclass(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, kind, value)
    hints = get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(value) - set(fields))
    if unknown:
        raise InputError("bad-document", f"unknown field {unknown[0]!r}", where=where)
    missing = [name for name, field in fields.items() if name not in value and _required(field)]
    if missing:
        raise InputError("bad-document", f"field {missing[0]!r} is missing", where=where)
    arguments = {name: _convert(hints[name], value[name], f"{where}.{name}") for name in fields if name in value}
    return kind(**arguments)


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _wrong(where: str, kind: Any, value: Any) -> InputError:
    name = getattr(kind, "__name__", str(kind))
    return InputError("bad-document", f"expected {name}, found {type(value).__name__}", where=where)
