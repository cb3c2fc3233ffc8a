"""What an installed engine has, read from its files. Standard library only (agent-safe)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Optional

from ddtree_deploy.patching.model import FileState


@dataclass(frozen=True)
class Evidence:
    """A line of the engine's source; ``path`` is relative to its site-packages (or project) folder."""

    path: str
    line: int
    text: str


@dataclass(frozen=True)
class Algorithm:
    """A speculative algorithm; ``predicates`` are the ``is_…()`` methods that hold for it."""

    name: str
    evidence: Evidence
    predicates: List[str] = field(default_factory=list)
    registered: bool = False  # by a decorator, not a member of the enumeration


@dataclass(frozen=True)
class Backend:
    """Whether an attention backend takes a tree mask in TARGET_VERIFY: ``yes``, ``only if topk > 1``, ``no``,
    ``as wrapped``, ``unknown``. ``eager`` and ``graph``: whether the mask is read there; None where it is not read."""

    name: str  # as --attention-backend takes it; the class's name for wrappers
    class_name: str
    verdict: str
    reason: str
    eager: Optional[bool] = None
    graph: Optional[bool] = None
    evidence: List[Evidence] = field(default_factory=list)


@dataclass(frozen=True)
class Component:
    """A worker, module or function that a tree method needs; ``kind``: worker v1 | worker v2 | module | function."""

    kind: str
    name: str
    evidence: Evidence


@dataclass(frozen=True)
class ServerArgument:
    name: str
    default: str
    evidence: Evidence


@dataclass(frozen=True)
class LocalChanges:
    """Package files against RECORD, what the installer wrote down; ``compared`` is False where there is none."""

    compared: bool
    note: str = ""
    changed: List[str] = field(default_factory=list)
    missing: List[str] = field(default_factory=list)
    added: List[str] = field(default_factory=list)  # .py files that no RECORD line names


@dataclass(frozen=True)
class PatchPreview:
    """What the patch set would touch. ``fits`` is False for another version or where files stop it; see ``note``."""

    patch_set: str
    fits: bool
    note: str
    files: List[FileState] = field(default_factory=list)


@dataclass(frozen=True)
class Survey:
    distribution: str
    version: str
    location: str  # the folder of the engine's package
    changes: LocalChanges
    editable: Optional[str] = None
    commit: Optional[str] = None
    applied_patch_set: Optional[str] = None
    algorithms: List[Algorithm] = field(default_factory=list)
    backends: List[Backend] = field(default_factory=list)
    components: List[Component] = field(default_factory=list)
    server_arguments: List[ServerArgument] = field(default_factory=list)
    patch: Optional[PatchPreview] = None
    notes: List[str] = field(default_factory=list)
    schema: int = 1
