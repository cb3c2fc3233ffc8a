"""YAML to plain values, every one with its line and column; what YAML makes ambiguous or dangerous is refused.

Read with PyYAML's parser, but with YAML 1.2's idea of plain scalars: only ``true``/``false`` are booleans and only
plain decimal digits are numbers. So ``no``, ``on``, ``022`` and ``22:22`` stay the text that was written, instead of
silently becoming False, True, 18 and 1342 (YAML 1.1), and a setting that wants a number says so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, FrozenSet, Optional

import yaml

from ddtree_deploy.errors import InputError

KeyPath = tuple["str | int", ...]

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 40
MAX_VALUES = 50_000  # after aliases are followed

_TAG = "tag:yaml.org,2002:"
_SCALAR_TAGS = {_TAG + name for name in ("str", "int", "float", "bool", "null")}


@dataclass(frozen=True)
class Mark:
    """A place in a file; line and column count from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Document:
    """The value of a YAML file, the place of every value and of every mapping's keys, by key path."""

    path: Path
    value: Any
    values: dict[KeyPath, Mark] = field(default_factory=dict)
    keys: dict[KeyPath, Mark] = field(default_factory=dict)

    def where(self, path: KeyPath = (), *, key: bool = False) -> str:
        """``file:line:column`` of the value at ``path`` (of its key where ``key``); of the nearest parent if absent."""
        for end in range(len(path), -1, -1):
            at = path[:end]
            mark = (self.keys.get(at) if key or end < len(path) else None) or self.values.get(at)
            if mark is not None:
                return f"{self.path}:{mark.line}:{mark.column}"
        return str(self.path)


