"""Installed distributions, read from their metadata folders without importing anything. Agent-safe.

Formats: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
``packaging`` is not used: one expression normalizes names, and importing it takes a tenth of a second.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Set, Tuple
from urllib.parse import unquote, urlsplit

from ddtree_deploy.abi.cuda import abi_tag, soname_cuda_major, tag_for_cuda
from ddtree_deploy.abi.elf import ElfError, ElfFile
from ddtree_deploy.facts.files import read_bytes, read_text
from ddtree_deploy.facts.model import Package

# Wheels whose version is the toolkit's: nvidia-cuda-runtime 13.0.96 is of CUDA 13.0.
_TOOLKIT_VERSIONED = re.compile(r"(cuda-toolkit|nvidia-(cuda-(runtime|nvrtc|cupti|nvcc)|nvtx|nvjitlink))(-cu\d+)?\Z")
_NAME_MAJOR = re.compile(r"-cu(1\d)\Z")
_REQUIRES_MAJOR = re.compile(r"nvidia-[a-z0-9-]+-cu(1\d)\b|cuda-toolkit\[?[^=<>]*==(\d+)\.", re.I)
_SHARED_OBJECT = re.compile(rb"^\"?([^,\n]+\.so(?:\.\d+)*)\"?,[^,\n]*,(\d*)", re.M)
_ASSIGNED = r"^%s\s*(?::[^=\n]*)?=\s*(?:(None)|['\"]([^'\"]*)['\"])"
_OBJECTS_LOOKED_AT = 4  # the largest of a distribution; they were all built against the same CUDA


@dataclass(frozen=True)
class Distribution:
    """A package and what only the probe needs. ``digest``: sha256 of RECORD, or of METADATA where there is none."""

    package: Package
    info: Path  # the metadata folder, or the file of an old egg-info or egg-link
    digest: str
    top_level: List[str] = field(default_factory=list)


def normalize(name: str) -> str:
    """PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_distributions(site: Path) -> List[Distribution]:
    """All in ``site`` (a site-packages folder), by name. One without metadata is known by its folder's name."""
    found = []
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
    names = [line for line in read_text(info / "top_level.txt").split() if line.isidentifier()]
    top_level = names or [normalize(name).replace("-", "_")]
    normal = normalize(name)
    package = Package(
        name=normal,
        version=version,
        abi_tag=_abi_tag(site, normal, version, headers.get("requires-dist", []), record, top_level),
        record=record is not None,
        editable=_editable(read_text(info / "direct_url.json")),
        installer=read_text(info / "INSTALLER").strip() or None,
        wheel_tags=_headers(read_text(info / "WHEEL")).get("tag", []),
    )
    digest = hashlib.sha256(record if record is not None else metadata.encode("utf-8", "replace")).hexdigest()
    return Distribution(package, info, digest, top_level)


def _read_egg_link(path: Path) -> Optional[Distribution]:
    """``setup.py develop``: the file holds the project's folder."""
    folder = Path((read_text(path).splitlines() or [""])[0].strip())
    if not folder.is_absolute():
        return None
    for info in sorted(folder.glob("*.egg-info")):
        headers = _headers(read_text(info / "PKG-INFO"))
        if "name" in headers and "version" in headers:
            name = normalize(headers["name"][0])
            package = Package(name, headers["version"][0], record=False, editable=str(folder))
            return Distribution(package, path, hashlib.sha256(str(folder).encode()).hexdigest())
    return None


def _editable(direct_url: str) -> Optional[str]:
    """The project folder that PEP 610's direct_url.json names for an editable install."""
    try:
        data = json.loads(direct_url)
        if data["dir_info"].get("editable"):
            return unquote(urlsplit(data["url"]).path) or None
    except (ValueError, KeyError, TypeError, AttributeError):
        pass
    return None


def _abi_tag(
    site: Path, name: str, version: str, requires: List[str], record: Optional[bytes], top_level: List[str]
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
    objects = _shared_objects(record or b"")
    if not objects:
        return None
    majors = {major for path in objects for major in _linked_majors(site / path)}
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
    rows: List[Tuple[int, str]] = []
    for match in _SHARED_OBJECT.finditer(record):
        rows.append((int(match.group(2) or 0), match.group(1).decode("utf-8", "replace")))
    return [path for _, path in sorted(rows, reverse=True)[:_OBJECTS_LOOKED_AT]]


def _linked_majors(path: Path) -> Set[int]:
    try:
        with ElfFile(str(path)) as elf:
            majors = [soname_cuda_major(soname) for soname in elf.info().needed]
    except (OSError, ElfError):
        return set()
    return {major for major in majors if major is not None}


def _headers(text: str) -> Dict[str, List[str]]:
    """The headers before the first empty line, by lower-case name. Continuation lines matter to none that we read."""
    headers: Dict[str, List[str]] = {}
    for line in _lines_until_blank(text):
        key, colon, value = line.partition(":")
        if colon and not line[0].isspace():
            headers.setdefault(key.lower(), []).append(value.strip())
    return headers


def _lines_until_blank(text: str) -> Iterator[str]:
    for line in text.splitlines():
        if not line.strip():
            return
        yield line
