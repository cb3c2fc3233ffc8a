"""Bringing a donor's packages from its host to the target's: directly, else by way of the controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddtree_deploy.agent.protocol import ProgressSink, silent
from ddtree_deploy.donor.records import LAST, encode_json
from ddtree_deploy.errors import DeployError, StepError
from ddtree_deploy.inventory.settings import HostSettings
from ddtree_deploy.plan.model import Action, Plan
from ddtree_deploy.sessions import Session
from ddtree_deploy.units import human_bytes

_ROUNDS = 3
# Ends of the direct way after which the other way is tried: it goes on where the first one was.
_OTHER_WAY = ("donor-unreachable", "transfer-interrupted")


@dataclass(frozen=True)
class Brought:
    """A staging tree on the target; ``paths``: the names that the donor's files may call their venv by."""

    staging: str
    site: str
    paths: list[str]
    notes: list[dict[str, Any]] = field(default_factory=list)

    def to_params(self) -> dict[str, Any]:
        """As ``plan.apply`` takes it under ``donor``."""
        return {"staging": self.staging, "site": self.site, "paths": self.paths, "notes": self.notes}


@dataclass(frozen=True)
class Way:
    """The donor's host as the target could reach it over ssh; None where it is this machine."""

    address: str
    port: int | None = None
    user: str | None = None

    def to_params(self) -> dict[str, Any]:
        return {"address": self.address, "port": self.port, "user": self.user}


def action_to_bring_for(plan: Plan) -> Action | None:
    """The overlay that takes packages from a donor on another host, if there is one."""
    for action in plan.actions:
        source = action.params.get("source") if action.step == "overlay" else None
        if source and source["kind"] == "donor" and source["host"] and action.params["install"]:
            return action
    return None


def way_to(donor: HostSettings, target: HostSettings) -> Way | None:
    """How ``target`` could reach ``donor`` without us: both have to be reached over ssh themselves."""
    if donor.connection.kind != "ssh" or target.connection.kind != "ssh":
        return None
    from ddtree_deploy.transport import connection_settings
    from ddtree_deploy.transport.hops import chain

    hop = chain(connection_settings(donor))[-1]
    return Way(hop.address, hop.port, hop.user)


def bring(
    action: Action, root: str, base: str, donor: Session, target: Session, way: Way | None, sink: ProgressSink = silent
) -> Brought:
    """Copy the packages of ``action`` to the target; what its disk holds already is not sent.

    Raises what the agents raise: DriftError ``donor-changed``; StepError ``donor-damaged``, ``source-lacks``,
    ``source-incomplete``, ``no-space`` ...; LockedError. What has arrived stays for a next try.
    """
    source, params = action.params["source"], action.params
    found = donor.call(
        "donor.inventory",
        {
            "path": source["location"],
            "packages": {entry["name"]: entry["version"] for entry in params["install"]},
            "take_edited": source.get("take_edited", False),
            "fingerprint": params.get("donor_fingerprint"),
        },
        sink,
    )
    compress = bool(source.get("compress"))
    common = {"root": root, "base": base, "manifest": found["manifest"]}
    notes = list(found["notes"])
    if way is not None and found["archive"]:
        agent = {key: found[key] for key in ("python", "archive", "boot_id")}
        request = {**common, "route": way.to_params(), "donor": agent, "compress": compress}
        try:
            done = target.call("donor.pull", request, sink)
            return _brought(done, notes, done["bytes"], f"directly from {way.address}")
        except DeployError as error:
            if error.id not in _OTHER_WAY:
                raise
            message = f"{error.message}; the donor's files come by way of this machine"
            notes.append({"severity": "note", "id": "not-directly", "message": message})
    done, sent = _relay(common, compress, donor, target, sink)
    return _brought(done, notes, sent, "by way of this machine")


def _relay(
    common: Mapping[str, Any], compress: bool, donor: Session, target: Session, sink: ProgressSink
) -> tuple[dict[str, Any], int]:
    """From one agent to the other, without a file in between. Returns what the target made of it, and bytes sent."""
    manifest, sent = common["manifest"], 0
    for _ in range(_ROUNDS):
        wanted = target.call("donor.want", common, sink)
        if wanted["ready"]:
            return {"staging": wanted["digest"], "site": manifest["site"], "names": manifest["names"]}, sent
        with target.upload("donor.receive", {"root": common["root"], "digest": wanted["digest"]}, sink) as upload:
            if wanted["files"]:
                request = {"venv": manifest["venv"], "files": wanted["files"], "compress": compress}
                donor.stream("donor.send", request, upload.write, sink)
            upload.write(encode_json(LAST, {"problem": None}))
            done = upload.result()
        sent += wanted["bytes"]
        if "again" not in done:
            return done, sent
    raise StepError("transfer-garbled", "files of the donor arrive otherwise than they are sent, again and again")


def _brought(done: dict[str, Any], notes: list[dict[str, Any]], sent: int, how: str) -> Brought:
    message = f"{human_bytes(sent)} came {how}" if sent else "all of the donor's files were on the host already"
    brought = {"severity": "note", "id": "donor-brought", "message": message}
    return Brought(done["staging"], done["site"], done["names"], [*notes, brought])
