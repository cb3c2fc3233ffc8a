"""Secrets by reference, ``env:NAME`` or ``file:PATH``: read when needed, masked wherever they would show."""

from __future__ import annotations

import hmac
import os
import re
import stat
from pathlib import Path
from typing import Any, Optional

from ddtree_deploy.errors import InputError

MASK = "********"
_MAX_BYTES = 64 * 1024
_ALONE = "the secret alone, as text on one line, must be there"
_REFERENCE = re.compile(r"(env|file):(.+)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Secret:
    """A secret's value; only :meth:`reveal` gives it. ``warning`` says what is careless about its source."""

    __slots__ = ("_value", "reference", "warning")

    def __init__(self, value: str, reference: str = "", warning: Optional[str] = None) -> None:
        self._value = value
        self.reference = reference
        self.warning = warning

    def reveal(self) -> str:
        """The value, for the one place that must have it."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({MASK})"

    def __str__(self) -> str:
        return MASK

    def __format__(self, spec: str) -> str:
        return format(MASK, spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: Any) -> Secret:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a secret is not pickled")


def is_reference(text: str) -> bool:
    """Whether ``text`` has the form of a reference, right or wrong."""
    return text.startswith(("env:", "file:"))


def reference_problem(text: str) -> Optional[str]:
    """Why ``text`` is not a reference, without repeating it: it may be the secret itself."""
    match = _REFERENCE.fullmatch(text)
    if match is None:
        return "expected a reference, env:NAME or file:PATH, found other text (not shown)"
    if match[1] == "env" and not _VARIABLE.fullmatch(match[2]):
        return "expected the name of an environment variable after env:, found other text (not shown)"
    return None


def resolve(reference: str, base_dir: Path, where: Optional[str] = None) -> Secret:
    """Read the secret. Paths are relative to ``base_dir``, the inventory's folder; one trailing newline is dropped.

    Raises InputError ``secret-*``; no message holds the value.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None or reference_problem(reference):
        raise InputError("secret-not-a-reference", str(reference_problem(reference)), where=where)
    kind, name = match[1], match[2]
    if kind == "env":
        return _checked(_from_environment(name, reference, where), reference, where, None)
    path = Path(name).expanduser()
    path = path if path.is_absolute() else base_dir / path
    value, warning = _from_file(path, reference, where)
    return _checked(value, reference, where, warning)


def _from_environment(name: str, reference: str, where: Optional[str]) -> str:
    value = os.environ.get(name)
    if value is None:
        hint = f"export {name} in the shell that runs ddtree-deploy"
        raise InputError("secret-missing", f"{reference}: the variable is not set", where=where, hint=hint)
    return value


def _from_file(path: Path, reference: str, where: Optional[str]) -> tuple[str, Optional[str]]:
    try:
        with path.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        hint = "make the file, with the secret alone in it: (umask 077; cat > FILE)"
        raise InputError("secret-missing", f"{reference}: {path} does not exist", where=where, hint=hint) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a path"
        message = f"{reference}: {path} cannot be read: {reason}"
        raise InputError("secret-unreadable", message, where=where, hint=_ALONE) from None
    if len(data) > _MAX_BYTES:
        raise InputError("secret-unreadable", f"{reference}: {path} is over 64 KiB", where=where, hint=_ALONE)
    warning = None
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        warning = f"{path} can be read by every user of this machine: chmod 600 {path}"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        message = f"{reference}: {path} is not UTF-8 text"
        raise InputError("secret-unreadable", message, where=where, hint=_ALONE) from None
    return text.removesuffix("\n").removesuffix("\r"), warning


def _checked(value: str, reference: str, where: Optional[str], warning: Optional[str]) -> Secret:
    if not value.strip():
        raise InputError("secret-empty", f"{reference}: the secret is empty", where=where, hint=_ALONE)
    if any(ord(character) < 32 or ord(character) == 127 for character in value):
        raise InputError(
            "secret-control-character",
            f"{reference}: the secret has more than one line, or control characters",
            where=where,
            hint="it goes into an environment variable or an HTTP header: one line of text",
        )
    return Secret(value, reference, warning)
