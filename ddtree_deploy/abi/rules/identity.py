"""What a distribution says of itself: folder name against METADATA, tags against this Python, two of one name."""

from __future__ import annotations

import re
from typing import Dict, List, Optional

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.metadata import Distribution
from ddtree_deploy.abi.model import Finding

_EXTENSION = re.compile(r"\.(?:cpython-(\d)(\d+)[a-z]*)(?:-[\w-]+)?\.so$")
_PLATFORM = re.compile(r"^(?:manylinux|musllinux|linux|macosx|win)[^.]*")
_MACHINES = ("x86_64", "aarch64", "i686", "armv7l", "ppc64le", "s390x", "riscv64", "arm64", "amd64", "win32")


def check(context: Context) -> List[Finding]:
    findings: List[Finding] = []
    names: Dict[str, List[Distribution]] = {}
    for dist in context.environment.distributions:
        names.setdefault(f"{dist.site}:{dist.name}", []).append(dist)
        findings += _folder(dist) + _tags(context, dist) + _python(context, dist)
    for same in names.values():
        egg = any(dist.folder.endswith(".egg-info") for dist in same)
        if len(same) > 1 and not (egg and len({dist.version for dist in same}) == 1):  # Debian ships both forms
            findings.append(_twice(same))
    return findings + _torch(context) + _extensions(context)


def _folder(dist: Distribution) -> List[Finding]:
    said = []
    if dist.metadata_name is None or dist.metadata_version is None:
        if dist.folder.endswith(".dist-info"):
            said.append("its METADATA is missing or has no Name and Version")
    else:
        if canonicalize_name(dist.metadata_name) != canonicalize_name(dist.folder_name):
            said.append(f"METADATA says Name: {dist.metadata_name}")
        if not _same_version(dist.metadata_version, dist.folder_version):
            said.append(f"METADATA says Version: {dist.metadata_version}")
    if not said:
        return []
    folder = dist.folder.rpartition("/")[2]
    return [
        Finding(
            id="metadata-mismatch",
            severity="error",
            title=f"{folder} contradicts itself",
            message=f"the folder is called {folder}, but {' and '.join(said)}",
            when="install",
            cause=f"metadata:{dist.name}",
            why="two installs were mixed or a file was edited: tools that trust either one disagree",
            fix=f"pip install --force-reinstall --no-deps {dist.name}",
            files=[folder],
            packages=[dist.label],
        )
    ]


def _same_version(first: str, second: str) -> bool:
    try:
        return Version(first) == Version(second.replace("_", "-"))
    except InvalidVersion:
        return first.replace("-", "_") == second.replace("-", "_")


def _twice(same: List[Distribution]) -> Finding:
    versions = sorted({dist.version for dist in same})
    native = any(path.endswith(".so") or ".so." in path for dist in same for path in dist.record or {})
    return Finding(
        id="duplicate-distribution",
        severity="error" if native and len(versions) > 1 else "warning",
        title=f"{same[0].name} is installed {len(same)} times",
        message=f"{same[0].name} has {len(same)} metadata folders: "
        + ", ".join(dist.folder.rpartition("/")[2] for dist in same),
        when="install",
        cause=f"metadata:{same[0].name}",
        why="an install was interrupted or copied over another; which version is reported is chance",
        fix=f"pip uninstall -y {same[0].name} until it is gone, then pip install {same[0].name}=={versions[-1]}",
        files=[dist.folder.rpartition("/")[2] for dist in same],
        packages=[dist.label for dist in same],
    )


def _python(context: Context, dist: Distribution) -> List[Finding]:
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    python = context.environment.python_text
    if not dist.requires_python or python is None:
        return []
    try:
        # Only major and minor are known for certain: 3.11.99 satisfies every lower bound within 3.11.
        fits = any(SpecifierSet(dist.requires_python).contains(f"{python}.{micro}") for micro in (0, 99))
    except InvalidSpecifier:
        return []
    if fits:
        return []
    return [_unfit(dist, f"Requires-Python: {dist.requires_python}", f"Python {python}", "import")]


def _tags(context: Context, dist: Distribution) -> List[Finding]:
    if not dist.tags:
        return []
    problems = [_tag_problem(context, tag) for tag in dist.tags]
    if any(problem is None for problem in problems):
        return []
    return [_unfit(dist, f"WHEEL says Tag: {dist.tags[0]}", problems[0] or "", "import")]


def _unfit(dist: Distribution, claim: str, here: str, when: str) -> Finding:
    return Finding(
        id="wheel-tag",
        severity="error",
        title=f"{dist.label} is a wheel for another Python or platform",
        message=f"{claim}; here is {here}",
        when=when,
        cause=f"tag:{dist.label}",
        why="its modules are named and compiled for that one; the import system cannot load them",
        fix=f"pip install --force-reinstall --no-deps {dist.name}=={dist.version} with this environment's Python",
        files=[dist.folder.rpartition("/")[2]],
        packages=[dist.label],
    )


