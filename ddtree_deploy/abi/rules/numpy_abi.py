"""Modules compiled against NumPy 1 beside NumPy 2, which refuses them.

NumPy's ``import_array`` is compiled into each module: since 2.0 it imports ``numpy._core._multiarray_umath``, before
that ``numpy.core._multiarray_umath`` only (NumPy 2.0 migration guide). The names are in the file's read-only data.
"""

from __future__ import annotations

import re
from typing import Dict, List

from packaging.version import InvalidVersion, Version

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.elf import ElfError
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import severity

_OLD = re.compile(rb"numpy\.core\._?multiarray(_umath)?\0")
_NEW = re.compile(rb"numpy\._core\._multiarray_umath\0")
_MODULE = re.compile(r"\.(cpython-[\w-]+|abi3)\.so$")
_LARGEST = 64 << 20  # bytes; larger modules (torch, triton) do not use NumPy's C interface this way


def check(context: Context) -> List[Finding]:
    numpy = context.environment.distribution("numpy")
    if numpy is None or _major(numpy.version) < 2:
        return []
    grouped: Dict[str, List[str]] = {}
    for path in context.objects:
        entry = context.store.entry(path)
        if not _MODULE.search(path) or entry is None or entry.size > _LARGEST or numpy.owns(path):
            continue
        if _for_numpy_1(context, path):
            grouped.setdefault(context.environment.package(path), []).append(path)
    return [
        Finding(
            id="numpy-abi",
            severity=severity.of_files(context, paths),
            title=f"{package} was built for NumPy 1, installed is {numpy.version}",
            message=f"{context.environment.short(paths[0])} was compiled against NumPy 1",
            when="import",
            cause=f"binary:{package}",
            why="a module that was compiled using NumPy 1.x cannot be run in NumPy 2",
            fix=f"pip install --upgrade {package.split()[0]}, or pip install 'numpy<2'",
            files=[context.environment.short(path) for path in paths],
            packages=[package, numpy.label],
        )
        for package, paths in sorted(grouped.items())
    ]


def _for_numpy_1(context: Context, path: str) -> bool:
    try:
        return context.store.cached(path, "numpy-1", lambda elf: elf.find(_OLD) is not None and elf.find(_NEW) is None)
    except (ElfError, OSError):
        return False


def _major(version: str) -> int:
    try:
        return Version(version).major
    except InvalidVersion:
        return 0
