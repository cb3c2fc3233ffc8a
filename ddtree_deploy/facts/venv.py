"""What a base venv is: read from its files; its Python is run once, to see that it can. Agent-safe."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from ddtree_deploy.agent.protocol import Progress, ProgressSink, silent
from ddtree_deploy.facts.command import run
from ddtree_deploy.facts.files import exists, is_dir, read_bytes, read_text
from ddtree_deploy.facts.model import Venv
from ddtree_deploy.facts.packages import Distribution, read_distributions
from ddtree_deploy.release.own import LARGE

_PYTHON_TIMEOUT = 20.0
_PASSING = (".pyc", ".pyo", ".log", ".lock", ".pid", ".tmp")
_ASK_PYTHON = "import sys;print('%d.%d.%d' % sys.version_info[:3]);print(sys.base_prefix)"


@dataclass(frozen=True)
class ScannedVenv:
    """The venv's facts, and the distributions that they were made from."""

    venv: Venv
    distributions: List[Distribution]


def probe_venv(path: str, progress: ProgressSink = silent) -> Venv:
    """The environment at ``path`` (``~`` allowed). Never fails: what is wrong is in ``problem``."""
    return scan_venv(path, progress).venv


def scan_venv(path: str, progress: ProgressSink = silent) -> ScannedVenv:
    """As :func:`probe_venv`."""
    folder = Path(os.path.normpath(Path(path).expanduser()))
    if not is_dir(folder):
        problem = "it is not a folder" if exists(folder) else "there is no such folder"
        if os.path.lexists(folder) and not exists(folder):
            problem = f"it is a link to {folder.readlink()}, which does not exist"
        return ScannedVenv(Venv(str(folder), exists(folder), problem=problem), [])
    if not _readable(folder):
        return ScannedVenv(Venv(str(folder), True, problem="it cannot be read by the user that connects"), [])
    config = _read_config(folder / "pyvenv.cfg")
    python, base_prefix, python_problem = _ask_python(folder)
    site = _site_packages(folder, python)
    distributions = read_distributions(site) if site and _readable(site) else []
    tree = _walk(folder, progress)
    venv = Venv(
        path=str(folder),
        exists=True,
        python=python,
        prefix=str(folder),
        base_prefix=base_prefix,
        home=(config or {}).get("home"),
        site_packages=str(site) if site else None,
        packages=[distribution.package for distribution in distributions],
        fingerprint=_fingerprint(folder, python, site, distributions, tree.digest),
        files=tree.files,
        bytes=tree.bytes,
        small_bytes=tree.small,
        system_site_packages=(config or {}).get("include-system-site-packages", "").lower() == "true",
        problem=_kind_problem(folder, config) or python_problem or _site_problem(folder, site, python),
    )
    return ScannedVenv(venv, distributions)


def _kind_problem(folder: Path, config: Optional[Dict[str, str]]) -> Optional[str]:
    if is_dir(folder / "conda-meta"):
        return (
            "it is a conda environment, whose files are bound to their folder: make a venv with its Python "
            "(bin/python -m venv FOLDER) and install the packages into that"
        )
    if config is None:
        return "it has no pyvenv.cfg, so it is not a venv"
    return None


def _site_problem(folder: Path, site: Optional[Path], python: Optional[str]) -> Optional[str]:
    if site is not None:
        return None if _readable(site) else "its packages cannot be read by the user that connects"
    others = sorted(path.parent.name for path in folder.glob("lib/python3*/site-packages"))
    if others and python:
        return f"its packages are for {', '.join(others)}, but its Python is now {python}"
    return "it has no site-packages folder"


