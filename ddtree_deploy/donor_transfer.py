"""Bringing a donor's packages from its host to another one, by way of the controller."""

from __future__ import annotations

import base64
import hashlib
import tempfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_deploy.agent.protocol import Progress, ProgressSink, silent
from ddtree_deploy.errors import StepError
from ddtree_deploy.plan.model import Plan
from ddtree_deploy.sessions import Session


@dataclass(frozen=True)
class Brought:
    """``blobs``: sha256 -> path on the target; ``packages``: name -> sha256 of its tar; ``site``: the donor's
    site-packages, relative to its venv; ``paths``: the names that the donor's files may call it by."""

    blobs: dict[str, str]
    packages: dict[str, str]
    site: str
    paths: list[str]

    def to_params(self) -> dict[str, Any]:
        """As ``plan.apply`` takes it under ``donor``."""
        return {"site": self.site, "paths": self.paths, "packages": self.packages}


def packages_to_bring(plan: Plan) -> dict[str, str]:
    """{package: version}: what the plan takes from a donor on another host."""
    for action in plan.actions:
        source = action.params.get("source") if action.step == "overlay" else None
        if source and source["kind"] == "donor" and source["host"]:
            return {entry["name"]: entry["version"] for entry in action.params["install"]}
    return {}


def bring_packages(
    path: str, packages: Mapping[str, str], donor: Session, target: Session, root: str, sink: ProgressSink = silent
) -> Brought:
    """Copy ``packages`` of the venv ``path`` to the blobs of ``root`` on ``target``; what is there already stays.

    Raises what the two agents raise (``source-lacks``, ``source-incomplete``, ``no-space`` ...) and StepError
    ``donor-changed`` when a package is not what it was when its digest was taken.
    """
    described = donor.call("donor.digest", {"path": path, "packages": dict(packages)}, sink)
    digests: dict[str, dict[str, Any]] = described["packages"]
    answer = target.call("blob.missing", {"root": root, "blobs": {d["sha256"]: d["size"] for d in digests.values()}})
    missing = set(answer["missing"])
    total = sum(d["size"] for d in digests.values() if d["sha256"] in missing)
    done = 0
    with tempfile.TemporaryDirectory(prefix="ddtree-donor-") as folder:
        for name, digest in digests.items():
            if digest["sha256"] not in missing:
                continue
            file = Path(folder) / f"{name}.tar"
            donor.call("donor.open", {"path": path, "name": name, "version": packages[name]})
            done = _fetch(donor, file, name, digest["sha256"], done, total, sink)
            target.put_blobs([file], root)
            file.unlink()
    sink(Progress("donor", "", done, total, finished=True))
    packs = {name: d["sha256"] for name, d in digests.items()}
    return Brought(dict(answer["paths"]), packs, described["site"], described["paths"])


def _fetch(donor: Session, file: Path, name: str, sha256: str, done: int, total: int, sink: ProgressSink) -> int:
    found = hashlib.sha256()
    with file.open("wb") as stream:
        while not (answer := donor.call("donor.read", {}))["end"]:
            piece = zlib.decompress(base64.b64decode(answer["data"]))
            found.update(piece)
            stream.write(piece)
            done += len(piece)
            sink(Progress("donor", name, done, total))
    if found.hexdigest() != sha256:
        message = f"{name} changed in the donor while it was read"
        raise StepError("donor-changed", message, hint="Let no installer run there, and try again.")
    return done
