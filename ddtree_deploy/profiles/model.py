"""Runtime profiles as the planner and the agent see them. Standard library only; reading YAML is loader.py's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional


@dataclass(frozen=True)
class LockedPackage:
    """One line of a profile's lock: exact version and the sha256 of every wheel that is accepted."""

    name: str  # normalized
    version: str
    hashes: List[str]  # hex sha256
    marker: Optional[str] = None  # PEP 508 environment marker
    abi_tag: Optional[str] = None
    reason: Optional[str] = None  # why it is in the set, where that is more than that the profile pins it


@dataclass(frozen=True)
class ExtraFile:
    """A file that the profile adds to a release (the CPU profile's shims); ``path`` relative to the release.

    ``{site}`` in ``path`` stands for the release's site-packages folder (``lib/python3.11/site-packages``).
    """

    path: str
    source: str  # absolute path on the controller, later a blob
    sha256: str
    mode: int = 0o644


@dataclass(frozen=True)
class Profile:
    """A named, hash-pinned set of packages that belong together, with the environment they need."""

    name: str
    engine: str  # distribution, "sglang"
    engine_version: str  # "0.5.11"
    abi_tag: str  # cu128 | cu130 | cpu
    requires_python: str  # ">=3.11,<3.13"
    machine: List[str]  # ["x86_64"]
    patch_set: Optional[str]
    packages: List[LockedPackage]
    lock_sha256: str
    min_driver_cuda: Optional[str] = None  # oldest driver CUDA that runs it, "13.0"
    min_glibc: Optional[str] = None
    system_libraries: Dict[str, str] = field(default_factory=dict)  # "libnuma.so.1": the Debian package that has it
    extra_files: List[ExtraFile] = field(default_factory=list)
    environment: Dict[str, str] = field(default_factory=dict)  # {release} expands
    engine_arguments: List[str] = field(default_factory=list)
    needs_index: Optional[str] = None  # packages must come from an index the user configures; says which and why
    gpu: bool = True
    digest: str = ""  # of everything above
    description: str = ""
    requirements: List[str] = field(default_factory=list)  # where there is no lock: what one is made from
    overrides: List[str] = field(default_factory=list)  # requirements that replace what packages ask for
    constraints: List[str] = field(default_factory=list)  # versions that a lock must keep: "name==version"
    path: Optional[str] = None  # the profile's file on the controller


@dataclass(frozen=True)
class Source:
    """Where an overlay's packages come from. ``location``: index URL or None for uv's own default, folder, or venv."""

    kind: str  # index | wheelhouse | donor
    location: Optional[str] = None
    host: Optional[str] = None  # donor on another host (inventory name, user@host:port), None: a path on the target
    extra: List[str] = field(default_factory=list)  # more indexes; an index may be a reference, env:NAME or file:PATH
    rest: Optional[Source] = None  # of a donor: an index or wheelhouse for what the donor lacks
    take_edited: bool = False  # of a donor: also compiled files that differ from their RECORD
    compress: bool = False  # of a donor on another host: on the way