def _read_config(path: Path) -> Optional[Dict[str, str]]:
    if not exists(path):
        return None
    pairs = (line.partition("=") for line in read_text(path).splitlines() if "=" in line)
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _ask_python(folder: Path) -> Tuple[Optional[str], Optional[str], Optional[str]]:
    """(version, base prefix, problem)."""
    python = folder / "bin" / "python"
    if not os.path.lexists(python):
        python = folder / "bin" / "python3"
    if not os.path.lexists(python):
        return None, None, "it has no bin/python"
    if not exists(python):
        target = os.path.realpath(python)
        return None, None, f"its bin/{python.name} leads to {target}, which does not exist: was that Python removed?"
    output = run([str(python), "-I", "-S", "-c", _ASK_PYTHON], _PYTHON_TIMEOUT)
    lines = output.stdout.splitlines()
    if not output.ok or len(lines) != 2 or not re.match(r"\d+\.\d+\.\d+\Z", lines[0]):
        return None, None, f"its bin/{python.name} does not run: {output.problem or 'unexpected output'}"
    return lines[0], lines[1], None


def _readable(folder: Path) -> bool:
    return os.access(folder, os.R_OK | os.X_OK)


def _site_packages(folder: Path, python: Optional[str]) -> Optional[Path]:
    if python:
        site = folder / "lib" / f"python{'.'.join(python.split('.')[:2])}" / "site-packages"
        return site if is_dir(site) else None
    found = sorted(folder.glob("lib/python3*/site-packages"))
    return found[0] if len(found) == 1 else None


def _fingerprint(
    folder: Path, python: Optional[str], site: Optional[Path], distributions: List[Distribution], files: str
) -> str:
    """sha256 over what makes the environment: Python, configuration, each package with its RECORD and the files of it
    that are gone, .pth files, and ``files``, the tree's digest. No times and no inodes: a copy has the same."""
    digest = hashlib.sha256()

    def add(*parts: str) -> None:
        digest.update("\0".join(parts).encode("utf-8", "surrogateescape") + b"\n")

    add("python", python or "")
    add("pyvenv.cfg", _sha256(folder / "pyvenv.cfg"))
    for distribution in distributions:
        add("package", distribution.package.name, distribution.package.version, distribution.digest)
    for path in sorted(site.glob("*.pth")) if site else []:
        add("pth", path.name, _sha256(path))
    add("files", files)
    return digest.hexdigest()


def _sha256(path: Path) -> str:
    return hashlib.sha256(read_bytes(path) or b"").hexdigest()


@dataclass
class _Tree:
    """What is below a folder. ``small``: bytes in files up to ``LARGE``; ``digest``: over path and size of each file,
    and path and target of each link, that makes the environment (see :func:`_counts`)."""

    files: int = 0
    bytes: int = 0
    small: int = 0
    digest: str = ""


def _walk(folder: Path, progress: ProgressSink) -> _Tree:
    """Links are not followed, and what cannot be read is left out."""
    tree, digest = _Tree(), hashlib.sha256()
    folders = [("", True)]
    while folders:
        relative, counts = folders.pop()
        found: List[Tuple[str, bool]] = []
        for entry in _entries(folder / relative):
            path = f"{relative}/{entry.name}" if relative else entry.name
            counted = counts and _counts(entry.name)
            try:
                if entry.is_dir(follow_symlinks=False):
                    found.append((path, counted))
                    continue
                size = entry.stat(follow_symlinks=False).st_size
                what = str(Path(entry.path).readlink()) if entry.is_symlink() else str(size)
            except OSError:  # gone meanwhile
                continue
            tree.files += 1
            tree.bytes += size
            tree.small += size if size <= LARGE else 0
            if counted and (entry.is_symlink() or entry.is_file(follow_symlinks=False)):
                digest.update(f"{path}\0{what}\n".encode("utf-8", "surrogateescape"))
        folders += reversed(found)  # so that the order is always the same
        progress(Progress("facts", "counting files", done_bytes=tree.bytes, done_files=tree.files))
    tree.digest = digest.hexdigest()
    return tree


def _entries(folder: Path) -> List[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return []


def _counts(name: str) -> bool:
    """Not what comes and goes while an environment is only used: byte code, logs, locks, hidden files and folders
    (caches, ``.nfs...``, what version control keeps)."""
    return not name.startswith(".") and name != "__pycache__" and not name.endswith(_PASSING)
