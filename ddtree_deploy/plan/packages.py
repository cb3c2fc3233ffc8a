"""The package diff: what a profile changes in a base venv, and the reason for each package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ddtree_deploy.facts.model import Package, Venv
from ddtree_deploy.plan import bound
from ddtree_deploy.plan.model import PackageChange, Problem
from ddtree_deploy.profiles.model import LockedPackage, Profile
from ddtree_deploy.versions import same_version

# Packages of other frameworks that load NVIDIA's wheels of one CUDA major: jax-cuda12-plugin, cupy-cuda12x.
_OTHER_CUDA_USER = re.compile(r"-cuda(\d{2})(x|-|$)")


@dataclass(frozen=True)
class PackageDiff:
    changes: list[PackageChange] = field(default_factory=list)  # sorted by name
    keep: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def from_source(self) -> list[PackageChange]:
        """What the source has to deliver."""
        return [change for change in self.changes if change.change != "remove"]


def diff_packages(profile: Profile, locked: Sequence[LockedPackage], base: Venv) -> PackageDiff:
    """Compare the packages that ``profile`` locks for this host with those of ``base``.

    A locked package is added, replaced or kept. A package that the profile does not lock stays, unless it cannot work
    beside the new torch or CUDA, or is another name for a locked one: then it is removed.
    """
    return _Differ(profile, locked, base).run()


def installed_tag(package: Package) -> str | None:
    """The package's ABI tag, from the facts or from its version's local part (``2.9.1+cu128``)."""
    local = _local(package.version)
    return package.abi_tag or (local if local and (local == "cpu" or bound.cuda_major(local)) else None)


def same_tag(left: str | None, right: str | None) -> bool:
    """Equal ABI tags, or one of them unknown. Of some packages only the CUDA major is known (``cu13``): it decides."""
    if left is None or right is None:
        return True
    short, long = sorted((left, right), key=len)
    return short == long or (re.fullmatch(r"cu\d{2}", short) is not None and long.startswith(short))


class _Differ:
    def __init__(self, profile: Profile, locked: Sequence[LockedPackage], base: Venv) -> None:
        self.profile = profile
        self.locked = {package.name: package for package in locked}
        self.installed = {package.name: package for package in base.packages}
        torch = self.locked.get(bound.TORCH)
        self.target_tag = (torch.abi_tag if torch else None) or profile.abi_tag
        old = self.installed.get(bound.TORCH)
        self.old_tag = installed_tag(old) if old else None
        self.torch_moves = torch is not None and old is not None and not self._same_build(old, torch)

    def run(self) -> PackageDiff:
        changes: dict[str, PackageChange] = {}
        for name, package in self.locked.items():
            change = self._locked_change(package)
            if change is not None:
                changes[name] = change
        for name, installed in self.installed.items():
            if name not in self.locked:
                reason = self._removal_reason(installed)
                if reason is not None:
                    changes[name] = self._change("remove", name, reason)
        self._lay_anew_what_shares_files(changes)
        keep = sorted(set(self.installed) - set(changes))
        return PackageDiff([changes[name] for name in sorted(changes)], keep, self._problems(changes, keep))

    def _locked_change(self, wanted: LockedPackage) -> PackageChange | None:
        installed = self.installed.get(wanted.name)
        if installed is None:
            return self._change("add", wanted.name, self._reason_to_add(wanted))
        if installed.editable:
            reason = f"editable install of {installed.editable}: a release owns its files"
            return self._change("replace", wanted.name, reason)
        if not self._same_build(installed, wanted):
            return self._change("replace", wanted.name, self._reason_to_replace(installed, wanted))
        moves = self._moves_with_torch(installed)
        return self._change("replace", wanted.name, moves) if moves is not None else None

    def _same_build(self, installed: Package, wanted: LockedPackage) -> bool:
        old, new = installed_tag(installed), self._wanted_tag(wanted)
        same = same_version(installed.version, wanted.version) and same_tag(old, new)
        return same and installed.disagrees is None

    def _moves_with_torch(self, installed: Package) -> str | None:
        if not self.torch_moves or installed.name == bound.TORCH:
            return None
        if bound.torch_bound(installed.name):
            return "bound to torch's C++ ABI: moves with torch"
        if bound.links_torch(installed):
            return "its shared objects link to torch's libraries: moves with torch"
        return None

    def _wanted_tag(self, wanted: LockedPackage) -> str | None:
        if wanted.abi_tag is None and wanted.name == bound.TORCH and bound.cuda_major(self.profile.abi_tag):
            return self.profile.abi_tag
        return wanted.abi_tag

    def _reason_to_add(self, wanted: LockedPackage) -> str:
        if wanted.name == self.profile.engine:
            return wanted.reason or "profile pins"
        old = sorted(bound.aliases(wanted.name) & set(self.installed))
        if old:
            return f"takes the place of {old[0]}: two names for one thing"
        if bound.cuda_library(wanted.name) and self._major_changes():
            return f"CUDA major changes {self.old_tag} -> {self.target_tag}"
        return wanted.reason or f"new requirement of {self.profile.engine}"

    def _reason_to_replace(self, installed: Package, wanted: LockedPackage) -> str:
        if installed.disagrees is not None:
            return f"its files are of {installed.disagrees}, whatever its metadata says"
        old, new = installed_tag(installed), self._wanted_tag(wanted)
        if bound.cuda_major(old) and bound.cuda_major(new) and bound.cuda_major(old) != bound.cuda_major(new):
            return f"CUDA major changes {old} -> {new}"
        if same_version(installed.version, wanted.version):
            return f"CUDA build changes {old} -> {new}"
        if bound.cuda_library(wanted.name) and self._major_changes():
            return f"CUDA major changes {self.old_tag} -> {self.target_tag}"
        return self._moves_with_torch(installed) or wanted.reason or "profile pins"

    def _removal_reason(self, package: Package) -> str | None:
        twins = sorted(bound.aliases(package.name) & set(self.locked))
        if twins:
            return f"two names for one thing: {twins[0]} takes its place"
        major, target = bound.library_major(package.name, installed_tag(package)), bound.cuda_major(self.target_tag)
        built_for_cuda = bound.cuda_library(package.name) or bound.torch_bound(package.name)
        if bound.TORCH in self.locked and built_for_cuda and major and target and major != target:
            return f"for CUDA {major}, the release is {self.target_tag}: two CUDA runtimes in one process"
        torch = self.installed.get(bound.TORCH)
        if self.torch_moves and torch is not None:
            without = "the profile has no build of it for the new one"
            if bound.torch_bound(package.name):
                return f"bound to the C++ ABI of torch {torch.version}, and {without}"
            if bound.links_torch(package):
                return f"its shared objects link to the libraries of torch {torch.version}, and {without}"
        linked = bound.linked_majors(package)
        if self._major_changes() and linked and target not in linked:
            return f"its shared objects link to libraries of CUDA {max(linked)}, the release is {self.target_tag}"
        return None

    def _lay_anew_what_shares_files(self, changes: dict[str, PackageChange]) -> None:
        """nvidia-nccl-cu12 and -cu13 both own ``nvidia/nccl/lib/libnccl.so.2``: removing one by its RECORD takes the
        file from the other, so a kept twin of a removed package is laid again."""
        for removed in [change for change in changes.values() if change.change == "remove"]:
            for name in self.locked:
                twin = bound.stem(name) == bound.stem(removed.name) or name in bound.aliases(removed.name)
                if twin and name not in changes:
                    changes[name] = self._change("replace", name, f"shares files with {removed.name}, which is removed")

    def _change(self, change: str, name: str, reason: str) -> PackageChange:
        installed, wanted = self.installed.get(name), self.locked.get(name)
        result = PackageChange(change=change, name=name, reason=reason)
        if installed is not None:
            result = replace(result, old_version=installed.version, old_abi=installed_tag(installed))
        if wanted is not None:
            result = replace(result, new_version=wanted.version, new_abi=self._wanted_tag(wanted))
        return result

    def _major_changes(self) -> bool:
        old, new = bound.cuda_major(self.old_tag), bound.cuda_major(self.target_tag)
        return old is not None and new is not None and old != new

    def _problems(self, changes: dict[str, PackageChange], keep: list[str]) -> list[Problem]:
        return [*self._torch_problems(), *self._record_problems(changes), *self._removal_notes(changes, keep)]

    def _torch_problems(self) -> list[Problem]:
        if bound.TORCH in self.locked:
            return []
        name, tag = self.profile.name, self.profile.abi_tag
        if bound.TORCH not in self.installed:
            message = f"profile {name} does not lock torch, and the base venv has none"
            return [Problem("error", "torch-missing", message, "Install torch into the base venv, or lock it.")]
        if bound.cuda_major(tag) and self.old_tag != tag:
            old = f"torch {self.installed[bound.TORCH].version} ({self.old_tag or 'build unknown'})"
            message = f"the base venv has {old}, profile {name} is for {tag} and does not lock torch"
            return [Problem("error", "torch-not-moved", message, f"Use a profile that locks a {tag} build of torch.")]
        return []

    def _record_problems(self, changes: dict[str, PackageChange]) -> list[Problem]:
        leaving = [name for name, change in changes.items() if change.change != "add"]
        names = sorted(name for name in leaving if not _files_known(self.installed[name]))
        if not names:
            return []
        message = f"{', '.join(names)} would be replaced, but there is no whole RECORD of the files installed"
        hint = "Reinstall it in the base venv with pip or uv, which write a RECORD."
        return [Problem("error", "package-without-record", message, hint)]

    def _removal_notes(self, changes: dict[str, PackageChange], keep: list[str]) -> list[Problem]:
        problems = []
        lost = [c.name for c in changes.values() if c.change == "remove" and self._is_lost(self.installed[c.name])]
        lost = sorted(name for name in lost if not bound.aliases(name) & set(self.locked))
        if lost:
            message = f"the release will not have {', '.join(lost)}: built for the base venv's torch or CUDA"
            hint = "Add builds for the new torch to the profile if the service needs them; the base venv keeps its own."
            problems.append(Problem("warning", "bound-package-removed", message, hint))
        target = bound.cuda_major(self.target_tag)
        users = [name for name in keep if (m := _OTHER_CUDA_USER.search(name)) and int(m.group(1)) != target]
        if target and users and any(bound.cuda_library(c.name) for c in changes.values() if c.change == "remove"):
            message = (
                f"{', '.join(users)} loads CUDA libraries that the release will not have (it is {self.target_tag})"
            )
            problems.append(Problem("warning", "other-cuda-user", message, "It keeps working in the base venv."))
        return problems

    def _is_lost(self, package: Package) -> bool:
        """Whether people will miss it, unlike CUDA's own libraries."""
        return bound.torch_bound(package.name) or (bool(package.links) and not bound.cuda_library(package.name))


def _files_known(package: Package) -> bool:
    """Whether the files to remove can be told: by RECORD, or by the folders that a known package has."""
    known = bound.torch_bound(package.name) or bound.cuda_library(package.name)
    return package.record or package.bare or known or package.editable is not None


def _local(version: str) -> str | None:
    _, _, local = version.partition("+")
    return local or None
