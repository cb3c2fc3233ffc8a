"""Lock files: ``uv pip compile --generate-hashes`` output to packages, and which of them a host takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator, Mapping, Optional, Sequence

from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from ddtree_deploy.errors import InputError
from ddtree_deploy.profiles.model import LockedPackage
from ddtree_deploy.versions import marker_environment

_HASH = re.compile(r"--hash=(\w+):(\S+)")
_HINT = "make it with `uv pip compile --generate-hashes --no-emit-index-url`; see docs/profiles.md"


@dataclass(frozen=True)
class _Entry:
    line: int  # where it begins, from 1
    text: str  # one logical line, without comments


def parse_lock(text: str, path: Path, abi: Optional[Mapping[str, str]] = None) -> list[LockedPackage]:
    """The packages of a lock, in its order. ``abi``: CUDA tag by normalized name, for versions that do not say it.

    Raises InputError ``lock-*`` with file:line: not pinned by ``==``, no sha256, a bad marker, an option, a URL.
    """
    packages: list[LockedPackage] = []
    seen: dict[tuple[str, Optional[str]], int] = {}
    for entry in _entries(text):
        where = f"{path}:{entry.line}"
        package = _package(entry.text, where, abi or {})
        key = (package.name, package.marker)
        if key in seen:
            message = f"{package.name} is there twice, first in line {seen[key]}"
            raise InputError("lock-duplicate", message, where=where, hint=_HINT)
        seen[key] = entry.line
        packages.append(package)
    if not packages:
        raise InputError("lock-empty", "the lock names no package", where=str(path), hint=_HINT)
    return packages


def packages_for(packages: Sequence[LockedPackage], python_version: str, machine: str) -> list[LockedPackage]:
    """Those whose markers hold on Linux with CPython ``python_version`` ("3.11.2") on ``machine`` ("x86_64").

    Raises InputError ``bad-python-version`` or ``lock-ambiguous`` (two versions of one package hold).
    """
    environment = marker_environment(python_version, machine)
    chosen: dict[str, LockedPackage] = {}
    for package in packages:
        if package.marker and not Marker(package.marker).evaluate(environment):
            continue
        other = chosen.get(package.name)
        if other is not None:
            message = f"both {package.name} {other.version} and {package.version} are for Python {python_version}"
            raise InputError("lock-ambiguous", message, hint=_HINT)
        chosen[package.name] = package
    return list(chosen.values())


def _entries(text: str) -> Iterator[_Entry]:
    parts: list[str] = []
    begun = 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        if not line:
            if parts and not raw.strip():
                yield _Entry(begun, " ".join(parts))
                parts = []
            continue
        if not parts:
            begun = number
        parts.append(line.removesuffix("\\").strip())
        if not line.endswith("\\"):
            yield _Entry(begun, " ".join(parts))
            parts = []
    if parts:
        yield _Entry(begun, " ".join(parts))


def _package(text: str, where: str, abi: Mapping[str, str]) -> LockedPackage:
    if text.startswith("-"):
        raise InputError("lock-option", f"option {text.split()[0]!r} has no place in a lock", where=where, hint=_HINT)
    requirement_text = text.split("--hash=", 1)[0].strip()
    try:
        requirement = Requirement(requirement_text)
    except InvalidRequirement as error:
        problem = str(error).splitlines()[0]
        id = "lock-bad-marker" if _bad_marker(requirement_text) else "lock-syntax"
        raise InputError(id, f"{requirement_text!r}: {problem}", where=where, hint=_HINT) from None
    name = canonicalize_name(requirement.name)
    if requirement.url:
        raise InputError("lock-not-pinned", f"{name}: expected a version, found a URL", where=where, hint=_HINT)
    specifiers = list(requirement.specifier)
    if len(specifiers) != 1 or specifiers[0].operator != "==" or specifiers[0].version.endswith(".*"):
        wanted = str(requirement.specifier) or "no version"
        message = f"{name}: expected exactly one version (name==version), found {wanted}"
        raise InputError("lock-not-pinned", message, where=where, hint=_HINT)
    marker = str(requirement.marker) if requirement.marker else None
    if marker:
        _check_marker(marker, name, where)
    version = specifiers[0].version
    tag = abi.get(name) or _local_tag(version)
    return LockedPackage(name, version, _hashes(text[len(requirement_text) :], name, where), marker, tag)


def _hashes(text: str, name: str, where: str) -> list[str]:
    hashes = []
    for algorithm, digest in _HASH.findall(text):
        if algorithm != "sha256" or not re.fullmatch(r"[0-9a-f]{64}", digest):
            message = f"{name}: expected sha256 and 64 hex digits, found {algorithm}:{digest[:20]}"
            raise InputError("lock-bad-hash", message, where=where, hint=_HINT)
        hashes.append(digest)
    rest = _HASH.sub("", text).strip()
    if rest:
        raise InputError(
            "lock-syntax", f"{name}: expected --hash=sha256:..., found {rest[:40]!r}", where=where, hint=_HINT
        )
    if not hashes:
        raise InputError("lock-no-hash", f"{name}: no hash", where=where, hint=_HINT)
    return hashes


def _bad_marker(requirement: str) -> bool:
    _, semicolon, marker = requirement.partition(";")
    if not semicolon:
        return False
    try:
        Marker(marker.strip())
    except InvalidMarker:
        return True
    return False


def _check_marker(marker: str, name: str, where: str) -> None:
    try:
        Marker(marker).evaluate(marker_environment("3.11.0", "x86_64"))
    except (UndefinedEnvironmentName, UndefinedComparison) as error:
        raise InputError("lock-bad-marker", f"{name}: {error}", where=where, hint=_HINT) from None


def _local_tag(version: str) -> Optional[str]:
    """``cu128`` of ``2.11.0+cu128``."""
    local = version.partition("+")[2]
    match = re.match(r"(cu\d{2,3}|cpu)(?:\.|$)", local)
    return match[1] if match else None