def read_text(path: Path, what: str) -> str:
    """The text of a UTF-8 file that a person wrote. Raises InputError ``file-*`` or ``not-utf8``."""
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        parent = path.absolute().parent
        near = sorted(found.name for found in parent.glob("*.y*ml"))[:5] if parent.is_dir() else []
        hint = f"there are: {', '.join(near)}" if near else "check the path"
        if not parent.is_dir():
            hint = f"its folder {parent} does not exist either"
        raise InputError("file-missing", f"the {what} does not exist", where=str(path), hint=hint) from None
    except IsADirectoryError:
        names = sorted(found.name for found in path.glob("*.y*ml"))[:5]
        hint = f"name a file in it: {', '.join(names)}" if names else "name a YAML file"
        raise InputError("file-is-folder", f"the {what} is a folder, not a file", where=str(path), hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("file-unreadable", f"the {what} cannot be read: {reason}", where=str(path)) from error
    if len(data) > MAX_BYTES:
        raise InputError(
            "file-too-large",
            f"the {what} is over {MAX_BYTES // 1024} KiB, which no {what} needs",
            where=str(path),
            hint="is it the file that you meant?",
        )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(
            "not-utf8", f"the {what} is UTF-16; expected UTF-8", where=f"{path}:1", hint="save it as UTF-8"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + (3 if data.startswith(b"\xef\xbb\xbf") else 0)  # the codec counts after the BOM
        line = data.count(b"\n", 0, start) + 1
        column = start - (data.rfind(b"\n", 0, start) + 1) + 1
        raise InputError(
            "not-utf8",
            f"the {what} is not UTF-8: byte 0x{data[start]:02x} at offset {start}",
            where=f"{path}:{line}:{column}",
            hint="save it as UTF-8",
        ) from None


def read_yaml(path: Path, what: str, verbatim: FrozenSet[str] = frozenset()) -> Document:
    """Read a YAML file with one document. ``what`` names the file's kind in messages ("inventory").

    Numbers anywhere below a key in ``verbatim`` stay the text that was written (``0.10``, ``1e3``).
    Raises InputError: ``file-*``, ``not-utf8``, ``yaml-*``; all say file, line and what to do.
    """
    return parse_yaml(read_text(path, what), path, what, verbatim)


def parse_yaml(text: str, path: Path, what: str, verbatim: FrozenSet[str] = frozenset()) -> Document:
    """As :func:`read_yaml`, for text that was read from ``path``."""
    root = _compose(text, path)
    if root is None or root.tag == _TAG + "null":
        raise InputError("yaml-empty", f"the {what} is empty", where=str(path), hint="copy a shipped one and change it")
    builder = _Builder(path, verbatim)
    builder.measure(root)
    value = builder.build(root, (), False)
    if builder.duplicates:
        raise _first(builder.duplicates)
    return Document(path=path, value=value, values=builder.values, keys=builder.keys)


class _Loader(yaml.SafeLoader):
    """SafeLoader that counts how deep nodes nest, so that a hostile file cannot overflow the stack."""

    depth = 0

    def compose_node(self, parent: Optional[yaml.Node], index: Any) -> Optional[yaml.Node]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested more than {MAX_DEPTH} levels deep", problem_mark=mark)
        node: Optional[yaml.Node] = super().compose_node(parent, index)
        self.depth -= 1
        return node


_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first_characters in (
    ("bool", r"true|false", "tf"),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", "-+0123456789"),
    ("float", r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", "-+0123456789"),
    ("null", r"~|null|", ["~", "n", ""]),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})$"), list(_first_characters))


def _compose(text: str, path: Path) -> Optional[yaml.Node]:
    try:
        loader = _Loader(text)
        if not loader.check_node():
            return None
        node: Optional[yaml.Node] = loader.get_node()
        if loader.check_node():
            mark = loader.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise InputError(
                "yaml-documents",
                "a second YAML document begins here (`---`); expected one",
                where=_at(path, mark),
                hint="put each document into its own file",
            )
        return node
    except yaml.reader.ReaderError as error:
        raise _bad_character(text, path, error) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax(text, path, error) from None


def _bad_character(text: str, path: Path, error: yaml.reader.ReaderError) -> InputError:
    position = int(error.position)
    line = text.count("\n", 0, position) + 1
    column = position - (text.rfind("\n", 0, position) + 1) + 1
    code = error.character if isinstance(error.character, int) else ord(error.character)
    return InputError(
        "yaml-bad-character",
        f"character U+{code:04X} is not allowed in YAML",
        where=f"{path}:{line}:{column}",
        hint="is this a text file? Remove the character",
    )


def _syntax(text: str, path: Path, error: yaml.MarkedYAMLError) -> InputError:
    mark = error.problem_mark or error.context_mark
    where = _at(path, mark) if mark else str(path)
    problem = error.problem or "not YAML"
    line = text.split("\n")[mark.line] if mark and mark.line < text.count("\n") + 1 else ""
    if "\\t" in problem or line[: len(line) - len(line.lstrip())].count("\t"):
        return InputError(
            "yaml-tab", "a tab where YAML allows only spaces", where=where, hint="indent with spaces, two a level"
        )
    if "undefined alias" in problem:
        return InputError("yaml-alias", problem, where=where, hint="an alias (*name) needs its anchor (&name) above it")
    if "nested more than" in problem:
        return InputError("yaml-too-deep", problem, where=where)
    context = f" ({error.context})" if error.context else ""
    return InputError(
        "yaml-syntax",
        f"{problem}{context}",
        where=where,
        hint="look at this line and the one above: indentation, a missing `: `, or an unclosed quote or bracket",
    )


def _at(path: Path, mark: Any) -> str:
    return f"{path}:{mark.line + 1}:{mark.column + 1}"


def _first(errors: list[InputError]) -> InputError:
    head = errors[0]
    if len(errors) > 1:
        head.details["errors"] = [
            {"id": error.id, "message": error.message, "where": error.where, "hint": error.hint} for error in errors
        ]
    return head


class _Builder:
    """Turns nodes into values; ``measure`` first, which bounds the work."""

    def __init__(self, path: Path, verbatim: FrozenSet[str]) -> None:
        self.path = path
        self.verbatim = verbatim
        self.values: dict[KeyPath, Mark] = {}
        self.keys: dict[KeyPath, Mark] = {}
        self.duplicates: list[InputError] = []
        self._measured: dict[int, Optional[tuple[int, int]]] = {}  # None while its children are measured

    def measure(self, node: yaml.Node) -> tuple[int, int]:
        """Number of values and depth of ``node`` once aliases are followed, without following any twice."""
        at = _at(self.path, node.start_mark)
        if id(node) in self._measured:
            known = self._measured[id(node)]
            if known is None:
                raise InputError("yaml-recursive", "an alias that contains itself", where=at)
            return known
        self._measured[id(node)] = None
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        size, depth = 1, 0
        for child in children:
            child_size, child_depth = self.measure(child)
            size += child_size
            depth = max(depth, child_depth)
        if size > MAX_VALUES:
            raise InputError(
                "yaml-alias-bomb",
                f"expands to more than {MAX_VALUES} values",
                where=at,
                hint="write the values out instead of nesting aliases, or use groups and defaults",
            )
        if depth >= MAX_DEPTH:
            raise InputError("yaml-too-deep", f"nested more than {MAX_DEPTH} levels deep", where=at)
        self._measured[id(node)] = (size, depth + 1)
        return size, depth + 1

    def build(self, node: yaml.Node, path: KeyPath, verbatim: bool) -> Any:
        self.values[path] = Mark(node.start_mark.line + 1, node.start_mark.column + 1)
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self._mapping(node, path, verbatim)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return [self.build(item, (*path, index), verbatim) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _SCALAR_TAGS:
            return self._scalar(node, verbatim)
        raise InputError(
            "yaml-tag",
            f"tag {node.tag.replace(_TAG, '!!')!r} is not allowed",
            where=_at(self.path, node.start_mark),
            hint="write plain text, numbers, lists and mappings",
        )

    def _mapping(self, node: yaml.MappingNode, path: KeyPath, verbatim: bool) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            at = (*path, key)
            mark = Mark(key_node.start_mark.line + 1, key_node.start_mark.column + 1)
            if key in result:
                self.duplicates.append(
                    InputError(
                        "yaml-duplicate-key",
                        f"duplicate key {'.'.join(map(str, at))!r}; it is first in line {self.keys[at].line}",
                        where=f"{self.path}:{mark.line}:{mark.column}",
                        hint="keep one of the two",
                    )
                )
                continue
            self.keys[at] = mark
            result[key] = self.build(value_node, at, verbatim or key in self.verbatim)
        return result

    def _key(self, node: yaml.Node) -> str:
        where = _at(self.path, node.start_mark)
        if not isinstance(node, yaml.ScalarNode) or node.tag not in _SCALAR_TAGS:
            raise InputError("yaml-key", "a key must be text, not a list or a mapping", where=where)
        if node.value == "<<" and node.style is None:
            raise InputError(
                "yaml-merge-key",
                "merge keys (`<<`) are not supported",
                where=where,
                hint="use `groups` and `defaults`: they merge, and `inventory show` says where a value comes from",
            )
        if node.tag == _TAG + "null":
            raise InputError("yaml-key", "a key is empty", where=where, hint="write a name before the colon")
        return str(node.value)  # as written: a host named `8` or `true` is that text

    def _scalar(self, node: yaml.ScalarNode, verbatim: bool) -> Any:
        text = str(node.value)
        try:
            if node.tag == _TAG + "null":
                return None
            if node.tag == _TAG + "bool":
                return {"true": True, "false": False}[text]
            if node.tag == _TAG + "int" and not verbatim:
                return int(text)
            if node.tag == _TAG + "float" and not verbatim:
                return float(text)
        except (KeyError, ValueError):
            name = node.tag.replace(_TAG, "!!")
            raise InputError(
                "yaml-tag", f"{text!r} does not fit its tag {name}", where=_at(self.path, node.start_mark)
            ) from None
        return text
