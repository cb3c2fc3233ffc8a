"""Find the engine's distribution in a site-packages folder, from files only (agent-safe)."""

from __future__ import annotations

import email.parser
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from packaging.utils import canonicalize_name

from ddtree_deploy.errors import InputError
from ddtree_deploy.release.distributions import editable_project, python_of


@dataclass(frozen=True)
class Installation:
    """``editable`` is the project folder of an editable install, whose files are not in ``site_packages``."""

    distribution: str
    version: str
    site_packages: Path
    dist_info: Path
    editable: Optional[str] = None

    @property
    def record(self) -> Path:
        return self.dist_info / "RECORD"


def find_installation(site_packages: Path, distribution: str) -> Installation:
    """The one ``distribution`` installed there; InputError ``no-engine`` or ``engine-twice``."""
    found = _installed(site_packages, distribution)
    if not found:
        raise InputError(
            "no-engine",
            f"{distribution} is not installed",
            where=str(site_packages),
            hint="give the venv or the site-packages folder that the engine was installed into from its wheel",
        )
    if len(found) > 1:
        names = ", ".join(item.dist_info.name for item in found)
        raise InputError(
            "engine-twice",
            f"{distribution} is recorded more than once: {names}",
            where=str(site_packages),
            hint="an interrupted upgrade leaves this; uninstall and install the engine again",
        )
    return found[0]


def site_packages_of(path: Path) -> Path:
    """``path`` itself where it holds distributions, else the site-packages of the venv at ``path``."""
    require_folder(path)
    if any(path.glob("*.dist-info")):
        return path
    found = sorted(path.glob("lib/python3*/site-packages"))
    if len(found) > 1:  # an upgrade of Python left one
        found = [site for site in found if site.parent.name == f"python{python_of(str(path))}"] or found
    if len(found) == 1:
        return found[0]
    what = "no site-packages folder" if not found else "more than one site-packages folder"
    raise InputError("no-venv", f"{what} below", where=str(path), hint="give a venv or a site-packages folder")


def require_folder(path: Path) -> None:
    """Raises InputError ``no-folder``."""
    if not path.is_dir():
        what = "it is a file, not a folder" if path.exists() else "no such folder"
        raise InputError("no-folder", what, where=str(path), hint="give a venv or a site-packages folder")


def _installed(site_packages: Path, distribution: str) -> List[Installation]:
    found = []
    for folder in sorted(site_packages.glob("*.dist-info")):
        if canonicalize_name(folder.name.split("-", 1)[0]) != canonicalize_name(distribution):
            continue
        metadata = folder / "METADATA"
        if not metadata.is_file():
            continue
        fields = email.parser.Parser().parsestr(metadata.read_text("utf-8-sig", "replace"), headersonly=True)
        version = fields.get("Version") or folder.name.partition("-")[2].rpartition(".")[0]
        found.append(Installation(distribution, version, site_packages, folder, _editable(folder)))
    return found


def _editable(dist_info: Path) -> Optional[str]:
    try:
        return editable_project((dist_info / "direct_url.json").read_text("utf-8"))
    except (OSError, ValueError):
        return None
