"""A host's facts as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text
from rich.tree import Tree

from ddtree_deploy.units import human_bytes, plural

if TYPE_CHECKING:
    from rich.console import Console

    from ddtree_deploy.facts.model import Disk, HostFacts

# Packages that decide whether an environment works; the others are counted.
_TELLING = (
    "torch",
    "torchvision",
    "triton",
    "sglang",
    "sglang-kernel",
    "sgl-kernel",
    "flashinfer-python",
    "transformers",
)


def render_facts(console: Console, host: str, facts: HostFacts) -> None:
    """Print the facts of ``host`` as a tree."""
    tree = Tree(Text(host, style="bold"), guide_style="dim")
    tree.add(Text(f"{facts.hostname}: {facts.system} {facts.kernel} on {facts.machine}, glibc {facts.glibc or '?'}"))
    manager = "systemd" if facts.systemd else "no systemd"
    tree.add(Text(f"user {facts.user}, Python {facts.python}, {manager}, uv {facts.uv or 'not found'}"))
    _add_gpus(tree, facts)
    _add_base(tree, facts)
    _add_root(tree, facts)
    console.print(tree)


def _add_gpus(tree: Tree, facts: HostFacts) -> None:
    toolkits = ", ".join(toolkit.version or toolkit.path for toolkit in facts.toolkits) or "none"
    driver = f"driver {facts.driver or 'none'}, CUDA up to {facts.driver_cuda or '?'}, toolkits {toolkits}"
    branch = tree.add(Text(f"{plural(len(facts.gpus), 'GPU')}; {driver}"))
    if facts.compilers is not None:
        found = facts.compilers
        words = {True: "there", False: "not found", None: "not asked"}
        named = {"C": found.c, "C++": found.cxx, "nvcc": found.nvcc}
        paths = ", ".join(f"{name} {path or 'not found'}" for name, path in named.items())
        files = f"libcudart.so {words[found.cuda_runtime]}, Python.h {words[found.python_header]}"
        branch.add(Text(f"compilers: {paths}, {files}"))
    if facts.gpu_problem:
        branch.add(Text(facts.gpu_problem, style="yellow"))
    for gpu in facts.gpus:
        memory = f"{gpu.memory_used_mib or 0} of {gpu.memory_mib} MiB used" if gpu.memory_mib else "memory unknown"
        capability = f", sm {gpu.compute_capability}" if gpu.compute_capability else ""
        mig = ", MIG on" if gpu.mig else ""
        processes = f", {plural(len(gpu.processes), 'process')}" if gpu.processes else ""
        branch.add(Text(f"GPU {gpu.index}: {gpu.name}{capability}, {memory}{mig}{processes}  {gpu.uuid}"))


def _add_base(tree: Tree, facts: HostFacts) -> None:
    base = facts.base
    if base is None:
        tree.add(Text("no base venv was asked for", style="dim"))
        return
    if not base.exists or base.problem:
        tree.add(Text(f"base {base.path}: {base.problem or 'does not exist'}", style="red"))
        return
    size = f"{plural(base.files, 'file')}, {human_bytes(base.bytes)}"
    branch = tree.add(Text(f"base {base.path}: Python {base.python}, {plural(len(base.packages), 'package')}, {size}"))
    packages = {package.name: package for package in base.packages}
    for name in _TELLING:
        if name in packages:
            package = packages[name]
            tag = f" [{package.abi_tag}]" if package.abi_tag else ""
            editable = f" editable from {package.editable}" if package.editable else ""
            branch.add(Text(f"{name} {package.version}{tag}{editable}"))
    engine = facts.engine
    if engine is not None:
        changed = f"{plural(len(engine.changed_files), 'file')} changed, {len(engine.missing_files)} missing"
        commit = f", commit {engine.commit}" if engine.commit else ""
        branch.add(Text(f"engine {engine.distribution} {engine.version}{commit}: {changed} against its RECORD"))


def _add_root(tree: Tree, facts: HostFacts) -> None:
    state = "" if facts.root_writable else ", not writable"
    branch = tree.add(Text(f"root {facts.root}{state}"))
    for label, disk in (("root", facts.root_disk), ("base", facts.base_disk)):
        if disk is not None:
            branch.add(Text(f"disk of {label}: {_disk(disk)}"))
    for release in facts.releases:
        state = "current" if release.current else "complete" if release.complete else "incomplete"
        branch.add(Text(f"release {release.id}, {state}", style="green" if release.current else ""))
    for name in facts.partial:
        branch.add(Text(f"{name}: being built, or left by an interrupted run", style="yellow"))
    for service in facts.services:
        port = f" on port {service.port}" if service.port else ""
        branch.add(Text(f"service {service.name}: {service.state}{port}"))
    if facts.locked_by:
        branch.add(Text(f"locked by {facts.locked_by}", style="yellow"))


def _disk(disk: Disk) -> str:
    reflink = ", reflinks" if disk.reflink else ""
    space = f"{human_bytes(disk.free_bytes)} of {human_bytes(disk.total_bytes)} free"
    return f"{disk.path} ({disk.filesystem}{reflink}), {space}"
