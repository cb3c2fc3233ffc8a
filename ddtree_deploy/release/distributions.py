"""The distributions installed in a venv and the files they own. Standard library and packaging only (agent-safe).

Sources: PyPA "Recording installed projects" (dist-info, RECORD); setuptools' egg-info with installed-files.txt and
top_level.txt for what was installed without a RECORD, or whose RECORD was cut off.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import Dict, List, Optional, Set
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from ddtree_deploy.errors import InputError
from ddtree_deploy.release.bare import NVIDIA, claim, files_below, find_bare, import_entries
from ddtree_deploy.release.record import Row, is_whole, parse_record, venv_path

_FOLDER = re.compile(r"(?P<name>.+?)(?:-(?P<version>[^-]+))?(?:-py[\d.]+)?\.(?:dist|egg)-info\Z")


@dataclass(frozen=True)
class Distribution:
    """``folder``: the dist-info (or egg-info) in site-packages. ``files``: all that it owns inside the venv, relative
    to the venv; ``hashes`` of those whose RECORD row has one; ``outside``: rows that lead out of the venv.
    ``record`` is False where the files were told from the top-level names; ``folder`` is empty where there is no
    metadata at all (see ``bare``)."""

    name: str  # normalized
    version: str
    folder: str
    files: List[str] = field(default_factory=list)
    hashes: Dict[str, str] = field(default_factory=dict)
    sizes: Dict[str, int] = field(default_factory=dict)
    outside: List[str] = field(default_factory=list)
    record: bool = True


def find_site(venv: str, id: str = "not-a-venv") -> str:
    """site-packages relative to ``venv``: of several, such as an upgrade of Python leaves, that of the venv's
    Python. Raises InputError with ``id``."""
    lib = os.path.join(venv, "lib")
    names = sorted(os.listdir(lib)) if os.path.isdir(lib) else []
    found = [
        f"lib/{name}/site-packages"
        for name in names
        if re.match(r"(python|pypy)\d", name) and os.path.isdir(os.path.join(lib, name, "site-packages"))
    ]
    if len(found) > 1:
        found = [site for site in found if site.split("/")[1] == f"python{python_of(venv)}"] or found
    if len(found) == 1:
        return found[0]
    raise InputError(
        id,
        f"{venv} has {len(found) or 'no'} site-packages folders below lib/; one is expected",
        where=venv,
        hint="give the folder that holds pyvenv.cfg and bin/python",
    )


def python_of(venv: str) -> Optional[str]:
    """``3.11``: of the interpreter that bin/python leads to, where its name says it, else of pyvenv.cfg (``version`` of
    venv, ``version_info`` of uv and virtualenv), which stays as it was when the system's Python is upgraded; or None.
    """
    for name in ("python", "python3"):
        python = os.path.join(venv, "bin", name)
        if os.path.exists(python):
            match = re.fullmatch(r"python(\d+\.\d+)", os.path.basename(os.path.realpath(python)))
            if match:
                return match.group(1)
            break
    try:
        with open(os.path.join(venv, "pyvenv.cfg"), encoding="utf-8", errors="replace") as stream:
            match = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", stream.read(), re.M)
    except OSError:
        return None
    return match.group(1) if match else None


def editable_project(direct_url: str) -> Optional[str]:
    """The project folder that PEP 610's direct_url.json, whose text this is, names for an editable install."""
    try:
        data = json.loads(direct_url)
        if data["dir_info"].get("editable"):
            return unquote(urlsplit(data["url"]).path) or None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    return None


def find_distributions(venv: str, site: str) -> Dict[str, List[Distribution]]:
    """All distributions by normalized name. A name has more than one when an uninstall went wrong.

    One without RECORD has what is below its top-level names and in nobody's RECORD.
    """
    found: Dict[str, List[Distribution]] = {}
    for folder in sorted(os.listdir(os.path.join(venv, site))):
        match = _FOLDER.match(folder)
        if match is None:
            continue
        name = canonicalize_name(match.group("name"))
        found.setdefault(name, []).append(_read(venv, site, folder, name, match.group("version") or ""))
    recorded = {path for same in found.values() for dist in same if dist.record for path in dist.files}
    for same in found.values():
        for index, dist in enumerate(same):
            if not dist.record:
                same[index] = replace(dist, files=[path for path in dist.files if path not in recorded])
    for bare in _bare(venv, site, found):
        found.setdefault(bare.name, []).append(bare)
    return found


