"""CUDA tags of packages against torch's: ``+cu128`` beside ``+cu130``."""

from __future__ import annotations

from typing import List, Optional

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.cuda import abi_tag
from ddtree_deploy.abi.environment import assigned
from ddtree_deploy.abi.metadata import Distribution
from ddtree_deploy.abi.model import Finding


def package_tag(context: Context, dist: Distribution) -> Optional[str]:
    """The ABI tag that a package states of itself, in its version or in its ``version.py``."""
    tag = abi_tag(dist.version) or abi_tag(dist.folder_version)
    if tag:
        return tag
    text = context.environment.text(f"{dist.site}/{dist.name.replace('-', '_')}/version.py")
    return abi_tag(assigned(text, "__version__")) if text else None


def check(context: Context) -> List[Finding]:
    ours = context.environment.abi_tag
    if ours is None:
        return []
    findings = []
    for dist in context.environment.distributions:
        tag = None if dist.name == "torch" else package_tag(context, dist)
        if tag is None or tag == ours:
            continue
        findings.append(
            Finding(
                id="abi-tag-mismatch",
                severity="note" if tag == "cpu" else "error",
                title=f"{dist.label} is a {tag} build, torch is {ours}",
                message=f"{dist.label} says {tag} of itself; torch {context.environment.torch_version} is {ours}",
                when="import",
                cause=f"binary:{dist.label}",
                why="its compiled operators register against another CUDA runtime than the one that torch loads",
                fix=f"pip install {dist.name} from the index of {ours} builds",
                packages=[dist.label, f"torch {context.environment.torch_version}"],
            )
        )
    return findings
