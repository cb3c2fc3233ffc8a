"""Requires-Dist against what is installed, with markers and extras, as ``pip check`` would."""

from __future__ import annotations

import re
from typing import Dict, Iterator, List, Optional, Set, Tuple

from packaging.markers import Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.metadata import Distribution
from ddtree_deploy.abi.model import Finding
from ddtree_deploy.abi.rules import builds
from ddtree_deploy.versions import marker_environment

# Majors from here on count releases, not breaks (setuptools 81, pyarrow 24, packaging 26).
_CALENDAR_MAJOR = 20


def wanted(context: Context) -> Iterator[Tuple[Distribution, Requirement]]:
    """(who, requirement) for every requirement that applies here, extras followed."""
    python = context.environment.python or (3, 11)  # the audited interpreter, not the one that runs the audit
    environment = marker_environment(f"{python[0]}.{python[1]}", context.host.machine)
    installed = {dist.name: dist for dist in context.environment.distributions}
    queue: List[Tuple[Distribution, str]] = [(dist, "") for dist in context.environment.distributions]
    seen: Set[Tuple[str, str]] = set()
    while queue:
        dist, extra = queue.pop()
        if (dist.name, extra) in seen:
            continue
        seen.add((dist.name, extra))
        for requirement in parsed(dist):
            marker = requirement.marker
            if marker is not None and not _applies(marker, environment, extra):
                continue
            if extra and (marker is None or _applies(marker, environment, "")):
                continue  # applies without the extra too: already seen
            yield dist, requirement
            target = installed.get(str(canonicalize_name(requirement.name)))
            if target is not None:
                queue += [(target, name) for name in requirement.extras]


def _applies(marker: Marker, environment: Dict[str, str], extra: str) -> bool:
    try:
        return marker.evaluate({**environment, "extra": extra})
    except (UndefinedComparison, UndefinedEnvironmentName, InvalidVersion):
        return False  # a marker that means nothing asks for nothing


def parsed(dist: Distribution) -> List[Requirement]:
    """The readable Requires-Dist lines of a distribution."""
    found = []
    for text in dist.requires:
        try:
            found.append(Requirement(text))
        except InvalidRequirement:
            continue
    return found


def check(context: Context) -> List[Finding]:
    installed = {dist.name: dist for dist in context.environment.distributions}
    findings = []
    for dist, requirement in wanted(context):
        name = str(canonicalize_name(requirement.name))
        other = installed.get(name)
        if other is None:
            findings.append(_missing(context, dist, requirement, installed))
        elif not _satisfied(requirement, other.version):
            findings.append(_version(context, dist, requirement, other))
    return findings


def _satisfied(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.specifier.contains(Version(version), prereleases=True)
    except InvalidVersion:
        return True  # told by the metadata rule


# Distributions that bring the same modules under another name.
_STAND_INS = (
    ("opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless"),
    ("sgl-kernel", "sglang-kernel"),
    ("triton", "pytorch-triton", "pytorch-triton-rocm", "triton-windows"),
    ("onnxruntime", "onnxruntime-gpu"),
    ("psycopg2", "psycopg2-binary"),
    ("tensorflow", "tensorflow-cpu"),
    ("faiss-cpu", "faiss-gpu", "faiss-gpu-cu12"),
    ("pillow", "pillow-simd"),
)


def _stand_in(name: str, installed: Dict[str, Distribution]) -> Optional[Distribution]:
    group = next((group for group in _STAND_INS if name in group), ())
    return next((installed[other] for other in group if other in installed), None)


def _missing(
    context: Context, dist: Distribution, requirement: Requirement, installed: Dict[str, Distribution]
) -> Finding:
    other = _stand_in(str(canonicalize_name(requirement.name)), installed)
    certain = other is None and context.usage.needed(dist)
    return Finding(
        id="requirement-missing",
        severity="error" if certain else "warning",
        title=f"{requirement.name} is not installed",
        message=f"{dist.label} requires {requirement.name}{requirement.specifier}, which is not installed"
        + (f"; {other.label} may stand in for it" if other else ""),
        when="import",
        cause=f"requirement:{canonicalize_name(requirement.name)}",
        why=f"the first module of {dist.name} that imports it ends with ModuleNotFoundError",
        fix=f"pip install '{requirement.name}{requirement.specifier}'",
        packages=[dist.label],
    )


def _version(context: Context, dist: Distribution, requirement: Requirement, other: Distribution) -> Finding:
    bound = _bound(dist, other) and _other_minor(requirement, other.version)
    broken = (bound or _other_major(requirement, other.version)) and context.usage.needed(dist)
    if bound:
        why = f"both hold compiled code: {dist.name} was built against the {other.name} that it names"
    else:
        why = f"{dist.name} was released for {requirement.name}{requirement.specifier}"
    return Finding(
        id="requirement-version",
        severity="error" if broken else "warning",
        title=f"{dist.label} does not go with {other.label}",
        message=f"{dist.label} requires {requirement.name}{requirement.specifier}, installed is {other.version}",
        when="import" if broken else "under-load",
        cause=f"binary:{dist.label}" if bound else f"requirement:{other.name}",
        why=why,
        fix=builds.command(context, dist.label)
        if bound
        else f"pip install '{requirement.name}{requirement.specifier}'",
        packages=[dist.label, other.label],
    )


_TORCH_FAMILY = ("torchvision", "torchaudio", "torchtext", "torchcodec", "xformers", "flash-attn", "vllm", "torch")


def _bound(dist: Distribution, other: Distribution) -> bool:
    """Whether the requirement is about a binary interface, compiled on both sides.

    NVIDIA's libraries are left out: newer ones of a major are drop-ins (cuDNN 9.16 for torch 2.9.1 is the advised fix),
    and whether they fit is checked symbol by symbol.
    """
    return other.name in ("torch", "triton") and (_native(dist) or dist.name in _TORCH_FAMILY)


def _other_minor(requirement: Requirement, version: str) -> bool:
    """Whether an exact pin names another ``major.minor``; releases of one minor keep their interface."""
    pins = [spec.version for spec in requirement.specifier if spec.operator in ("==", "===")]
    try:
        return not pins or all(Version(pin.rstrip(".*")).release[:2] != Version(version).release[:2] for pin in pins)
    except InvalidVersion:
        return True


def _native(dist: Distribution) -> bool:
    return any(re.search(r"\.so(\.\d+)*$", path) for path in dist.record or {})


def _other_major(requirement: Requirement, version: str) -> bool:
    """Whether the installed major lies outside of every major that the specifier allows."""
    try:
        major = Version(version).major
    except InvalidVersion:
        return False
    bounds = [
        _major(spec.version) for spec in requirement.specifier if spec.operator in ("<", "<=", "==", "~=", ">=", ">")
    ]
    known = [bound for bound in bounds if bound is not None]
    if not known or major >= _CALENDAR_MAJOR:
        return False
    exclusive = [
        s for s in requirement.specifier if s.operator == "<" and Version(s.version).release[1:] in ((), (0,), (0, 0))
    ]
    highest = max([_major(s.version) or 0 for s in requirement.specifier if s.operator not in ("!=",)], default=major)
    if exclusive and highest == _major(exclusive[0].version):
        return major >= highest
    return major > highest or major < min(known)


def _major(text: str) -> Optional[int]:
    match = re.match(r"(\d+)", text)
    return int(match.group(1)) if match else None
