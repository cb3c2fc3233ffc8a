"""What packages say of their build: ``+cu128`` beside a ``+cu130`` torch, ``torch2.7`` beside torch 2.11."""

from __future__ import annotations

import re
from typing import List, Optional
from urllib.parse import unquote

from packaging.version import Version

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.cuda import abi_tag, tag_major
from ddtree_deploy.abi.environment import assigned
from ddtree_deploy.abi.metadata import Distribution
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import builds

_TORCH = re.compile(r"(?:^|[^a-z])(?:torch|pt)(\d+)\.?(\d+)")


def package_tag(context: Context, dist: Distribution) -> Optional[str]:
    """The ABI tag that a package states of itself, in its version, its wheel's name or its ``version.py``."""
    for text in (dist.version, dist.folder_version, _wheel_name(dist)):
        tag = abi_tag(text)
        if tag:
            return tag
    source = context.environment.text(f"{dist.site}/{dist.name.replace('-', '_')}/version.py")
    return abi_tag(assigned(source, "__version__")) if source else None


def check(context: Context) -> List[Finding]:
    if context.environment.abi_tag is None:
        return []
    findings: List[Finding] = []
    for dist in context.environment.distributions:
        if dist.name != "torch":
            findings += _cuda(context, dist) + _torch(context, dist)
    return findings


def _cuda(context: Context, dist: Distribution) -> List[Finding]:
    ours = context.environment.abi_tag
    tag = package_tag(context, dist)
    if tag is None or tag == ours:
        return []
    torch = f"torch {context.environment.torch_version}"
    if tag == "cpu":
        severity, why = "note", "it works, and runs what it does on the CPU"
    elif tag_major(tag) == tag_major(ours):
        severity, why = "warning", "both are of one CUDA major, which mostly works; they were not built together"
    else:
        severity, why = (
            "error",
            "its operators were compiled against another CUDA runtime than the one that torch loads",
        )
    return [
        Finding(
            id="abi-tag-mismatch",
            severity=severity,
            title=f"{dist.label} is a {tag} build, torch is {ours}",
            message=f"{dist.label} says {tag} of itself; {torch} is {ours}",
            when="import",
            cause=f"binary:{dist.label}",
            why=why,
            fix=builds.command(context, dist.label),
            packages=[dist.label, torch],
        )
    ]


def _torch(context: Context, dist: Distribution) -> List[Finding]:
    """Wheels such as ``flash_attn-2.8.3+cu12torch2.7cxx11abiFALSE-cp311-cp311-linux_x86_64.whl``."""
    said = next((m for m in (_TORCH.search(t.lower()) for t in (dist.version, _wheel_name(dist))) if m), None)
    ours = Version(context.environment.torch_version or "0").release[:2]
    if said is None or (int(said.group(1)), int(said.group(2))) == ours:
        return []
    checked = any(context.environment.owner(path) is dist for path in context.objects)
    wanted = f"{said.group(1)}.{said.group(2)}"
    return [
        Finding(
            id="torch-tag-mismatch",
            severity="warning" if checked else "error",
            title=f"{dist.label} is a wheel for torch {wanted}",
            message=f"{_wheel_name(dist) or dist.version}; here is torch {context.environment.torch_version}",
            when="import",
            cause=f"binary:{dist.label}",
            why="torch's C++ interface changes with every minor version"
            + ("; the names that its files need were checked one by one" if checked else ""),
            fix=builds.command(context, dist.label),
            packages=[dist.label, f"torch {context.environment.torch_version}"],
        )
    ]


def _wheel_name(dist: Distribution) -> str:
    """The wheel's file name from direct_url.json, where it was installed from a URL."""
    name = unquote((dist.origin or "").rpartition("/")[2])
    return name if name.endswith(".whl") else ""
