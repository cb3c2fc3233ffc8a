"""Installed distributions, read from ``*.dist-info`` and ``*.egg-info`` without importing anything.

Formats: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

from __future__ import annotations

import csv
import json
import posixpath
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Dict, List, NamedTuple, Optional, Tuple

from packaging.utils import canonicalize_name

from ddtree_deploy.abi.tree import Tree
from ddtree_deploy.release.record import is_whole

_FOLDER = re.compile(r"^(?P<name>.+?)-(?P<version>[^-]+?)(-py\d.*)?\.(dist|egg)-info$")


class Recorded(NamedTuple):
    """What RECORD says of a file: ``sha256=...`` or empty, size or None."""

    hash: str
    size: Optional[int]


@dataclass
class Distribution:
    """One ``*.dist-info``. ``record`` maps logical paths to what RECORD says; None where there is no RECORD."""

    name: str  # normalized; from METADATA, else from the folder's name
    version: str
    folder: str  # logical path of the dist-info
    site: str
    folder_name: str
    folder_version: str
    metadata_name: Optional[str] = None
    metadata_version: Optional[str] = None
    requires: List[str] = field(default_factory=list)
    requires_python: Optional[str] = None
    tags: List[str] = field(default_factory=list)
    record: Optional[Dict[str, Recorded]] = None
    editable: Optional[str] = None
    origin: Optional[str] = None  # the wheel's URL from direct_url.json
    installer: Optional[str] = None

    @property
    def label(self) -> str:
        return f"{self.name} {self.version}"

    def owns(self, path: str) -> bool:
        return self.record is not None and path in self.record


def read_distributions(tree: Tree, site: str) -> List[Distribution]:
    """Every distribution whose metadata folder lies directly in ``site``, sorted by name."""
    folders: Dict[str, List[str]] = {}
    start = len(site) + 1
    for path in tree.files:
        if not path.startswith(site + "/"):
            continue
        head, _, rest = path[start:].partition("/")
        if head.endswith((".dist-info", ".egg-info")) and not head.startswith("~"):
            folders.setdefault(head, []).append(rest)
    found = [_read(tree, site, head) for head in folders]
    return sorted((dist for dist in found if dist is not None), key=lambda dist: (dist.name, dist.folder))


def _read(tree: Tree, site: str, head: str) -> Optional[Distribution]:
    match = _FOLDER.match(head)
    folder = f"{site}/{head}"
    text = _text(tree, folder + "/METADATA") or _text(tree, folder + "/PKG-INFO") or _text(tree, folder)
    headers = parse_headers(text or "")
    name = _first(headers, "name")
    version = _first(headers, "version")
    if not match and not name:
        return None
    folder_name = match.group("name") if match else head.rpartition(".")[0]
    folder_version = match.group("version") if match else (version or "")
    dist = Distribution(
        name=str(canonicalize_name(name or folder_name)),
        version=version or folder_version,
        folder=folder,
        site=site,
        folder_name=folder_name,
        folder_version=folder_version,
        metadata_name=name,
        metadata_version=version,
        requires=headers.get("requires-dist", []),
        requires_python=_first(headers, "requires-python"),
        tags=parse_headers(_text(tree, folder + "/WHEEL") or "").get("tag", []),
        record=_record(_text(tree, folder + "/RECORD"), folder, site),
        installer=(_text(tree, folder + "/INSTALLER") or "").strip() or None,
    )
    _read_direct_url(dist, _text(tree, folder + "/direct_url.json"))
    return dist


def parse_headers(text: str) -> Dict[str, List[str]]:
    """The RFC 822 headers before the first empty line, by lower-case name; continuation lines are joined."""
    headers: Dict[str, List[str]] = {}
    last: Optional[List[str]] = None
    for line in text.splitlines():
        if not line.strip():
            break
        if line[0] in " \t":
            if last is not None:
                last[-1] += " " + line.strip()
            continue
        key, colon, value = line.partition(":")
        if colon:
            last = headers.setdefault(key.strip().lower(), [])
            last.append(value.strip())
    return headers


def _record(text: Optional[str], folder: str, site: str) -> Optional[Dict[str, Recorded]]:
    if text is None or not is_whole(text.encode("utf-8", "replace"), posixpath.basename(folder)):
        return None
    rows: Dict[str, Recorded] = {}
    lines = text.replace("\0", "").splitlines()
    try:
        parsed = list(csv.reader(lines))
    except csv.Error:  # a damaged line: take the others as they are
        parsed = [line.rsplit(",", 2) for line in lines]
    for row in parsed:
        if not row or not row[0]:
            continue
        path = row[0]
        logical = path if path.startswith("/") else f"{site}/{path}"
        if ".." in path or "/./" in path or "//" in path:
            logical = posixpath.normpath(logical)
        size = row[2] if len(row) > 2 else ""
        rows[logical] = Recorded(row[1] if len(row) > 1 else "", int(size) if size.isdigit() else None)
    return rows


def _read_direct_url(dist: Distribution, text: Optional[str]) -> None:
    if not text:
        return
    try:
        data = json.loads(text)
    except ValueError:
        return
    if not isinstance(data, dict) or not isinstance(data.get("url"), str):
        return
    dist.origin = data["url"]
    info = data.get("dir_info")
    if isinstance(info, dict) and info.get("editable"):
        dist.editable = data["url"].replace("file://", "", 1)


def _text(tree: Tree, path: str) -> Optional[str]:
    entry = tree.find(path)
    if entry is None:
        return None
    try:
        return Path(entry.real).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _first(headers: Dict[str, List[str]], key: str) -> Optional[str]:
    values = headers.get(key)
    return values[0] if values else None


def owners(distributions: List[Distribution]) -> Dict[str, List[Tuple[Distribution, Recorded]]]:
    """Logical path -> the distributions whose RECORD claims it."""
    result: Dict[str, List[Tuple[Distribution, Recorded]]] = {}
    for dist in distributions:
        for path, recorded in (dist.record or {}).items():
            result.setdefault(path, []).append((dist, recorded))
    return result
