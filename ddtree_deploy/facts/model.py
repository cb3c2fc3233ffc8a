"""What a host is. Filled by ``facts.probe`` on the host, read by the planner. Standard library only (agent-safe)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Optional


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    name: str
    memory_mib: Optional[int] = None


@dataclass(frozen=True)
class Gpu:
    """One device as nvidia-smi names it; ``index`` is in PCI bus order, ``memory_mib`` in MiB."""

    index: int
    uuid: str
    name: str
    compute_capability: Optional[str] = None  # "12.0"
    memory_mib: Optional[int] = None
    memory_used_mib: Optional[int] = None
    pci_bus_id: Optional[str] = None
    mig: Optional[bool] = None
    processes: List[GpuProcess] = field(default_factory=list)


@dataclass(frozen=True)
class Toolkit:
    path: str
    version: Optional[str] = None


@dataclass(frozen=True)
class Compilers:
    """Paths of what kernels are compiled with on the host, None where a service finds none."""

    c: Optional[str] = None
    cxx: Optional[str] = None
    nvcc: Optional[str] = None
    cuda_runtime: Optional[bool] = None  # libcudart.so is where that nvcc's kernels are linked; None: there is no nvcc
    python_header: Optional[bool] = None  # Python.h of the base venv's Python; None: there is no base


@dataclass(frozen=True)
class Package:
    """One installed distribution. ``abi_tag`` is cu128 | cu130 | cpu, cu12 | cu13 where only the major is known (from
    the libraries it links), or None where it has no CUDA build."""

    name: str  # normalized (PEP 503)
    version: str
    abi_tag: Optional[str] = None
    record: bool = True  # has a RECORD that is whole
    editable: Optional[str] = None  # project folder of an editable install
    installer: Optional[str] = None
    wheel_tags: List[str] = field(default_factory=list)
    links: List[str] = field(default_factory=list)  # what its shared objects need from outside: torch, cuda12, cuda13
    requires: List[str] = field(default_factory=list)  # Requires-Dist; of extras only those on CUDA's libraries
    bare: bool = False  # no metadata at all: folders that somebody copied, told by their own version files
    disagrees: Optional[str] = None  # its files' own version, where that is not the metadata's


@dataclass(frozen=True)
class Venv:
    """A Python environment; ``fingerprint`` changes when its package set, Python or configuration does, and
    when files come, go or change their size."""

    path: str
    exists: bool
    python: Optional[str] = None  # "3.11.2"
    prefix: Optional[str] = None
    base_prefix: Optional[str] = None
    home: Optional[str] = None  # pyvenv.cfg's home
    site_packages: Optional[str] = None
    packages: List[Package] = field(default_factory=list)
    fingerprint: Optional[str] = None
    files: int = 0
    bytes: int = 0
    small_bytes: Optional[int] = None  # of its files that are not too large to be copied for a command (release.own)
    problem: Optional[str] = None  # why it is not a usable venv
    system_site_packages: bool = False  # it also sees the system's packages, which are not listed


@dataclass(frozen=True)
class Engine:
    """The installed engine; ``changed_files`` differ from the released wheel's RECORD, ``sha256`` maps the files
    that the patch set names (relative to site-packages) to what is on disk now (None: missing)."""

    distribution: str
    version: str
    location: str
    commit: Optional[str] = None
    editable: Optional[str] = None
    changed_files: List[str] = field(default_factory=list)
    missing_files: List[str] = field(default_factory=list)
    added_files: List[str] = field(default_factory=list)  # *.py in its packages that RECORD does not list
    sha256: Dict[str, Optional[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Disk:
    path: str  # the nearest existing folder that was asked
    device: int  # st_dev
    filesystem: str
    total_bytes: int
    free_bytes: int
    reflink: bool = False


@dataclass(frozen=True)
class ReleaseInfo:
    id: str
    path: str
    profile: str
    created: str  # ISO 8601, UTC
    current: bool
    complete: bool
    inputs_digest: str
    bytes: int = 0
    tool_version: Optional[str] = None  # of ours that made it
    clone_method: Optional[str] = None  # reflink | hardlink | copy
    base_fingerprint: Optional[str] = None  # of the base venv as it was cloned


@dataclass(frozen=True)
class ServiceInfo:
    """A service of ours on the host, as ``status`` prints it."""

    name: str
    state: str  # starting | ready | stopping | failed | stopped | dead | unknown (its files cannot be read)
    pid: Optional[int] = None
    port: Optional[int] = None
    gpu_index: Optional[int] = None
    gpu_uuid: Optional[str] = None
    algorithm: Optional[str] = None
    budget: Optional[str] = None
    model: Optional[str] = None
    release: Optional[str] = None
    manager: Optional[str] = None  # supervisor | systemd
    started: Optional[str] = None
    detail: Optional[str] = None

    def stays_elsewhere(self, release: str) -> bool:
        """Whether it runs from another release than ``release``, and goes on with it once that is current."""
        return self.state in ("starting", "ready") and self.release not in (None, release)


@dataclass(frozen=True)
class HostFacts:
    """Everything the planner knows about a host. Saved by ``facts --save`` and read by ``plan --facts``."""

    hostname: str
    system: str  # Linux
    machine: str  # x86_64
    kernel: str
    glibc: Optional[str]
    python: str  # the Python that runs the agent
    boot_id: Optional[str]
    systemd: bool
    user: str
    root: str
    schema: int = 1
    libstdcxx: Optional[str] = None  # highest GLIBCXX_ version
    libraries: Optional[List[str]] = None  # names that ldconfig knows ("libnuma.so.1"); None: unknown
    driver: Optional[str] = None
    driver_cuda: Optional[str] = None  # highest CUDA the driver supports, "13.0"
    gpus: List[Gpu] = field(default_factory=list)
    gpu_problem: Optional[str] = None
    toolkits: List[Toolkit] = field(default_factory=list)
    compilers: Optional[Compilers] = None  # None: not asked (facts of an older version)
    base: Optional[Venv] = None
    engine: Optional[Engine] = None
    root_disk: Optional[Disk] = None
    base_disk: Optional[Disk] = None
    root_writable: bool = True
    root_blocked_by: Optional[str] = None  # what is no folder, and at root or on the way to it
    uv: Optional[str] = None  # path of uv on the host
    releases: List[ReleaseInfo] = field(default_factory=list)
    current: Optional[str] = None
    current_is_link: bool = True  # false: something that is no symlink has the name
    partial: List[str] = field(default_factory=list)
    foreign: List[str] = field(default_factory=list)  # what is among the releases and not ours
    services: List[ServiceInfo] = field(default_factory=list)
    locked_by: Optional[str] = None
