"""Collecting a plan's inputs: what the controller has (profile, patch set, playbook, wheels), then what the host is."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from ddtree_deploy.agent.protocol import ProgressSink, silent
from ddtree_deploy.codec import dumps, from_dict
from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.inventory.load import Inventory
from ddtree_deploy.inventory.settings import Connection, HostSettings
from ddtree_deploy.patching.model import PatchSet
from ddtree_deploy.plan.donor_set import DONOR_PROFILE, ENGINE, donor_profile, empty_profile
from ddtree_deploy.plan.inputs import PlanInputs, PlanSettings, Playbook, Tool, WheelInfo
from ddtree_deploy.plan.problems import patch_set_fits
from ddtree_deploy.plan.source_choice import FROM, choose_source, donor_host, donor_of_facts, donor_place
from ddtree_deploy.plan.tools import controller_uv
from ddtree_deploy.profiles.model import Profile, Source

DEFAULT_PLAYBOOK = "provision"
FACTS_SCHEMA = 1

# Calls an operation of the agent: (op, params) -> result.
Call = Callable[[str, dict[str, Any]], dict[str, Any]]


@dataclass(frozen=True)
class Choices:
    """What the command line says over the inventory; None: as the inventory says."""

    profile: str | None = None
    playbook: str | None = None
    source: str | None = None  # index | index:URL | wheelhouse:FOLDER | donor:[HOST:]PATH
    without_gpu: bool = False
    donor: str | None = None  # [HOST:]PATH; `source` is then for what it lacks
    take_edited: bool = False


@dataclass(frozen=True)
class Prepared:
    """All of a plan's inputs but the host's facts. The profile that a donor is, is empty until its facts are known;
    ``patch_sets`` are then those to choose from."""

    host: HostSettings
    settings: PlanSettings
    profile: Profile
    patch_set: PatchSet | None
    playbook: Playbook
    source: Source
    wheels: list[WheelInfo] = field(default_factory=list)
    uv: Tool | None = None
    patch_sets: list[PatchSet] = field(default_factory=list)

    def facts_params(self) -> dict[str, Any]:
        """Parameters of the agent's ``facts`` for this plan."""
        return {
            "root": self.settings.root,
            "base": self.settings.base,
            "engine": self.profile.engine,
            "patch_files": sorted({path for patch_set in self._patch_sets() for path in patch_files(patch_set)}),
        }

    def inputs(self, facts: HostFacts, donor: HostFacts | None = None) -> PlanInputs:
        """The planner's inputs. Raises InputError ``donor-missing``, ``donor-without-torch``."""
        profile, patch_set = self.profile, self.patch_set
        if profile.name == DONOR_PROFILE and donor is not None:
            profile = donor_profile(facts, donor, donor_place(self.source))
            patch_set = next((found for found in self.patch_sets if patch_set_fits(found, profile)), None)
        return PlanInputs(
            facts=facts,
            settings=self.settings,
            profile=profile,
            patch_set=patch_set,
            playbook=self.playbook,
            source=self.source,
            wheels=self.wheels,
            donor=donor,
            uv=self.uv,
        )

    def index_urls(self) -> list[str]:
        """URLs of the indexes, the main one first, with the secrets that they are given by: never part of a plan."""
        return [url.reveal() for url in self.host.index_urls(self.source.rest or self.source)]

    def _patch_sets(self) -> list[PatchSet]:
        return [self.patch_set] if self.patch_set is not None else self.patch_sets


