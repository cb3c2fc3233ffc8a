"""What a service finds on this host to compile kernels with. Standard library only (agent-safe).

When a service starts for the first time, SGLang compiles CUDA kernels of its own (activation, norm, rope, KV cache)
with nvcc, which calls gcc, and links them with a C++ compiler to libcudart.so; Triton compiles its launcher with a C
compiler and Python's header. Where one is missing, the service ends.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Optional

from ddtree_deploy.facts.files import exists
from ddtree_deploy.facts.model import Compilers, Venv
from ddtree_deploy.serve.environment import SYSTEM_PATH
from ddtree_deploy.verify import probe


def find_compilers(base: Optional[Venv]) -> Compilers:
    """As a service finds them that the inventory gives no CUDA_HOME, CC or CXX."""
    environment = {"PATH": SYSTEM_PATH}
    nvcc = probe.find_nvcc(environment)
    linked = probe.links_cuda(environment) if nvcc else None
    return Compilers(_which("gcc") or _which("clang"), _which("c++"), nvcc, linked, _has_header(base))


def _which(name: str) -> Optional[str]:
    return shutil.which(name, path=SYSTEM_PATH)


def _has_header(base: Optional[Venv]) -> Optional[bool]:
    """Whether the Python that the base venv was made from, as the release's will be, has its C header."""
    if base is None or not base.python or not base.base_prefix:
        return None
    minor = ".".join(base.python.split(".")[:2])
    return exists(Path(base.base_prefix, "include", f"python{minor}", "Python.h"))
