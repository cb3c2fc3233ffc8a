"""A patch set: ordered source patches and new files for one exact engine version. Standard library only (agent-safe).

On disk (``patches/<name>/``): ``series.yaml``, one unified diff a changed file (``0001-….patch``, paths relative to
site-packages with ``a/`` and ``b/``), and new files whole under ``files/``. ``series.load_patch_set`` (controller) reads it;
the texts travel inside this object, so that the agent needs no YAML.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List


@dataclass(frozen=True)
class FilePatch:
    """One changed file: ``path`` relative to site-packages, ``diff`` the unified diff's text."""

    path: str
    diff: str
    sha256_before: str
    sha256_after: str
    name: str = ""  # "0001-spec_info.patch"


@dataclass(frozen=True)
class NewFile:
    path: str
    content: str
    sha256: str


@dataclass(frozen=True)
class PatchSet:
    name: str  # "sglang-0.5.11"
    distribution: str
    version: str
    patches: List[FilePatch] = field(default_factory=list)
    new_files: List[NewFile] = field(default_factory=list)
    digest: str = ""  # sha256 over names, hashes and order