def _bare(venv: str, site: str, found: Dict[str, List[Distribution]]) -> List[Distribution]:
    start = len(site) + 1
    claimed: Set[str] = set()
    for same in found.values():
        for dist in same:
            claimed |= {claim(path[start:]) for path in dist.files if path.startswith(site + "/")}
            if not dist.record:
                claimed |= set(import_entries(dist.name, os.path.join(venv, site)))
    folder = os.path.join(venv, site)
    return [
        Distribution(
            bare.name,
            bare.version,
            "",
            [f"{site}/{path}" for entry in bare.entries for path in files_below(folder, entry)],
            record=False,
        )
        for bare in find_bare(folder, claimed)
    ]


def owners(distributions: Dict[str, List[Distribution]], without: frozenset[str]) -> Dict[str, List[str]]:
    """path -> names of the distributions that own it, those in ``without`` left out."""
    found: Dict[str, List[str]] = {}
    for name, same in distributions.items():
        if name not in without:
            for distribution in same:
                for path in distribution.files:
                    found.setdefault(path, []).append(name)
    return found


def is_bytecode(path: str) -> bool:
    """Compiled files in ``__pycache__``, which releases do not take over."""
    return "/__pycache__/" in path or path.startswith("__pycache__/")


def _read(venv: str, site: str, folder: str, name: str, version: str) -> Distribution:
    base = os.path.join(venv, site, folder)
    record = os.path.join(base, "RECORD")
    if os.path.isfile(record):
        with open(record, "rb") as stream:
            data = stream.read()
        if is_whole(data, folder):
            return _from_rows(name, version, folder, site, parse_record(data))
    installed = os.path.join(base, "installed-files.txt")
    if os.path.isfile(installed):
        with open(installed, encoding="utf-8", errors="surrogateescape") as text:
            paths = [os.path.normpath(os.path.join(folder, line.rstrip("\n"))) for line in text if line.strip()]
        return _from_rows(name, version, folder, site, [(path, "", "") for path in paths])
    files = [f"{site}/{path}" for path in _by_top_level(os.path.join(venv, site), folder, name)]
    return Distribution(name, version, folder, files, record=False)


def _from_rows(name: str, version: str, folder: str, site: str, rows: List[Row]) -> Distribution:
    distribution = Distribution(name, version, folder)
    for recorded, digest, size in rows:
        path = venv_path(site, recorded)
        if path is None:
            distribution.outside.append(recorded)
            continue
        distribution.files.append(path)
        if digest:
            distribution.hashes[path] = digest
        if size.isdigit():
            distribution.sizes[path] = int(size)
    return distribution


def declared_names(site: str, folder: str) -> Optional[List[str]]:
    """What ``top_level.txt`` in the metadata says, which is nothing for a package without modules; None without it."""
    path = os.path.join(site, folder, "top_level.txt")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8", errors="replace") as stream:
        return [line.strip() for line in stream if line.strip()]


def top_level(site: str, folder: str, name: str) -> List[str]:
    """Entries of site-packages that a distribution has by its ``top_level.txt``, or else by its name."""
    names = declared_names(site, folder)
    if not names or names == [NVIDIA]:  # a folder that all of NVIDIA's packages share
        names = import_entries(name, site)
    return names


def _by_top_level(site: str, folder: str, name: str) -> List[str]:
    """Files below the top-level names, relative to site-packages; and the metadata itself."""
    names = top_level(site, folder, name)
    found = [path for entry in names if "/" in entry for path in files_below(site, entry)]
    for entry in sorted(os.listdir(site)):
        if entry == folder or entry in names or (entry.partition(".")[0] in names and not entry.endswith("-info")):
            found.extend(files_below(site, entry))
    return found
