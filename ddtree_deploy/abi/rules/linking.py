"""Libraries that are not there and symbols that nobody defines: what the dynamic linker would refuse."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field
from typing import Dict, FrozenSet, List, Optional, Set, Tuple

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.cuda import DRIVER_LIBRARIES, soname_cuda_major, tag_major
from ddtree_deploy.abi.demangle import demangle, uses_old_string
from ddtree_deploy.abi.linker import TORCH_LIBRARIES
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import builds, debian, severity, variants

_TORCH_ENTITY = re.compile(
    rb"^(_Z(N|NK|TI|TV|TS|TIN|TVN|TSN|GVN|ZN)(3c10|2at|5torch|6caffe2)|_Z\d+THP|aoti_torch_|THP)"
)
_PYTHON = re.compile(rb"^_?Py[A-Z_]")
_SHOWN = 20


@dataclass
class Broken:
    """Why one root cannot be loaded."""

    missing: Dict[str, str] = field(default_factory=dict)  # library -> who wants it
    symbols: Dict[str, FrozenSet[bytes]] = field(default_factory=dict)  # object -> undefined


def broken_roots(context: Context) -> Dict[str, Broken]:
    """Every root that the linker would refuse, and why; the driver's libraries are not looked at here."""
    result: Dict[str, Broken] = {}
    for root in context.roots:
        info = context.store.info(root)
        if info is None or info.machine != context.host.machine:
            continue  # told by another rule
        closure = context.closure(root)
        broken = Broken()
        for missing in closure.missing:
            if missing.name not in DRIVER_LIBRARIES:
                broken.missing[missing.name] = missing.by
        blind = bool(closure.missing) or any(context.store.info(path) is None for path in closure.paths)
        for path in closure.paths:
            if not context.inside(path):
                continue
            symbols = context.unresolved(path, root)
            if blind:  # what the missing library would define is not known; torch's own names are
                symbols = frozenset(name for name in symbols if _torch_is_whole(context, closure.names, name))
            symbols = frozenset(name for name in symbols if not _in_torch(context, root, name))
            if context.environment.interpreter is None:
                symbols = frozenset(name for name in symbols if not _PYTHON.match(name))
            if symbols:
                broken.symbols[path] = symbols
        if broken.missing or broken.symbols:
            result[root] = broken
    return result


def _in_torch(context: Context, root: str, symbol: bytes) -> bool:
    """Torch's names that an object wants without naming torch's libraries: its package loads them for everybody."""
    if not _TORCH_ENTITY.match(symbol) or context.linker.uses_torch(root):
        return False
    return any(symbol in context.store.defined(path) for path in context.linker.torch_loaded().values())


def _torch_is_whole(context: Context, names: Dict[str, str], symbol: bytes) -> bool:
    return bool(context.linker.torch_loaded()) and bool(_TORCH_ENTITY.match(symbol)) and "libtorch_cpu.so" in names


def check(context: Context) -> List[Finding]:
    broken = broken_roots(context)
    spare = variants.spare(list(broken), context.objects, context.usage.named)
    broken = {root: why for root, why in broken.items() if root not in spare}
    return _libraries(context, broken) + _symbols(context, broken)


# libraries --------------------------------------------------------------------------------------------------------


def _libraries(context: Context, broken: Dict[str, Broken]) -> List[Finding]:
    """One finding for each cause: a library that several packages miss, or the plugins of one package."""
    grouped: Dict[Tuple[str, str], Tuple[Set[str], List[str], Set[str]]] = {}
    for root, why in sorted(broken.items()):
        for name, by in why.missing.items():
            if _loaded_by_package(context, name, by):
                continue
            cause = _library_cause(context, name, root)
            level = "plugin" if context.usage.level(root) == "plugin" else "import"
            names, roots, wanting = grouped.setdefault((cause, level), (set(), [], set()))
            names.add(name)
            roots.append(root)
            wanting.add(by)
    return [
        _missing(context, cause, sorted(names), sorted(set(roots)), sorted(wanting))
        for (cause, _), (names, roots, wanting) in sorted(grouped.items())
    ]


def _loaded_by_package(context: Context, name: str, by: str) -> bool:
    """Whether the library lies beside and the package's Python code loads it by name before (torchcodec does)."""
    elsewhere = [path for path in context.linker.by_soname.get(name, []) if context.inside(path)]
    stem = re.sub(r"\d*\.so.*$", "", name)
    return bool(elsewhere) and context.usage.mentions(by, stem)


def _library_cause(context: Context, name: str, root: str) -> str:
    package = context.environment.package(root)
    major, ours = soname_cuda_major(name), tag_major(context.environment.abi_tag)
    if major and ours and major != ours:
        return f"binary:{package}"
    if context.usage.level(root) == "plugin":
        return f"plugins:{package}"
    if context.environment.abi_tag == "cpu" and (major or name in TORCH_LIBRARIES):
        return f"cpu-torch:{package}"
    if debian.wheel_for(name, ours):
        return "library:cuda"
    return "library:ffmpeg" if debian.package_for(name) == "ffmpeg" else f"library:{name}"


