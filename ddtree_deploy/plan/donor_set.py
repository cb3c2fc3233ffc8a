"""The profile that a donor is: the smallest consistent set of its packages that makes a base venv fit its torch. Pure.

Everything bound to torch's C++ ABI or to CUDA's major moves together, with what that needs and the base has not;
nothing else moves.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from ddtree_deploy.codec import dumps
from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import HostFacts, Package, Venv
from ddtree_deploy.plan import bound
from ddtree_deploy.plan.packages import installed_tag
from ddtree_deploy.plan.problems import usable_base
from ddtree_deploy.profiles.model import LockedPackage, Profile
from ddtree_deploy.release.bare import NVIDIA
from ddtree_deploy.versions import equal_versions, marker_environment

DONOR_PROFILE = "donor"
ENGINE = "sglang"


def empty_profile() -> Profile:
    """The donor's profile before its facts are known."""
    return Profile(DONOR_PROFILE, ENGINE, "0", "cpu", ">=3.9", [], None, [], "")


def donor_profile(facts: HostFacts, donor: HostFacts, place: str) -> Profile:
    """What of ``donor`` has to move to the base venv of ``facts``; ``place`` is the donor's name in errors.

    Raises InputError ``donor-missing`` and ``donor-without-torch``.
    """
    venv = usable_base(donor)
    if venv is None:
        why = donor.base.problem if donor.base is not None and donor.base.problem else "there is no venv"
        raise InputError("donor-missing", f"the donor {place} is not a venv to copy from: {why}", where=place)
    base = usable_base(facts) or Venv(path="", exists=False)
    torch = next((package for package in venv.packages if package.name == bound.TORCH), None)
    if torch is None:
        hint = "Name a venv that has torch, or use a profile."
        raise InputError("donor-without-torch", f"the donor {place} has no torch", where=place, hint=hint)
    chosen = _Closure(base, venv, donor.machine).run()
    tag = installed_tag(torch) or "cpu"
    major = bound.cuda_major(tag)
    has = {package.name: package for package in [*venv.packages, *base.packages]}
    if ENGINE in chosen:
        has[ENGINE] = next(package for package in venv.packages if package.name == ENGINE)
    profile = replace(
        empty_profile(),
        engine_version=has[ENGINE].version if ENGINE in has else "0",
        abi_tag=tag,
        packages=[_locked(venv, name, reason) for name, reason in sorted(chosen.items())],
        # Any driver of CUDA's major runs code that was compiled for it ("minor version compatibility").
        min_driver_cuda=f"{major}.0" if major else None,
        gpu=major is not None,
        description=f"the packages of {place} that are bound to its torch",
    )
    plain = replace(profile, description="", packages=[replace(package, reason=None) for package in profile.packages])
    return replace(profile, digest=hashlib.sha256(dumps(plain).encode()).hexdigest())


def _locked(venv: Venv, name: str, reason: str) -> LockedPackage:
    package = next(package for package in venv.packages if package.name == name)
    return LockedPackage(name, package.version, [], None, installed_tag(package), reason)