def prepare(
    host: HostSettings,
    choices: Choices,
    sink: ProgressSink = silent,
    inventory: Inventory | None = None,
    source: Source | None = None,
) -> Prepared:
    """Read what planning needs on the controller. Raises InputError for a bad profile, playbook, patch set or wheel,
    and ``donor-not-named``.

    ``source`` is one that is decided already; by default the choices and the inventory say it.
    """
    from ddtree_deploy.plan.playbook import load_playbook

    source = source or _chosen_source(host, choices, inventory)
    if choices.take_edited and source.kind != "donor":
        message = "it is about the files of a donor, and none is named"
        raise InputError(
            "donor-not-named", message, where="--take-edited", hint="Give --from HOST:/PATH, or leave it out."
        )
    profile = _profile(host, choices.profile, source)
    settings = host.to_plan_settings()
    if choices.without_gpu:
        settings = replace(settings, gpus=[])
    return Prepared(
        host=host,
        settings=settings,
        profile=profile,
        patch_set=_patch_set(profile),
        playbook=load_playbook(choices.playbook or DEFAULT_PLAYBOOK, [host.folder, host.folder / "playbooks"]),
        source=source,
        wheels=_wheels(source.rest or source, profile, sink),
        uv=controller_uv() if source.kind != "donor" or source.rest is not None else None,
        patch_sets=_engine_patch_sets() if profile.name == DONOR_PROFILE else [],
    )


def prepare_offline(
    host: HostSettings, choices: Choices, facts: HostFacts, donor: HostFacts | None, inventory: Inventory
) -> Prepared:
    """As :func:`prepare`, for saved facts. Donor facts name the donor where nothing else does.

    Raises InputError ``facts-without-donor`` and ``facts-of-another-donor``.
    """
    source = _chosen_source(host, choices, inventory)
    if donor is not None and source.kind != "donor":
        source = donor_of_facts(facts, donor, source if choices.source else None, choices.take_edited)
    if donor is None and source.kind == "donor":
        hint = "Give --donor-facts FILE (ddtree-deploy facts DONORHOST --base PATH --save FILE), or another --source."
        message = f"the packages of the donor {donor_place(source)} are not in the facts of the host"
        raise InputError("facts-without-donor", message, where="--facts", hint=hint)
    found = donor.base.path if donor is not None and donor.base is not None else None
    named = source.location if source.kind == "donor" else None
    if found and named and not named.startswith("~") and PurePosixPath(found) != PurePosixPath(named):
        message = f"the facts are about {found}, the donor is {donor_place(source)}"
        hint = f"Take them again (ddtree-deploy facts DONORHOST --base {named} --save FILE), or leave {FROM} out."
        raise InputError("facts-of-another-donor", message, where="--donor-facts", hint=hint)
    return prepare(host, choices, inventory=inventory, source=source)


def _chosen_source(host: HostSettings, choices: Choices, inventory: Inventory | None) -> Source:
    return choose_source(host, choices.source, choices.donor, inventory, choices.take_edited)


def _profile(host: HostSettings, name: str | None, source: Source) -> Profile:
    """The profile that is named; without one, and by its name, what the donor has."""
    from ddtree_deploy.profiles.locking import profile_for

    named = name or host.profile
    if named not in (None, DONOR_PROFILE):
        return profile_for(host, name, source.rest or source)
    if source.kind == "donor":
        return empty_profile()
    if named == DONOR_PROFILE:
        message = f"profile {DONOR_PROFILE} is what a donor has, and no donor is named"
        raise InputError("donor-not-named", message, where=host.where, hint="Give --from HOST:/PATH.")
    hint = "Set profile: for this host, a group of it, or under defaults; or give --profile NAME, or --from a donor."
    raise InputError("not-set", f"host {host.name} has no profile", where=host.where, hint=hint)


def facts_of_host(call: Call, host: HostSettings) -> HostFacts:
    """A host's facts with what its profile, if it has one, makes worth knowing."""
    params: dict[str, Any] = {"root": host.root, "base": host.base}
    if host.profile == DONOR_PROFILE:
        files = {path for patch_set in _engine_patch_sets() for path in patch_files(patch_set)}
        params.update(engine=ENGINE, patch_files=sorted(files))
    elif host.profile is not None:
        from ddtree_deploy.profiles.locking import profile_of

        profile = profile_of(host)
        params.update(engine=profile.engine, patch_files=patch_files(_patch_set(profile)))
    return collect_facts(call, params)