def _missing(context: Context, cause: str, names: List[str], roots: List[str], by: List[str]) -> Finding:
    environment = context.environment
    packages = sorted({environment.package(root) for root in roots})
    first = environment.short(by[0])
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    majors = {soname_cuda_major(name) for name in names}
    common = {
        "severity": severity.of_files(context, roots),
        "when": "import",
        "cause": cause,
        "files": [environment.short(root) for root in roots],
        "symbols": names,
        "packages": packages,
    }
    if cause.startswith("binary:"):
        major = next(major for major in majors if major)
        return Finding(
            id="cuda-major-mismatch",
            title=f"{packages[0]} was built for CUDA {major}, torch here is for {environment.abi_tag}",
            message=f"{first} needs {names[0]}{others}; torch {environment.torch_version} does not bring it",
            why="the linker finds no such library: loading ends with 'cannot open shared object file'",
            fix=builds.command(context, packages[0]),
            **common,  # type: ignore[arg-type]
        )
    if environment.abi_tag == "cpu" and any(name in TORCH_LIBRARIES for name in names):
        return Finding(
            id="abi-tag-mismatch",
            title=f"{packages[0]} is a CUDA build, torch here is for the CPU only",
            message=f"{first} needs {names[0]}{others}, which torch {environment.torch_version} does not have",
            why="loading the file ends with 'cannot open shared object file'",
            fix=f"install torch with CUDA, or the CPU build of {packages[0].split()[0]}",
            **common,  # type: ignore[arg-type]
        )
    elsewhere = [path for path in context.linker.by_soname.get(names[0], []) if context.inside(path)]
    if elsewhere:
        where = environment.short(posixpath.dirname(elsewhere[0]))
        message = f"{first} needs {names[0]}{others}, which lies in {where}, where the linker does not look"
        fix = f"export LD_LIBRARY_PATH={posixpath.dirname(elsewhere[0])}"
    else:
        message = f"{first} needs {names[0]}{others}; neither the environment nor the host has it"
        fix = _library_fix(context, names, packages)
    return Finding(
        id="missing-library",
        title=f"{names[0]}{others} missing",
        message=message,
        why="loading the file ends with 'cannot open shared object file: No such file or directory'",
        fix=fix,
        **common,  # type: ignore[arg-type]
    )


def _library_fix(context: Context, names: List[str], packages: List[str]) -> str:
    major = tag_major(context.environment.abi_tag)
    wheels = sorted({wheel for wheel in (debian.wheel_for(name, major) for name in names) if wheel})
    if wheels:
        return "pip install " + " ".join(wheels)
    found = sorted({package for package in (debian.package_for(name) for name in names) if package})
    if found:
        return "apt-get install " + " ".join(found)
    return f"reinstall {packages[0].split()[0]}, or install what provides {names[0]} (apt-file search {names[0]})"


# symbols ----------------------------------------------------------------------------------------------------------


def _symbols(context: Context, broken: Dict[str, Broken]) -> List[Finding]:
    grouped: Dict[Tuple[str, str], Tuple[Set[str], Set[bytes], Set[str]]] = {}
    for root, why in broken.items():
        for path, symbols in why.symbols.items():
            for kind, names in _families(context, symbols).items():
                key = (kind, context.environment.package(path))
                files, all_names, roots = grouped.setdefault(key, (set(), set(), set()))
                files.add(path)
                all_names |= names
                roots.add(root)
    return [
        _undefined(context, kind, package, sorted(files), sorted(names), sorted(roots))
        for (kind, package), (files, names, roots) in sorted(grouped.items())
    ]


def _families(context: Context, symbols: FrozenSet[bytes]) -> Dict[str, Set[bytes]]:
    families: Dict[str, Set[bytes]] = {}
    torch = bool(context.linker.torch_loaded())
    for name in symbols:
        if _PYTHON.match(name):
            kind = "undefined-python-symbol"
        elif torch and _TORCH_ENTITY.match(name):
            kind = "undefined-torch-symbol"
        else:
            kind = "undefined-symbol"
        families.setdefault(kind, set()).add(name)
    torch_names = families.get("undefined-torch-symbol", set())
    if any(
        uses_old_string(name.decode("latin-1")) for name in torch_names
    ):  # the other names of such a file are missing for the same reason
        families["old-cxx-abi"] = families.pop("undefined-torch-symbol")
    return families


def _undefined(
    context: Context, kind: str, package: str, files: List[str], names: List[bytes], roots: List[str]
) -> Finding:
    environment = context.environment
    shown = [demangle(name.decode("utf-8", "replace")) for name in names[:_SHOWN]]
    first = environment.short(files[0])
    torch = f"torch {environment.torch_version}"
    name = package.split()[0]
    title, why, fix = {
        "undefined-torch-symbol": (
            f"{package} was built for another torch",
            f"{torch} does not define these names; the file was compiled against a torch that does",
            builds.command(context, package),
        ),
        "old-cxx-abi": (
            f"{package} was built with the old C++ string ABI",
            f"it wants std::string in its old form (Ss); {torch} is built with the new one (std::__cxx11)",
            builds.command(context, package),
        ),
        "undefined-python-symbol": (
            f"{package} was built for another Python",
            f"Python {environment.python_text} does not export these names",
            f"install {name} for Python {environment.python_text}",
        ),
        "undefined-symbol": (
            f"{package} misses symbols of its own or of a library",
            "no file that is loaded with it defines these names",
            f"reinstall {name}; if the names are its own, this build left them out",
        ),
    }[kind]
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return Finding(
        id=kind,
        severity=severity.of_files(context, roots),
        title=title,
        message=f"{first}: undefined symbol {shown[0]}{more}",
        when="import",
        cause=f"binary:{package}",
        why=why,
        fix=fix,
        files=[environment.short(path) for path in files],
        symbols=shown,
        packages=_packages(context, package, kind),
    )


def _packages(context: Context, package: str, kind: str) -> List[str]:
    torch: Optional[str] = context.environment.torch_version
    return [package, f"torch {torch}"] if torch and kind in ("undefined-torch-symbol", "old-cxx-abi") else [package]
