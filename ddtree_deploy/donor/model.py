"""What is taken from a donor: the files of chosen packages, each with its hash. Standard library only (agent-safe)."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Type, TypeVar

from ddtree_deploy.errors import StepError
from ddtree_deploy.release.files import shown

_SHA256 = re.compile(r"[0-9a-f]{64}\Z")
T = TypeVar("T", bound="tuple[Any, ...]")


class DonorFile(NamedTuple):
    """``path`` relative to the venv; ``mode``: permission bits; ``recorded``: the hash is RECORD's, the bytes were not
    read; ``owner``: index into the manifest's packages."""

    path: str
    size: int
    mode: int
    sha256: str
    recorded: int
    owner: int


class DonorPackage(NamedTuple):
    """``folder``: its metadata in site-packages, empty where it has none; ``record``: it has a RECORD."""

    name: str  # normalized
    version: str
    folder: str
    record: int


@dataclass(frozen=True)
class Manifest:
    """``venv``: its real path on the donor's host; ``names``: all paths by which its files may call it; ``site``:
    site-packages relative to it; ``links``: symlinks, path -> target; ``take_edited``: also compiled files that are not
    what their RECORD says."""

    venv: str
    names: List[str]
    site: str
    packages: List[DonorPackage] = field(default_factory=list)
    files: List[DonorFile] = field(default_factory=list)
    links: Dict[str, str] = field(default_factory=dict)
    take_edited: bool = False

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)

    def digest(self) -> str:
        """Hex sha256 over everything that the packages' tree will hold."""
        files = sorted((file.path, file.sha256, file.mode) for file in self.files)
        packages = sorted((package.name, package.version) for package in self.packages)
        text = json.dumps([1, "donor", self.names, self.site, packages, files, sorted(self.links.items())])
        return hashlib.sha256(text.encode("ascii")).hexdigest()

    def to_dict(self) -> Dict[str, Any]:
        return dict(self.__dict__)


def parse_manifest(data: Dict[str, Any]) -> Manifest:
    """The manifest of ``to_dict``. It says where files are written: raises StepError ``bad-manifest`` for a path that
    leads out of the tree, or a hash that is none."""
    try:
        manifest = Manifest(
            venv=str(data["venv"]),
            names=[str(name) for name in data["names"]],
            site=str(data["site"]),
            packages=_rows(DonorPackage, data["packages"]),
            files=_rows(DonorFile, data["files"]),
            links={str(path): str(target) for path, target in data["links"].items()},
            take_edited=bool(data["take_edited"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StepError("bad-manifest", f"the list of a donor's files is damaged: {error!r}") from error
    folders = [package.folder for package in manifest.packages if package.folder]
    for path in [manifest.site, *folders, *manifest.links, *(file.path for file in manifest.files)]:
        if not path or os.path.isabs(path) or os.path.normpath(path) != path or path.split("/")[0] == "..":
            raise StepError("bad-manifest", f"{shown(path)} leads out of the tree of a donor's files")
    for file in manifest.files:
        good = isinstance(file.sha256, str) and _SHA256.match(file.sha256) and 0 <= file.mode <= 0o777
        if not good or file.size < 0 or not 0 <= file.owner < len(manifest.packages):
            raise StepError("bad-manifest", f"{shown(file.path)}: the list of a donor's files is damaged")
    return manifest


def _rows(kind: Type[T], rows: List[List[Any]]) -> List[T]:
    return [kind(*row) for row in rows]
