"""How much disk a release needs, and whether the host has it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import PackageChange, Problem
from ddtree_deploy.plan.problems import error
from ddtree_deploy.plan.sizes import MIB, installed_bytes, small_bytes
from ddtree_deploy.profiles.model import Source
from ddtree_deploy.units import human_bytes

_SLACK = 64 * MIB  # patched files, rewritten scripts, records, the journal
_BYTES_A_LINKED_FILE = 512  # folders and directory entries of a clone that shares its data


@dataclass(frozen=True)
class Need:
    """Bytes needed under the root: for the clone, for the packages the source delivers, and for the release's own
    copies of files that it would share if no command ran in it."""

    clone: int
    packages: int
    own: int = 0

    @property
    def total(self) -> int:
        return self.clone + self.packages + self.own + _SLACK


def same_device(facts: HostFacts) -> bool:
    """Whether root and base are on one file system, so that a clone can share the base's data."""
    if facts.root_disk is None or facts.base_disk is None:
        return True
    return facts.root_disk.device == facts.base_disk.device


def needed(inputs: PlanInputs, changes: Iterable[PackageChange]) -> Need:
    """Estimate the space. A clone on the base's file system shares its data; across file systems it copies it."""
    base = inputs.facts.base
    clone = 0
    if base is not None:
        clone = base.files * _BYTES_A_LINKED_FILE if same_device(inputs.facts) else base.bytes
    brought = [change for change in changes if change.change != "remove"]
    own = _own(inputs, [change.name for change in brought])
    if inputs.source.kind == "donor" and inputs.source.host is None and _donor_shares(inputs):
        brought = [change for change in brought if change.source in [source.kind for source in _shops(inputs)]]
    names = {change.name for change in brought}
    packages = installed_bytes(names)
    if any(source.kind == "wheelhouse" for source in _shops(inputs)):  # wheels are sent to the host, and unpacked there
        packages += sum(wheel.bytes for wheel in inputs.wheels if wheel.name in names)
    return Need(clone, packages, own)


def _own(inputs: PlanInputs, brought: list[str]) -> int:
    """What commands cost: before one runs, files that are hard links become files of the release's own."""
    base, disk = inputs.facts.base, inputs.facts.root_disk
    commands = [step for step in inputs.playbook.steps if step.step == "command" and step.applies(inputs.profile.gpu)]
    if not commands or (disk is not None and disk.reflink):
        return 0
    of_base = 0
    if base is not None and same_device(inputs.facts):  # else the clone is a copy already
        of_base = base.bytes if base.small_bytes is None else base.small_bytes
    return of_base + small_bytes(brought)


def _shops(inputs: PlanInputs) -> list[Source]:
    """The sources that are no donor."""
    return [source for source in (inputs.source, inputs.source.rest) if source is not None and source.kind != "donor"]


def _donor_shares(inputs: PlanInputs) -> bool:
    donor = inputs.donor.base_disk if inputs.donor is not None else None
    root = inputs.facts.root_disk
    return donor is not None and root is not None and donor.device == root.device


def space_problems(inputs: PlanInputs, need: Need) -> list[Problem]:
    facts, disk = inputs.facts, inputs.facts.root_disk
    if disk is None:
        return []
    problems = []
    if not same_device(facts) and facts.base_disk is not None:
        message = (
            f"{facts.root} ({disk.filesystem}) and the base venv ({facts.base_disk.filesystem}) are on different file "
            f"systems: no hard links, {human_bytes(need.clone)} are copied"
        )
        hint = "A `root` on the base venv's file system makes the clone a matter of seconds."
        problems.append(Problem("note", "other-file-system", message, hint))
    if need.own:
        message = (
            f"a command of the playbook may write into files: about {human_bytes(need.own)} are copied before it, "
            "which the release would share otherwise"
        )
        problems.append(Problem("note", "command-copies", message))
    if disk.free_bytes < need.total:
        own = f", {human_bytes(need.own)} copies for its commands" if need.own else ""
        message = (
            f"no space on {disk.path} ({disk.filesystem}): about {human_bytes(need.total)} are needed "
            f"({human_bytes(need.clone)} clone, {human_bytes(need.packages)} packages{own}, {human_bytes(_SLACK)} to "
            f"spare), {human_bytes(disk.free_bytes)} are free, {human_bytes(need.total - disk.free_bytes)} are missing"
        )
        hint = "Free it (ddtree-deploy prune HOST --keep 1 removes old releases), or set `root` to another disk."
        problems.append(error("no-space", message, hint))
    return problems
