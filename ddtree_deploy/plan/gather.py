"""Collecting a plan's inputs: what the controller has (profile, patch set, playbook, wheels), then what the host is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddtree_deploy.codec import from_dict
from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.inventory.load import Inventory
from ddtree_deploy.inventory.settings import HostSettings, split_donor
from ddtree_deploy.patching.model import PatchSet
from ddtree_deploy.plan.inputs import PlanInputs, PlanSettings, Playbook, WheelInfo
from ddtree_deploy.profiles.model import Profile, Source

DEFAULT_PLAYBOOK = "provision"

# Calls an operation of the agent: (op, params) -> result.
Call = Callable[[str, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Choices:
    """What the command line says over the inventory; None: as the inventory says."""

    profile: str | None = None
    playbook: str | None = None
    source: str | None = None  # index | index:URL | wheelhouse:FOLDER | donor:[HOST:]PATH
    base: str | None = None
    without_gpu: bool = False


@dataclass(frozen=True)
class Prepared:
    """All of a plan's inputs but the host's facts."""

    host: HostSettings
    settings: PlanSettings
    profile: Profile
    patch_set: PatchSet | None
    playbook: Playbook
    source: Source
    wheels: list[WheelInfo] = field(default_factory=list)

    def facts_params(self) -> dict[str, Any]:
        """Parameters of the agent's ``facts`` for this plan."""
        return {
            "root": self.settings.root,
            "base": self.settings.base,
            "engine": self.profile.engine,
            "patch_files": patch_files(self.patch_set),
        }

    def inputs(self, facts: HostFacts, donor: HostFacts | None = None) -> PlanInputs:
        return PlanInputs(
            facts=facts,
            settings=self.settings,
            profile=self.profile,
            patch_set=self.patch_set,
            playbook=self.playbook,
            source=self.source,
            wheels=self.wheels,
            donor=donor,
        )


def prepare(host: HostSettings, choices: Choices) -> Prepared:
    """Read what planning needs on the controller. Raises InputError for a bad profile, playbook, patch set or wheel."""
    from ddtree_deploy.plan.playbook import load_playbook
    from ddtree_deploy.profiles.loader import load_profile

    if choices.base is not None:
        host = replace(host, base=choices.base)
    profile = load_profile(choices.profile or host.require("profile"))
    source = parse_source(choices.source) if choices.source else host.plan_source()
    settings = host.to_plan_settings()
    if choices.without_gpu:
        settings = replace(settings, gpus=[])
    return Prepared(
        host=host,
        settings=settings,
        profile=profile,
        patch_set=_patch_set(profile),
        playbook=load_playbook(choices.playbook or DEFAULT_PLAYBOOK),
        source=source,
        wheels=_wheels(source),
    )


def collect_facts(call: Call, params: dict[str, Any]) -> HostFacts:
    """The host's facts, in one round trip."""
    return from_dict(HostFacts, call("facts", params), "facts")


def donor_params(prepared: Prepared, inventory: Inventory | None) -> tuple[HostSettings, dict[str, Any]] | None:
    """Which host to ask for the donor's facts, and with what; None where the source is no donor."""
    source = prepared.source
    if source.kind != "donor":
        return None
    host = prepared.host
    if source.host is not None:
        if inventory is None:
            raise InputError("unknown-host", f"donor host {source.host} needs an inventory", hint="Give --inventory.")
        host = inventory.host(source.host)
    params = {**prepared.facts_params(), "root": host.root, "base": source.location or host.require("base")}
    return host, params


def parse_source(text: str) -> Source:
    """``--source``: ``index``, ``index:URL``, ``wheelhouse:FOLDER``, ``donor:PATH`` or ``donor:HOST[:PATH]``."""
    kind, _, place = text.partition(":")
    if kind == "index":
        return Source(kind="index", location=place or None)
    if kind == "wheelhouse" and place:
        return Source(kind="wheelhouse", location=str(Path(place).expanduser().absolute()))
    if kind == "donor" and place:
        host, path = split_donor(place)
        return Source(kind="donor", location=path, host=host)
    raise InputError(
        "bad-source",
        f"{text!r} is not a source",
        where="--source",
        hint="index, index:URL, wheelhouse:FOLDER, donor:/PATH or donor:HOST:/PATH",
    )


def patch_files(patch_set: PatchSet | None) -> list[str]:
    """The engine's files that the facts should hash, relative to site-packages."""
    if patch_set is None:
        return []
    return [*(patch.path for patch in patch_set.patches), *(new.path for new in patch_set.new_files)]


def _patch_set(profile: Profile) -> PatchSet | None:
    if profile.patch_set is None:
        return None
    from ddtree_deploy.patching.series import load_patch_set

    return load_patch_set(profile.patch_set)


def _wheels(source: Source) -> list[WheelInfo]:
    if source.kind != "wheelhouse" or source.location is None:
        return []
    from ddtree_deploy.profiles.wheelhouse import read_wheelhouse

    return read_wheelhouse(Path(source.location))
