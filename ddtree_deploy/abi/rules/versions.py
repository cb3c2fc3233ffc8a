"""Symbol versions: what files want of the C and C++ runtime and of other libraries, against what is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional, Set, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.linker import Closure
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import severity
from ddtree_deploy.versions import version_key

# First release of common distributions with each C library (release notes of Debian, Ubuntu and RHEL).
_DISTRIBUTIONS = (
    ("2.28", "Debian 10, RHEL 8"),
    ("2.31", "Debian 11, Ubuntu 20.04"),
    ("2.34", "RHEL 9"),
    ("2.35", "Ubuntu 22.04"),
    ("2.36", "Debian 12"),
    ("2.39", "Ubuntu 24.04, RHEL 10"),
    ("2.41", "Debian 13"),
)
# GLIBC_ABI_DT_RELR says that the loader understands DT_RELR, which came with 2.36.
_MARKERS = {"GLIBC_ABI_DT_RELR": "2.36"}


@dataclass
class _Lack:
    """Versions of one library that are not there, and the files that want them."""

    versions: Set[str] = field(default_factory=set)
    files: Set[str] = field(default_factory=set)
    provider: str = ""


def check(context: Context) -> List[Finding]:
    lacks: Dict[Tuple[str, str], _Lack] = {}
    for path in context.objects:
        info = context.store.info(path)
        if info is None or info.machine != context.host.machine:
            continue
        closure = _closure(context, path)
        for library, versions in info.verneed.items():
            provider = closure.names.get(library) or context.linker.interpreter_libraries.get(library)
            for version in versions:
                if _absent(context, library, version, provider):
                    family = version.partition("_")[0]
                    lack = lacks.setdefault((library, family), _Lack())
                    lack.versions.add(version)
                    lack.files.add(path)
                    lack.provider = provider or library
    return [_finding(context, library, family, lack) for (library, family), lack in sorted(lacks.items())]


def _closure(context: Context, path: str) -> Closure:
    """The closure of a root that loads ``path``: only there is it certain which file provides a library."""
    loaders = context.loaders.get(path)
    return context.closure(loaders[0] if loaders else path)


def _absent(context: Context, library: str, version: str, provider: Optional[str]) -> bool:
    if provider is not None and (context.inside(provider) or provider != context.host.provides(library)):
        return _not_defined(context, version, provider)  # a copy of its own: in the environment, or by a search path
    family, _, number = version.partition("_")
    limits = {"GLIBC": context.host.glibc, "GLIBCXX": context.host.glibcxx}
    if family in limits:
        wanted, has = _MARKERS.get(version, number), limits[family]
        return has is not None and wanted[:1].isdigit() and version_key(wanted) > version_key(has)
    if provider is None:
        return False  # not known
    return _not_defined(context, version, provider)


def _not_defined(context: Context, version: str, provider: str) -> bool:
    """The linker only warns about a library that defines no versions at all."""
    info = context.store.info(provider)
    return info is not None and bool(info.verdef) and version not in info.verdef


def _finding(context: Context, library: str, family: str, lack: _Lack) -> Finding:
    environment = context.environment
    files = sorted(lack.files)
    packages = sorted({environment.package(path) for path in files})
    highest = max(lack.versions, key=version_key)
    inside = lack.provider.startswith("/") and lack.provider != context.host.provides(library)
    has = {"GLIBC": context.host.glibc, "GLIBCXX": context.host.glibcxx}.get(family)
    if inside:
        where = environment.short(lack.provider)
        title = f"{where} is too old for {packages[0]}"
        fix = f"reinstall the package that brings {library} ({environment.package(lack.provider)}) in a newer version"
    elif family == "GLIBC":
        title = f"the host's C library {has} is too old"
        number = _MARKERS.get(highest, highest.partition("_")[2])
        fix = (
            f"use a host with glibc {number} or later ({_since(number)}), or an older build of {packages[0].split()[0]}"
        )
    elif family == "GLIBCXX":
        title = f"the host's libstdc++ ({has}) is too old"
        fix = "apt-get install --only-upgrade libstdc++6, or use a newer distribution"
    else:
        title = f"{library} lacks symbol version {highest}"
        fix = f"install a newer {library}"
    return Finding(
        id="symbol-version-missing",
        severity=severity.of_files(context, _roots(context, files)),
        title=title,
        message=f"{environment.short(files[0])} needs {highest} of {library}"
        + (f"; the host has up to {family}_{has}" if has and not inside else f"; {lack.provider} does not define it"),
        when="import",
        cause=f"runtime:{library}",
        why=f"the linker refuses the file: version '{highest}' not found",
        fix=fix,
        files=[environment.short(path) for path in files],
        symbols=sorted(lack.versions),
        packages=packages,
    )


def _roots(context: Context, files: List[str]) -> List[str]:
    return [root for path in files for root in context.loaders.get(path) or [path]]


def _since(glibc: str) -> str:
    for version, names in _DISTRIBUTIONS:
        if version_key(version) >= version_key(glibc):
            return names
    return "none of the distributions known here"
