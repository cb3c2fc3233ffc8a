"""Installed distributions, read from their metadata folders without importing anything. Agent-safe.

Formats: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
``packaging`` is not used: one expression normalizes names, and importing it takes a tenth of a second.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Set, Tuple

from packaging.utils import canonicalize_name

from ddtree_deploy.abi.cuda import abi_tag, soname_cuda_major, tag_for_cuda
from ddtree_deploy.abi.elf import SHARED_OBJECT_NAME, ElfError, ElfFile
from ddtree_deploy.facts.files import read_bytes, read_text
from ddtree_deploy.facts.links import links
from ddtree_deploy.facts.model import Package
from ddtree_deploy.release.bare import NVIDIA, Bare, claim, files_below, find_bare, import_entries, own_version
from ddtree_deploy.release.distributions import editable_project
from ddtree_deploy.release.record import is_whole

# Wheels whose version is the toolkit's: nvidia-cuda-runtime 13.0.96 is of CUDA 13.0.
_TOOLKIT_VERSIONED = re.compile(r"(cuda-toolkit|nvidia-(cuda-(runtime|nvrtc|cupti|nvcc)|nvtx|nvjitlink))(-cu\d+)?\Z")
_NAME_MAJOR = re.compile(r"-cu(1\d)\Z")
_REQUIRES_MAJOR = re.compile(r"nvidia-[a-z0-9-]+-cu(1\d)\b|cuda-toolkit\[?[^=<>]*==(\d+)\.", re.I)
_SHARED_OBJECT = re.compile(rb"^\"?([^,\n]+\.so(?:\.\d+)*)\"?,[^,\n]*,(\d*)", re.M)
_RECORDED = re.compile(rb"^(?:\"([^\"\n]+)\"|([^,\n]+)),", re.M)  # the path, in quotes where it has a comma
_EXTRA = re.compile(r";.*\bextra\s*==")
_CUDA_REQUIREMENT = re.compile(r"(nvidia|cuda)-", re.I)
_ASSIGNED = r"^%s\s*(?::[^=\n]*)?=\s*(?:(None)|['\"]([^'\"]*)['\"])"
_OBJECTS_LOOKED_AT = 4  # the largest of a distribution; they were all built against the same CUDA


@dataclass(frozen=True)
class Distribution:
    """A package and what only the probe needs. ``digest``: sha256 of RECORD and of which of its files are gone, or of
    METADATA where there is no RECORD."""

    package: Package
    info: Path  # the metadata folder, or the file of an old egg-info or egg-link
    digest: str
    top_level: List[str] = field(default_factory=list)


def read_distributions(site: Path) -> List[Distribution]:
    """All in ``site`` (a site-packages folder), by name. One without metadata is known by its folder's name, or, where
    it has not even such a folder, by its own files (see ``bare``)."""
    found = []
    claimed: Set[str] = set()
    for path in sorted(site.iterdir()):
        if path.name.startswith("~"):  # what pip was about to remove when it was interrupted
            continue
        if path.name.endswith((".dist-info", ".egg-info")):
            distribution = _read(site, path)
        elif path.name.endswith(".egg-link"):
            distribution = _read_egg_link(path)
        else:
            continue
        if distribution is not None:
            found.append(distribution)
            claimed |= _claims(site, distribution)
    found += [_of_bare(site, bare) for bare in find_bare(str(site), claimed)]
    return sorted(found, key=lambda distribution: (distribution.package.name, distribution.package.version))


def _read(site: Path, info: Path) -> Optional[Distribution]:
    metadata = read_text(info / "METADATA") or read_text(info / "PKG-INFO") or read_text(info)
    headers = _headers(metadata)
    stem = re.sub(r"-py\d(\.\d+)?\Z", "", info.name.rpartition(".")[0])
    name, _, version = stem.partition("-")
    name = headers.get("name", [name])[0]
    version = headers.get("version", [version])[0]
    if not name or not version:
        return None
    record = read_bytes(info / "RECORD")
    whole = record is not None and is_whole(record, info.name)
    names = [line for line in read_text(info / "top_level.txt").split() if line.isidentifier()]
    top_level = names or [canonicalize_name(name).replace("-", "_")]
    normal = canonicalize_name(name)
    requires = headers.get("requires-dist", [])
    objects = _shared_objects(record or b"") if whole else _objects_below(site, import_entries(normal, str(site)))
    own = own_version(str(site), normal)
    package = Package(
        name=normal,
        version=version,
        abi_tag=_abi_tag(site, normal, version, requires, objects, top_level),
        record=whole,
        editable=editable_project(read_text(info / "direct_url.json")),
        installer=read_text(info / "INSTALLER").strip() or None,
        wheel_tags=_headers(read_text(info / "WHEEL")).get("tag", []),
        links=links(site, objects) if normal != "torch" else [],
        requires=[text for text in requires if not _EXTRA.search(text) or _CUDA_REQUIREMENT.match(text)],
        disagrees=own if own is not None and own.partition("+")[0] != version.partition("+")[0] else None,
    )
    digest = hashlib.sha256(record if record is not None else metadata.encode("utf-8", "replace"))
    for path in _gone(site, record or b""):
        digest.update(b"\0" + path)
    return Distribution(package, info, digest.hexdigest(), top_level)


def _recorded(record: bytes) -> Iterator[bytes]:
    """The paths in a RECORD."""
    return (match.group(1) or match.group(2) for match in _RECORDED.finditer(record))


def _gone(site: Path, record: bytes) -> List[bytes]:
    """The files that a RECORD names and that are not there. Byte code may come and go."""
    folder = os.fsencode(site) + b"/"
    return [name for name in _recorded(record) if not name.endswith(b".pyc") and not os.path.lexists(folder + name)]


def _of_bare(site: Path, bare: Bare) -> Distribution:
    objects = _objects_below(site, bare.entries)
    tag = _abi_tag(site, bare.name, bare.version, [], objects, bare.entries)
    if bare.name == NVIDIA and bare.version != "0":
        tag = "cu" + bare.version
    package = Package(
        bare.name,
        bare.version,
        tag,
        record=False,
        links=links(site, objects) if bare.name not in ("torch", NVIDIA) else [],
        bare=True,
    )
    digest = hashlib.sha256()
    for entry in bare.entries:
        for path in files_below(str(site), entry):
            digest.update(f"{path}\0{(site / path).lstat().st_size}\n".encode("utf-8", "surrogateescape"))
    return Distribution(package, site / bare.entries[0], digest.hexdigest(), bare.entries)


def _claims(site: Path, distribution: Distribution) -> Set[str]:
    """Entries of ``site`` that belong to a distribution with metadata."""
    if not distribution.package.record:
        return {*import_entries(distribution.package.name, str(site)), *distribution.top_level} - {NVIDIA}
    record = read_bytes(distribution.info / "RECORD") or b""
    return {claim(name.decode("utf-8", "surrogateescape")) for name in _recorded(record)}


def _read_egg_link(path: Path) -> Optional[Distribution]:
    """``setup.py develop``: the file holds the project's folder."""
    folder = Path((read_text(path).splitlines() or [""])[0].strip())
    if not folder.is_absolute():
        return None
    for info in sorted(folder.glob("*.egg-info")):
        headers = _headers(read_text(info / "PKG-INFO"))
        if "name" in headers and "version" in headers:
            name = canonicalize_name(headers["name"][0])
            package = Package(name, headers["version"][0], record=False, editable=str(folder))
            return Distribution(package, path, hashlib.sha256(str(folder).encode()).hexdigest())
    return None


