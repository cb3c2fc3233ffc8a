"""What a distribution's shared objects need of torch and of CUDA, from their dynamic sections. Agent-safe.

Reading the 500 shared objects of an SGLang environment takes a fifth of a second.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Iterable, List, Set

from ddtree_deploy.abi.cuda import soname_cuda_major
from ddtree_deploy.abi.elf import ElfError, ElfFile

TORCH = "torch"
_TORCH_LIBRARY = re.compile(r"lib(torch(_\w+)?|c10(_\w+)?|shm)\.so\Z")
# Extensions that are not linked to torch's libraries, since importing torch has loaded them, still want their symbols.
_TORCH_SYMBOL = re.compile(rb"_ZNK?(3c10|2at|5torch)|aoti_torch_|THPVariable")


def links(site: Path, objects: Iterable[str]) -> List[str]:
    """``torch``, ``cuda12`` ...: what is needed from outside by ``objects``, a distribution's shared objects (paths
    relative to ``site``). Libraries that the distribution itself brings do not count."""
    paths = list(objects)
    own = {posixpath.basename(path) for path in paths}
    found: Set[str] = set()
    for path in paths:
        try:
            with ElfFile(str(site / path)) as elf:
                needed = elf.info().needed
                found.update(_of_libraries(library for library in needed if library not in own))
                if TORCH not in found and any(_TORCH_SYMBOL.match(symbol) for symbol in elf.undefined()):
                    found.add(TORCH)
        except (OSError, ElfError):
            continue
    return sorted(found)


def _of_libraries(names: Iterable[str]) -> Set[str]:
    found: Set[str] = set()
    for name in names:
        major = soname_cuda_major(name)
        if major is not None:
            found.add(f"cuda{major}")
        if _TORCH_LIBRARY.match(name):
            found.add(TORCH)
    return found
