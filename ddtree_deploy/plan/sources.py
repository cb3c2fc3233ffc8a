"""Whether a source (index, wheelhouse, donor) can deliver the packages that a plan takes from it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ddtree_deploy.facts.model import HostFacts, Package, Venv
from ddtree_deploy.plan.inputs import PlanInputs, WheelInfo
from ddtree_deploy.plan.model import PackageChange, Problem
from ddtree_deploy.plan.packages import installed_tag, same_tag
from ddtree_deploy.plan.problems import error, usable_base
from ddtree_deploy.profiles.model import LockedPackage, Source
from ddtree_deploy.units import some
from ddtree_deploy.versions import same_version


def source_problems(
    inputs: PlanInputs, locked: Sequence[LockedPackage], changes: Sequence[PackageChange]
) -> list[Problem]:
    """Problems of the source for ``changes``, the packages that are to be added or replaced."""
    wanted = {change.name for change in changes if change.change != "remove"}
    needed = [package for package in locked if package.name in wanted]
    if not needed:
        return []
    if inputs.source.kind == "donor":
        return _donor_problems(inputs, needed)
    return [*_shop_problems(inputs, inputs.source, needed), *_uv_problems(inputs)]


@dataclass(frozen=True)
class Split:
    """Which packages come from a donor, and which from the index or wheelhouse for the rest. ``lacking``: what nobody
    has, in words; ``editable``: what the donor has, but not as files of its own."""

    donor: list[LockedPackage] = field(default_factory=list)
    rest: list[LockedPackage] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)
    editable: list[str] = field(default_factory=list)


def split(inputs: PlanInputs, needed: Sequence[LockedPackage]) -> Split:
    """Share ``needed`` out among the sources: the donor first for what it has in the locked version and build."""
    if inputs.source.kind != "donor":
        return Split(rest=list(needed))
    venv = usable_base(inputs.donor) if inputs.donor is not None else None
    installed = {package.name: package for package in venv.packages} if venv is not None else {}
    result = Split()
    for package in needed:
        found = installed.get(package.name)
        why = _why_not(found, package)
        if why is None and found is not None and not found.editable:
            result.donor.append(package)
        elif inputs.source.rest is not None:
            result.rest.append(package)
        elif why is None and found is not None:
            result.editable.append(f"{package.name} ({found.editable})")
        else:
            result.lacking.append(why or package.name)
    return result


def _why_not(found: Package | None, wanted: LockedPackage) -> str | None:
    """Why the donor's ``found`` is not ``wanted``, in words; None where it is."""
    if found is None:
        return f"{wanted.name} {wanted.version}"
    if not same_version(found.version, wanted.version):
        return f"{wanted.name} {wanted.version} (it has {found.version})"
    if not same_tag(tag := installed_tag(found), wanted.abi_tag):
        return f"{wanted.name} built for {wanted.abi_tag} (it has {tag})"
    if found.disagrees:
        return f"{wanted.name} {wanted.version} (its metadata says so, but its files are of {found.disagrees})"
    return None


def _shop_problems(inputs: PlanInputs, source: Source, needed: Sequence[LockedPackage]) -> list[Problem]:
    if source.kind == "wheelhouse":
        return _wheelhouse_problems(inputs, source, needed)
    return _index_problems(inputs, source)


def _uv_problems(inputs: PlanInputs) -> list[Problem]:
    """A warning, for packages that an earlier run has fetched are taken without it."""
    facts, uv = inputs.facts, inputs.uv
    if facts.uv or (uv is not None and uv.machine == facts.machine):
        return []
    message = f"{facts.hostname} has no uv, and there is none here for its machine ({facts.machine}) that could be sent"
    hint = "Install it on the host (https://docs.astral.sh/uv/), or take the packages from a donor."
    return [Problem("warning", "uv-missing", message, hint)]


def _index_problems(inputs: PlanInputs, source: Source) -> list[Problem]:
    profile = inputs.profile
    if profile.needs_index and source.location is None:
        message = f"profile {profile.name} needs a package index that you configure: {profile.needs_index}"
        return [error("needs-index", message, "Set `source` of this host to the index, a wheelhouse or a donor.")]
    return []


def _wheelhouse_problems(inputs: PlanInputs, source: Source, needed: Sequence[LockedPackage]) -> list[Problem]:
    place = source.location or "the wheelhouse"
    tags = host_tags(inputs.facts)
    problems = []
    missing = []
    for package in needed:
        candidates = [wheel for wheel in inputs.wheels if wheel.name == package.name]
        right = [wheel for wheel in candidates if same_version(wheel.version, package.version)]
        if not right:
            others = f" (it has {', '.join(sorted(wheel.version for wheel in candidates))})" if candidates else ""
            missing.append(f"{package.name} {package.version}{others}")
            continue
        fitting = [wheel for wheel in right if _fits(wheel, tags)]
        if not fitting:
            names = ", ".join(PurePosixPath(wheel.path).name for wheel in right)
            python = inputs.facts.base.python if inputs.facts.base else None
            message = f"{names} in {place} is not for this host (Python {python}, {inputs.facts.machine}"
            message += f", glibc {inputs.facts.glibc})" if inputs.facts.glibc else ")"
            hint = f"Fetch the wheel of {package.name} {package.version} for this Python and platform."
            problems.append(error("wheel-incompatible", message, hint))
        elif not any(wheel.sha256 in package.hashes for wheel in fitting):
            name = PurePosixPath(fitting[0].path).name
            message = (
                f"{name} in {place} has sha256 {fitting[0].sha256[:12]}…, which the profile's lock does not accept"
            )
            hint = "The file is damaged or is another build: fetch it again, or lock a profile of your own."
            problems.append(error("wheel-hash", message, hint))
    if missing:
        hint = "Fill the wheelhouse from the profile's lock: pip download --require-hashes --no-deps -r LOCK -d FOLDER."
        problems.append(error("wheel-missing", f"{place} lacks {some(missing)}", hint))
    return problems


