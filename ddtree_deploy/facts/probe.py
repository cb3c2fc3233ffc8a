"""Everything the planner wants to know of a host, in one operation. Agent-safe. Nothing on the host is changed."""

from __future__ import annotations

import os
import platform
import socket
from pathlib import Path
from typing import Any, Dict, List, Optional

from ddtree_deploy.abi.host import read_ld_cache
from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.codec import to_dict
from ddtree_deploy.facts import disk, system
from ddtree_deploy.facts.command import background
from ddtree_deploy.facts.compilers import find_compilers
from ddtree_deploy.facts.engine import probe_engine
from ddtree_deploy.facts.files import is_dir
from ddtree_deploy.facts.gpu import TIMEOUT, probe_gpus
from ddtree_deploy.facts.model import HostFacts, ReleaseInfo, ServiceInfo
from ddtree_deploy.facts.toolkits import find_toolkits
from ddtree_deploy.facts.venv import scan_venv
from ddtree_deploy.release.layout import PARTIAL, Layout

DEFAULT_ROOT = "/opt/ddtree"


def collect(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``facts``: a HostFacts as dict.

    params, all optional: ``root``; ``base``, the base venv's path; ``engine``, a distribution's name;
    ``patch_files``, paths relative to site-packages whose sha256 is wanted; ``gpu_timeout`` in seconds.
    Raises InputError ``bad-root`` and ``bad-path``.
    """
    layout = Layout(params.get("root") or DEFAULT_ROOT)
    base: Optional[str] = params.get("base")
    timeout = float(params.get("gpu_timeout") or TIMEOUT)
    ask_gpus = background(lambda: probe_gpus(timeout))  # takes its time; the files are read meanwhile
    progress(Progress("facts", "reading the base venv"))
    scanned = scan_venv(base, progress) if base else None
    venv = scanned.venv if scanned else None
    engine = None
    if scanned and venv and venv.site_packages and params.get("engine"):
        progress(Progress("facts", "comparing the engine's files"))
        files: List[str] = list(params.get("patch_files") or [])
        engine = probe_engine(Path(venv.site_packages), scanned.distributions, params["engine"], files)
    ours = _ours(layout)
    toolkits = find_toolkits()
    progress(Progress("facts", "asking for GPUs"))
    gpus = ask_gpus()
    progress(Progress("facts", finished=True))
    machine = platform.machine()
    blocked = disk.blocked_by(layout.root)
    facts = HostFacts(
        hostname=socket.gethostname(),
        system=platform.system(),
        machine=machine,
        kernel=platform.release(),
        glibc=system.glibc_version(),
        python=platform.python_version(),
        boot_id=system.boot_id(),
        systemd=system.runs_systemd(),
        user=system.user_name(),
        root=str(layout.root),
        libstdcxx=system.libstdcxx_version(machine),
        libraries=sorted(read_ld_cache(Path("/etc/ld.so.cache"), machine)) or None,
        driver=gpus.driver,
        driver_cuda=gpus.driver_cuda,
        gpus=gpus.gpus,
        gpu_problem=gpus.problem,
        toolkits=toolkits,
        compilers=find_compilers(venv),
        base=venv,
        engine=engine,
        root_disk=disk.probe_disk(layout.root),
        base_disk=disk.probe_disk(Path(venv.path)) if venv and venv.exists else None,
        root_writable=disk.writable(layout.root),
        root_blocked_by=str(blocked) if blocked else None,
        uv=system.find_uv([f"{venv.path}/bin"] if venv else []),
        **ours,
    )
    return to_dict(facts)


def _ours(layout: Layout) -> Dict[str, Any]:
    """Releases, services and lock. Their modules are imported only where we have been before."""
    if not is_dir(layout.root):
        return {}
    from ddtree_deploy.release.lock import holder
    from ddtree_deploy.release.store import current_release, list_foreign, list_releases
    from ddtree_deploy.serve.operations import list_services

    releases: List[ReleaseInfo] = list_releases(str(layout.root))
    services: List[ServiceInfo] = list_services(layout.root)
    return {
        "releases": releases,
        "current": current_release(layout),
        "current_is_link": layout.current.is_symlink() or not os.path.lexists(layout.current),
        "partial": sorted(path.name for path in layout.releases.glob("*" + PARTIAL)),
        "foreign": list_foreign(str(layout.root)),
        "services": services,
        "locked_by": holder(layout.lock),
    }
