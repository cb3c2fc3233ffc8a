"""Which build of a kernel package goes with a torch: the command that fixes a wrong one."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from packaging.version import Version

from ddtree_deploy.abi.context import Context


class Build(NamedTuple):
    """A released wheel and the torch (``major.minor``) and CUDA tag that it was compiled for."""

    family: str
    distribution: str
    version: str
    torch: str
    tag: str


# Read off the wheels: their DT_NEEDED, and the torch that defines all the symbols they need.
BUILDS = (
    Build("sgl_kernel", "sgl-kernel", "0.3.21", "2.9", "cu128"),
    Build("sgl_kernel", "sglang-kernel", "0.4.2", "2.11", "cu130"),
    Build("sgl_kernel", "sglang-kernel", "0.4.10", "2.14", "cu130"),
)


def fitting(context: Context, name: str) -> Optional[Build]:
    """The known build of the package's family that goes with the torch in here."""
    family = next((build.family for build in BUILDS if build.distribution == name), None)
    torch = context.environment.torch_version
    if family is None or torch is None:
        return None
    minor = ".".join(map(str, Version(torch).release[:2]))
    tag = context.environment.abi_tag
    return next((b for b in BUILDS if b.family == family and b.torch == minor and b.tag == tag), None)


def command(context: Context, package: str) -> str:
    """How to get the build of ``package`` ("sgl-kernel 0.3.21") that goes with torch: exact where it is known."""
    name = package.split()[0]
    build = fitting(context, name)
    if build is None:
        dist = context.environment.distribution(name)
        if dist is not None and any(re.match(r"torch(?![A-Za-z0-9_-])", text) for text in dist.requires):
            public = (context.environment.torch_version or "").partition("+")[0]
            return f"pip install --upgrade {name} torch=={public}"  # the index knows which one goes with it
        torch, tag = context.environment.torch_version, context.environment.abi_tag
        return (
            f"pip install --force-reinstall --no-deps --no-cache-dir --no-build-isolation --no-binary {name} {name}"
            f"  # builds it for torch {torch}; or take the wheel for {tag} from its release page"
        )
    install = f"pip install --no-deps {build.distribution}=={build.version}"
    return install if build.distribution == name else f"pip uninstall -y {name} && {install}"