def _tag_problem(context: Context, tag: str) -> Optional[str]:
    """What this environment is, where a tag does not fit it; None where it does (PEP 425)."""
    parts = tag.split("-")
    if len(parts) != 3:
        return None
    python, machine = context.environment.python, context.host.machine
    problems = []
    if python is not None:
        fits = [
            _python_fits(interpreter, abi, python) for interpreter in parts[0].split(".") for abi in parts[1].split(".")
        ]
        if not any(fits):
            problems.append(f"Python {python[0]}.{python[1]}")
    if not any(_platform_fits(platform, machine) for platform in parts[2].split(".")):
        problems.append(f"{machine} Linux with glibc")
    return " on ".join(problems) or None


def _python_fits(interpreter: str, abi: str, python: tuple[int, int]) -> bool:
    match = re.match(r"(py|cp)(\d)(\d*)$", interpreter)
    if match is None:
        return False  # another implementation
    major, minor = int(match.group(2)), int(match.group(3) or 0)
    if abi.startswith("cp") and abi.endswith("t"):
        return False  # for the free-threaded build, which has its own lib/python3.13t
    if match.group(1) == "py" or abi in ("abi3", "none"):
        return major == python[0] and minor <= python[1]
    return (major, minor) == python


def _platform_fits(platform: str, machine: str) -> bool:
    if platform == "any":
        return True
    if not _PLATFORM.match(platform) or platform.startswith(("musllinux", "macosx", "win")):
        return False
    named = next((name for name in _MACHINES if platform.endswith("_" + name)), None)
    return named is None or named == machine


def _torch(context: Context) -> List[Finding]:
    """torch/version.py is what the engine sees, METADATA is what the installers see."""
    environment = context.environment
    dist = environment.distribution("torch")
    if dist is None or environment.torch_version is None:
        return []
    public = environment.torch_version.split("+")[0]
    if _same_version(public, dist.version.split("+")[0]):
        return []
    return [
        Finding(
            id="metadata-mismatch",
            severity="error",
            title="torch is a mix of two versions",
            message=f"torch/version.py says {environment.torch_version}, METADATA says {dist.version}",
            when="import",
            cause="metadata:torch",
            why="one torch was copied or installed over another: every version check is answered for the wrong one",
            fix=f"pip install --force-reinstall torch=={dist.version}",
            files=[environment.short(f"{environment.torch_site}/torch/version.py")],
            packages=[dist.label],
        )
    ]


def _extensions(context: Context) -> List[Finding]:
    """Extension modules named for another Python, of packages that otherwise fit this one."""
    environment = context.environment
    if environment.python is None:
        return []
    unfit: Dict[str, List[str]] = {}
    for path in context.objects:
        match = _EXTENSION.search(path)
        if match and (int(match.group(1)), int(match.group(2))) != environment.python:
            unfit.setdefault(environment.package(path), []).append(path)
    return [finding for package, paths in sorted(unfit.items()) for finding in _extension(context, package, paths)]


def _extension(context: Context, package: str, paths: List[str]) -> List[Finding]:
    environment = context.environment
    present = {
        re.sub(r"\.(cpython-[\w-]+|abi3)\.so$", "", p)
        for p in context.objects
        if not _other_python(p, environment.python)
    }
    alone = [path for path in paths if _EXTENSION.sub("", path) not in present]
    if not alone:
        return []  # builds for several Pythons side by side
    dist = environment.owner(alone[0])
    if dist is not None and dist.tags and all(_tag_problem(context, tag) for tag in dist.tags):
        return []  # told by the tags
    levels = {path: context.usage.level(path) for path in alone}
    named = [
        path for path in alone if levels[path] == "import" or (levels[path] == "lazy" and context.usage.named(path))
    ]
    where = environment.short(sorted(named or alone)[0])
    level = "error" if any(levels[path] == "import" for path in alone) else "warning" if named else "note"
    return [
        Finding(
            id="extension-python",
            severity=level,
            title=f"{package} has modules for another Python",
            message=f"{where} is named for another Python than {environment.python_text}, which will not find it",
            when="import",
            cause=f"tag:{package}",
            why="the import system only looks for its own suffix, abi3 and plain .so (PEP 3149)",
            fix=f"pip install --force-reinstall --no-deps {package.split()[0]} with Python {environment.python_text}",
            files=[environment.short(path) for path in sorted(alone)],
            packages=[package],
        )
    ]


def _other_python(path: str, python: Optional[tuple[int, int]]) -> bool:
    match = _EXTENSION.search(path)
    return bool(match) and (int(match.group(1)), int(match.group(2))) != python  # type: ignore[union-attr]