def save_facts(facts: HostFacts, file: Path) -> None:
    """Write facts for ``plan --facts``. Raises InputError ``facts-not-written``."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dumps(facts), "utf-8", "backslashreplace")  # names that are no UTF-8: as JSON escapes them
    except OSError as error:
        hint = "Name a file in a folder that you may write."
        raise InputError("facts-not-written", error.strerror or str(error), where=str(file), hint=hint) from error


def load_facts(file: Path) -> HostFacts:
    """Facts as ``facts --save`` writes them, or as ``facts --json`` prints those of one host. Raises InputError."""
    hint = "Make the file with: ddtree-deploy facts HOST --save FILE."
    try:
        data = json.loads(file.read_bytes())
    except OSError as error:
        raise InputError("facts-unreadable", error.strerror or str(error), where=str(file), hint=hint) from error
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError
        raise InputError("facts-not-json", f"not JSON: {error}", where=str(file), hint=hint) from error
    hosts = data.get("hosts") if isinstance(data, dict) else None
    if isinstance(hosts, list) and len(hosts) == 1 and isinstance(hosts[0], dict):
        data = hosts[0].get("facts")
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema is not None and schema != FACTS_SCHEMA:
        message = f"facts of schema {schema!r}; this version reads {FACTS_SCHEMA}"
        raise InputError("facts-schema", message, where=str(file), hint=hint)
    try:
        return from_dict(HostFacts, data, str(file))
    except InputError as error:
        message = f"not the facts of one host: {error.message}"
        where = str(error.where).replace(f"{file}.", f"{file}: ", 1)  # the file, then the field: facts.json: gpus[0]
        raise InputError("bad-document", message, where=where, hint=hint) from error


def host_for_facts(facts: HostFacts, inventory: Inventory) -> HostSettings:
    """The settings to plan saved facts with when no host is named: those of the host with the facts' name, else what
    the facts themselves say of root and base."""
    if facts.hostname in inventory.hosts:
        return inventory.host(facts.hostname)
    base = facts.base.path if facts.base is not None else None
    connection = Connection(kind="local", address=facts.hostname)
    return HostSettings(facts.hostname, (), connection, Path.cwd(), root=facts.root, base=base)


def check_facts(facts: HostFacts, settings: PlanSettings, file: str) -> None:
    """Raises InputError ``facts-of-another-base`` when saved facts were not taken for these settings."""
    base = facts.base.path if facts.base is not None else None
    for key, found, wanted in (("base", base, settings.base), ("root", facts.root, settings.root)):
        if found is not None and not wanted.startswith("~") and PurePosixPath(found) != PurePosixPath(wanted):
            message = f"the facts are about {key} {found}, host {settings.host} has {key}: {wanted}"
            hint = "Take the facts again (ddtree-deploy facts HOST --save FILE), or name no host to plan with theirs."
            raise InputError(f"facts-of-another-{key}", message, where=file, hint=hint)


def collect_facts(call: Call, params: dict[str, Any]) -> HostFacts:
    """The host's facts, in one round trip."""
    return from_dict(HostFacts, call("facts", params), "facts")


def donor_params(prepared: Prepared, inventory: Inventory | None) -> tuple[HostSettings, dict[str, Any]] | None:
    """Which host to ask for the donor's facts, and with what; None where the source is no donor."""
    source = prepared.source
    if source.kind != "donor":
        return None
    host = donor_host(source, prepared.host, inventory)
    return host, {**prepared.facts_params(), "root": host.root, "base": source.location or host.require("base")}


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


def _engine_patch_sets() -> list[PatchSet]:
    """The shipped ones for the engine, whatever its version."""
    from ddtree_deploy.patching.series import load_patch_set
    from ddtree_deploy.resources import data_dir

    names = sorted(path.parent.name for path in data_dir("patches").glob("*/series.yaml"))
    return [found for found in map(load_patch_set, names) if found.distribution == ENGINE]


def _wheels(source: Source, profile: Profile, sink: ProgressSink) -> list[WheelInfo]:
    if source.kind != "wheelhouse" or source.location is None:
        return []
    from ddtree_deploy.profiles.wheelhouse import read_wheelhouse

    return read_wheelhouse(Path(source.location), profile.packages, sink)
