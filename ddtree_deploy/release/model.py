"""A release's own record, ``<release>/.ddtree/release.json``. Standard library only (agent-safe)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional

from ddtree_deploy.plan.model import FileChange, PackageChange


@dataclass(frozen=True)
class ReleaseRecord:
    """Written when a release is cloned, and again, complete, before it gets its name; without it, none.

    It does not name the base venv's path, as nothing in a release does; the journal's ``run-begin`` does.
    ``site_packages`` is relative to the release. ``environment`` and ``engine_arguments`` are the profile's, with
    ``{release}`` expanded to the release's path. ``files`` (paths as in the plan) have no ``diff``. ``rewritten`` are
    the files, relative to the release, whose mentions of the base's path were rewritten. ``staging``, ``rest_staging``
    (of what a donor lacked) and ``blobs`` are what prune must keep in the cache. ``notes`` are the warnings and notes
    of the steps: {severity, id, message}.
    """

    id: str
    inputs_digest: str
    profile: str
    created: str  # ISO 8601, UTC
    site_packages: str
    base_fingerprint: Optional[str] = None
    python: Optional[str] = None
    patch_set: Optional[str] = None
    patch_set_digest: Optional[str] = None
    engine: Optional[str] = None
    engine_version: Optional[str] = None
    abi_tag: Optional[str] = None
    gpu: bool = True
    source: Dict[str, Any] = field(default_factory=dict)
    packages: List[PackageChange] = field(default_factory=list)
    files: List[FileChange] = field(default_factory=list)
    shims: List[str] = field(default_factory=list)
    environment: Dict[str, str] = field(default_factory=dict)
    engine_arguments: List[str] = field(default_factory=list)
    rewritten: List[str] = field(default_factory=list)
    notes: List[Dict[str, Any]] = field(default_factory=list)
    staging: Optional[str] = None
    rest_staging: Optional[str] = None
    blobs: List[str] = field(default_factory=list)
    clone_method: Optional[str] = None
    file_count: int = 0
    bytes: int = 0
    tool_version: str = ""
    schema: int = 1
