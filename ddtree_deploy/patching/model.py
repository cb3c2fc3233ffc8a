"""A patch set: ordered source patches and new files for one exact engine version. Standard library only (agent-safe).

On disk (``patches/<name>/``): ``series.yaml``, one unified diff a changed file (``0001-….patch``, paths relative to
site-packages with ``a/`` and ``b/``), and new files whole under ``files/``. ``series.load_patch_set``
(controller) reads it; the texts travel inside this object, so that the agent needs no YAML.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional


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
    source: str = ""  # in the patch set's folder: "files/sglang/srt/…"


@dataclass(frozen=True)
class PatchSet:
    name: str  # "sglang-0.5.11"
    distribution: str
    version: str
    patches: List[FilePatch] = field(default_factory=list)
    new_files: List[NewFile] = field(default_factory=list)
    digest: str = ""  # sha256 over names, hashes and order


@dataclass(frozen=True)
class HunkReport:
    """Where one hunk of ours stands in an edited file; ``line`` is the 1-based line on disk it was looked for at."""

    number: int
    status: str  # fits | moved | applied | conflict
    line: int
    diff: str = ""  # conflict: what the hunk expects against what is on disk


@dataclass(frozen=True)
class FileState:
    """One file of a patch set against an installed engine.

    ``pristine``: as released (for a new file: nothing is there); ``applied``: as the patch set makes it;
    ``missing``: a released file that is not there; ``edited``: anything else, explained by ``note`` and ``hunks``.
    """

    path: str
    kind: str  # patch | new
    state: str  # pristine | applied | missing | edited
    sha256: Optional[str] = None  # of what is on disk
    note: str = ""
    hunks: List[HunkReport] = field(default_factory=list)
    edits: str = ""  # diff from the released file to the one on disk, where the released text is known


@dataclass(frozen=True)
class PatchOutcome:
    """What ``engine.apply`` or ``engine.reverse`` did: paths relative to site-packages, in the patch set's order."""

    changed: List[str] = field(default_factory=list)
    unchanged: List[str] = field(default_factory=list)