class _Closure:
    """Names of the donor's packages that move, each with the reason."""

    def __init__(self, base: Venv, donor: Venv, machine: str) -> None:
        self.base = {package.name: package for package in base.packages}
        self.donor = {package.name: package for package in donor.packages}
        self.environment = marker_environment(donor.python or "3.11", machine)
        self.chosen: dict[str, str] = {}
        self.roots: dict[str, str] = {}  # who it is that needs it in the end: "sglang 0.5.11"
        self.todo: list[tuple[str, frozenset[str]]] = []
        self.seen: set[tuple[str, frozenset[str]]] = set()

    def run(self) -> dict[str, str]:
        self.take(bound.TORCH, "torch comes from the donor")
        libraries = self.donor.get(NVIDIA)
        major = bound.cuda_major(installed_tag(self.donor[bound.TORCH]))
        if libraries is not None and bound.cuda_major(libraries.abi_tag) in (None, major):
            self.take(NVIDIA, "CUDA's libraries, copied without metadata: moves with torch")
        for package in self.base.values():
            self._take_bound(package)
        self._take_engine()
        while self.todo:
            self._follow(*self.todo.pop(0))
            if not self.todo:
                self._take_dependents()
        return self.chosen

    def take(self, name: str, reason: str, extras: frozenset[str] = frozenset(), root: str | None = None) -> None:
        if name not in self.donor:
            return
        self.chosen.setdefault(name, reason)
        self.roots.setdefault(name, root or f"{name} {self.donor[name].version}")
        if (name, extras) not in self.seen:
            self.seen.add((name, extras))
            self.todo.append((name, extras))

    def _take_bound(self, package: Package) -> None:
        """The donor's build of a package of the base that cannot stay as it is."""
        if bound.torch_bound(package.name) or bound.links_torch(package):
            why = "bound to torch's C++ ABI: moves with torch"
        elif bound.cuda_library(package.name) or package.links:
            why = "one of CUDA's libraries, or linked to them: moves with torch"
        else:
            return
        stem = bound.stem(package.name)
        names = {package.name} | bound.aliases(package.name)
        if bound.cuda_library(package.name):
            names |= {name for name in self.donor if bound.cuda_library(name) and bound.stem(name) == stem}
        for name in sorted(names):
            self.take(name, why)

    def _take_engine(self) -> None:
        """The engine's kernels, and the engine itself where the base has none or one for other kernels."""
        engine = self.base.get(ENGINE)
        if engine is None:
            self.take(ENGINE, "the base venv has no engine")
            return
        for name, _, requirement in self._requirements(engine, frozenset()):
            found = self.donor.get(name)
            if found is None or not self._bound(found):
                continue
            if not _satisfies(found, requirement):
                self.take(
                    ENGINE, f"{engine.version} wants {_text(requirement)}, the release has {name} {found.version}"
                )
            self.take(name, f"needed by {ENGINE} {engine.version}")

    def _follow(self, name: str, extras: frozenset[str]) -> None:
        package = self.donor[name]
        for needed, wanted, requirement in self._requirements(package, extras):
            found, installed = self.donor.get(needed), self.base.get(needed)
            if found is None:
                continue
            if self._bound(found) or needed in self.chosen:
                self.take(needed, f"needed by {name} {package.version}", wanted)
            elif installed is None:
                self.take(needed, f"needed by {self.roots[name]}", wanted, self.roots[name])
            elif not _satisfies(installed, requirement):
                self.take(needed, f"{name} {package.version} needs {_text(requirement)}", wanted, self.roots[name])

    def _take_dependents(self) -> None:
        """What was content with the base's versions and is not with the donor's, where the donor has what is."""
        for name, package in self.base.items():
            other = self.donor.get(name)
            if name in self.chosen or other is None:
                continue
            for needed, _, requirement in self._requirements(package, frozenset()):
                if needed not in self.chosen or _satisfies(self.donor[needed], requirement):
                    continue
                before = self.base.get(needed)
                if (
                    before is not None
                    and _satisfies(before, requirement)
                    and not equal_versions(other.version, package.version)
                ):
                    now = f"{needed} {self.donor[needed].version}"
                    self.take(name, f"{package.version} wants {_text(requirement)}, the release has {now}")

    def _bound(self, package: Package) -> bool:
        return bound.torch_bound(package.name) or bound.cuda_library(package.name) or bool(package.links)

    def _requirements(
        self, package: Package, extras: frozenset[str]
    ) -> Iterator[tuple[str, frozenset[str], Requirement]]:
        """(name, its extras, requirement) of what ``package``, with ``extras`` of its own, needs on the host."""
        for text in package.requires:
            try:
                requirement = Requirement(text)
            except InvalidRequirement:
                continue
            marker = requirement.marker
            if marker is None or any(marker.evaluate({**self.environment, "extra": extra}) for extra in ("", *extras)):
                yield canonicalize_name(requirement.name), frozenset(requirement.extras), requirement


def _satisfies(package: Package, requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(Version(package.version), prereleases=True)
    except InvalidVersion:
        return False


def _text(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"
