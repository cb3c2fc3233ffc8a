"""Packages that somebody copied by hand: folders in site-packages that no metadata names. Standard library only.

Only packages that serving depends on are known here; their own files say which version they are. Agent-safe.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Set

from ddtree_deploy.abi.cuda import soname_cuda_major

NVIDIA = "nvidia"  # the name under which NVIDIA's libraries without metadata are known, all together

# Import names where they are not the distribution's own name.
_IMPORTS: Dict[str, List[str]] = {
    "torch": ["torch", "torchgen", "functorch"],
    "pytorch-triton": ["triton"],
    "triton-nightly": ["triton"],
    "sglang-kernel": ["sgl_kernel"],
    "flashinfer-python": ["flashinfer"],
    "flash-attn-3": ["flash_attn_interface", "flash_attn_3"],
    "opencv-python": ["cv2"],
    "opencv-python-headless": ["cv2"],
    "pyyaml": ["yaml"],
    "pillow": ["PIL"],
}

# Distribution -> the file, below its first import name, that assigns __version__.
_VERSION_FILES = {
    "torch": "version.py",
    "triton": "__init__.py",
    "torchvision": "version.py",
    "torchaudio": "version.py",
    "sgl-kernel": "version.py",
    "flashinfer-python": "_build_meta.py",
    "flashinfer-cubin": "_build_meta.py",
}
_RENAMED = {"sgl-kernel": ("sglang-kernel", (0, 4))}  # the name since which version
_TOOLKIT_FOLDER = re.compile(r"cu1[1-9]\Z")
_ASSIGNED = re.compile(r"^__version__\s*(?::[^=\n]*)?=\s*['\"]([^'\"]+)['\"]", re.M)


@dataclass(frozen=True)
class Bare:
    """``entries``: its folders, relative to site-packages (``torch``, ``nvidia/cudnn``). The version of NVIDIA's
    libraries is their CUDA major, 0 where that cannot be told."""

    name: str  # normalized
    version: str
    entries: List[str] = field(default_factory=list)


def import_entries(name: str, site: str) -> List[str]:
    """Where a distribution without RECORD has its files: entries of ``site``, such as ``sgl_kernel`` or
    ``nvidia/cudnn``, whether they exist or not."""
    if name.startswith("nvidia-"):
        stem = re.sub(r"-cu\d+\Z", "", name)[len("nvidia-") :].replace("-", "_")
        own = f"{NVIDIA}/{stem}"
        if os.path.isdir(os.path.join(site, own)):
            return [own]
        return [f"{NVIDIA}/{entry}" for entry in _list(os.path.join(site, NVIDIA)) if _TOOLKIT_FOLDER.match(entry)]
    return _IMPORTS.get(name, [name.replace("-", "_")])


def claim(path: str) -> str:
    """The entry of site-packages that a file's owner thereby claims: ``torch/version.py`` -> ``torch``, and one level
    deeper below ``nvidia``, which many packages share."""
    first, _, rest = path.partition("/")
    if first != NVIDIA:
        return first
    return f"{first}/{rest.partition('/')[0]}"


def find_bare(site: str, claimed: Set[str]) -> List[Bare]:
    """Known packages in ``site`` of which no entry is in ``claimed`` (see :func:`claim`), by name."""
    found = []
    for name, file in _VERSION_FILES.items():
        first, *others = import_entries(name, site)
        if first in claimed or os.path.islink(os.path.join(site, first)):
            continue
        version = _version(os.path.join(site, first, file))
        if version is not None:
            further = [entry for entry in others if entry not in claimed and os.path.isdir(os.path.join(site, entry))]
            found.append(Bare(_name(name, version), version, [first, *further]))
    libraries = _nvidia(site, claimed)
    return sorted([*found, *([libraries] if libraries else [])], key=lambda bare: bare.name)


def own_version(site: str, name: str) -> Optional[str]:
    """The version that the files of distribution ``name`` give themselves; None where that is not known."""
    known = next((old for old, (new, _) in _RENAMED.items() if new == name), name)
    if known not in _VERSION_FILES:
        return None
    return _version(os.path.join(site, import_entries(name, site)[0], _VERSION_FILES[known]))


def files_below(site: str, entry: str) -> Iterator[str]:
    """Files and links below an entry of ``site``, relative to it and sorted; byte code is left out."""
    path = os.path.join(site, entry)
    if os.path.islink(path) or not os.path.isdir(path):
        yield entry
        return
    for name in _list(path):
        if name != "__pycache__":
            yield from files_below(site, f"{entry}/{name}")


def _nvidia(site: str, claimed: Set[str]) -> Optional[Bare]:
    entries = []
    majors: Set[int] = set()
    for name in _list(os.path.join(site, NVIDIA)):
        entry = f"{NVIDIA}/{name}"
        if entry in claimed or name.startswith("__") or not os.path.isdir(os.path.join(site, entry)):
            continue
        libraries = [os.path.basename(path) for path in files_below(site, entry) if ".so" in path]
        if libraries:
            entries.append(entry)
            majors |= {major for major in map(soname_cuda_major, libraries) if major is not None}
            majors |= {int(name[2:])} if _TOOLKIT_FOLDER.match(name) else set()
    if not entries:
        return None
    return Bare(NVIDIA, str(majors.pop()) if len(majors) == 1 else "0", entries)


def _name(name: str, version: str) -> str:
    renamed = _RENAMED.get(name)
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return renamed[0] if renamed and numbers >= renamed[1] else name


def _version(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            match = _ASSIGNED.search(stream.read(1 << 16))
    except OSError:
        return None
    return match.group(1) if match else None


def _list(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