def _abi_tag(
    site: Path, name: str, version: str, requires: List[str], objects: List[str], top_level: List[str]
) -> Optional[str]:
    """The CUDA build, told by the first that knows: version, version.py, name, libraries linked, requirements.

    ``cu130`` where the minor version is known, ``cu13`` where only the major is, ``cpu`` for a build without CUDA.
    """
    tag = abi_tag(version) or _tag_of_version_file(site, name, top_level)
    if tag:
        return tag
    if _TOOLKIT_VERSIONED.match(name):
        return tag_for_cuda(version)
    match = _NAME_MAJOR.search(name)
    if match:
        return "cu" + match.group(1)
    if not objects:
        return None
    majors = {major for path in objects[:_OBJECTS_LOOKED_AT] for major in _linked_majors(site / path)}
    if not majors:
        plain = [requirement for requirement in requires if "extra ==" not in requirement]
        found = (match for match in map(_REQUIRES_MAJOR.match, plain) if match)
        majors = {int(match.group(1) or match.group(2)) for match in found}
    return f"cu{majors.pop()}" if len(majors) == 1 else None


def _tag_of_version_file(site: Path, name: str, top_level: List[str]) -> Optional[str]:
    """torch, torchvision and torchaudio write their build into version.py, whatever the wheel's version says."""
    for module in top_level[:4]:
        text = read_text(site / module / "version.py")
        if not text:
            continue
        found = re.search(_ASSIGNED % "__version__", text, re.M)
        tag = abi_tag(found.group(2)) if found else None
        if tag:
            return tag
        cuda = re.search(_ASSIGNED % "cuda", text, re.M)
        hip = re.search(_ASSIGNED % "hip", text, re.M)
        if cuda and cuda.group(2):
            return tag_for_cuda(cuda.group(2))
        if name == "torch" and cuda and cuda.group(1) and (hip is None or hip.group(1)):
            return "cpu"
    return None


def _shared_objects(record: bytes) -> List[str]:
    """The largest first."""
    rows: List[Tuple[int, str]] = []
    for match in _SHARED_OBJECT.finditer(record):
        rows.append((int(match.group(2) or 0), match.group(1).decode("utf-8", "replace")))
    return [path for _, path in sorted(rows, reverse=True)]


def _objects_below(site: Path, entries: List[str]) -> List[str]:
    paths = [path for entry in entries for path in files_below(str(site), entry) if SHARED_OBJECT_NAME.search(path)]
    sizes = {path: (site / path).lstat().st_size for path in paths if (site / path).exists()}
    return sorted(sizes, key=lambda path: sizes[path], reverse=True)


def _linked_majors(path: Path) -> Set[int]:
    try:
        with ElfFile(str(path)) as elf:
            majors = [soname_cuda_major(soname) for soname in elf.info().needed]
    except (OSError, ElfError):
        return set()
    return {major for major in majors if major is not None}


def _headers(text: str) -> Dict[str, List[str]]:
    """The headers before the first empty line, by lower-case name. Continuation lines matter to none that we read; a
    license in several lines has such with nothing but blanks."""
    headers: Dict[str, List[str]] = {}
    for line in _lines_until_empty(text):
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            headers.setdefault(key.lower(), []).append(value.strip())
    return headers


def _lines_until_empty(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line:
            return
        yield line