def pick_wheel(wheels: Iterable[WheelInfo], package: LockedPackage, facts: HostFacts) -> WheelInfo | None:
    """The wheel of ``package`` that the host accepts and the lock names; the first in order of file names."""
    tags = host_tags(facts)
    fitting = [w for w in wheels if w.name == package.name and w.sha256 in package.hashes and _fits(w, tags)]
    return min(fitting, key=lambda wheel: wheel.path, default=None)


def _fits(wheel: WheelInfo, tags: frozenset[Tag]) -> bool:
    try:
        *_, wheel_tags = parse_wheel_filename(PurePosixPath(wheel.path).name)
    except (InvalidWheelFilename, InvalidVersion):
        return False
    return not tags.isdisjoint(wheel_tags)


def host_tags(facts: HostFacts) -> frozenset[Tag]:
    """Wheel tags that the base venv's CPython on this host accepts (PEP 425, PEP 600)."""
    base = usable_base(facts)
    python = Version(base.python).release if base is not None and base.python else (3, 0)
    version = (python[0], python[1])
    platforms = _platforms(facts)
    return frozenset(
        [
            *cpython_tags(version, platforms=platforms),
            *compatible_tags(version, f"cp{version[0]}{version[1]}", platforms),
        ]
    )


def _platforms(facts: HostFacts) -> list[str]:
    machine = facts.machine
    platforms = [f"linux_{machine}"]
    if facts.glibc is None:
        return platforms
    major, minor = (*Version(facts.glibc).release, 0)[:2]
    if major == 2:
        platforms += [f"manylinux_2_{number}_{machine}" for number in range(minor, 4, -1)]
        legacy = {"manylinux2014": 17, "manylinux2010": 12, "manylinux1": 5}
        platforms += [f"{name}_{machine}" for name, number in legacy.items() if minor >= number]
    return platforms


def _donor_problems(inputs: PlanInputs, needed: Sequence[LockedPackage]) -> list[Problem]:
    source = inputs.source
    place = f"{source.host}:{source.location}" if source.host else str(source.location)
    donor = inputs.donor
    venv = usable_base(donor) if donor is not None else None
    if donor is None or venv is None:
        why = donor.base.problem if donor is not None and donor.base is not None else None
        message = f"the donor {place} is not a venv to copy from" + (f": {why}" if why else "")
        return [error("donor-missing", message, "Set `source` to a venv whose packages match the profile.")]
    base = usable_base(inputs.facts)
    if base is not None and _minor(venv) != _minor(base):
        message = f"the donor {place} has Python {venv.python}, the base venv Python {base.python}"
        return [error("donor-python", message, "Extension modules of one do not load in the other: use another donor.")]
    if donor.machine != inputs.facts.machine:
        message = (
            f"the donor {place} is a {donor.machine} machine, {inputs.facts.hostname} a {inputs.facts.machine} one"
        )
        return [error("donor-machine", message, "Binaries of one do not run on the other: use another donor.")]
    shared = split(inputs, needed)
    return [*_donor_packages(inputs, place, shared), *_donor_engine(inputs, donor, place, shared)]


def _donor_packages(inputs: PlanInputs, place: str, shared: Split) -> list[Problem]:
    problems = []
    if shared.lacking:
        hint = "Install it there from the profile's lock, or take what is missing from elsewhere: --source index."
        problems.append(error("donor-lacks", f"the donor {place} lacks {some(shared.lacking)}", hint))
    if shared.editable:
        message = f"editable installs in the donor {place} cannot be copied: {some(shared.editable)}"
        hint = "Install them there as ordinary packages, or take them from elsewhere: --source index."
        problems.append(error("donor-editable", message, hint))
    if shared.rest and inputs.source.rest is not None:
        problems += [*_shop_problems(inputs, inputs.source.rest, shared.rest), *_uv_problems(inputs)]
    return problems


def _donor_engine(inputs: PlanInputs, donor: HostFacts, place: str, shared: Split) -> list[Problem]:
    engine, patch_set = donor.engine, inputs.patch_set
    taken = any(package.name == inputs.profile.engine for package in shared.donor)
    if engine is None or patch_set is None or engine.distribution != inputs.profile.engine or not taken:
        return []
    expected: dict[str, set[str | None]] = {
        patch.path: {patch.sha256_before, patch.sha256_after} for patch in patch_set.patches
    }
    # A new file that the donor's RECORD does not name stays there.
    expected |= {new.path: {None, new.sha256} for new in patch_set.new_files if new.path not in engine.added_files}
    edited = [path for path, found in engine.sha256.items() if path in expected and found not in expected[path]]
    hint = f"Reinstall {engine.distribution} {engine.version} there."
    if edited:
        message = f"the donor {place} has engine files edited by hand: {some(sorted(edited))}"
        return [error("donor-engine-edited", message, hint)]
    if engine.missing_files:
        message = f"the donor {place} lacks engine files that its RECORD names: {some(engine.missing_files)}"
        return [error("donor-engine-incomplete", message, hint)]
    return []


def _minor(venv: Venv) -> str:
    return ".".join((venv.python or "").split(".")[:2])
