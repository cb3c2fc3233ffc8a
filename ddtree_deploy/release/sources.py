"""The venv that an overlay takes packages from: a donor as it is, or a staging venv that uv fills. Agent-safe.

A staging venv lives in ``cache/staging/<digest>``; the digest is that of the packages, their hashes and the Python, so
the next release with the same packages finds it ready. It is built as ``.partial`` and renamed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional

from packaging.utils import canonicalize_name

from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.release.distributions import find_distributions, find_site
from ddtree_deploy.release.donor import same_public
from ddtree_deploy.release.files import make_folders, remove_file, remove_tree, replace_file, sync_folder
from ddtree_deploy.release.packing import unpack
from ddtree_deploy.release.uv import Uv, executable, link_mode
from ddtree_deploy.steps.context import StepContext

_DONE = ".ddtree-staging.json"  # written last
_WHEEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl\Z")


@dataclass(frozen=True)
class Wanted:
    """A package to take: ``hashes`` (hex sha256) are all the wheels that the lock accepts."""

    name: str  # normalized
    version: str
    hashes: List[str] = field(default_factory=list)


@dataclass(frozen=True)
class SourceVenv:
    """``digest`` of a staging venv, None for a donor. ``aliases``: paths under which it was known when it was made.
    ``fresh``: made by uv from wheels, for us alone."""

    path: str
    site: str
    digest: Optional[str] = None
    aliases: List[str] = field(default_factory=list)
    fresh: bool = False


def prepare(params: Dict[str, Any], wanted: List[Wanted], context: StepContext) -> SourceVenv:
    """The venv to take ``wanted`` from, per the overlay action's ``params`` (source, wheels, uv)."""
    source = params["source"]
    if source["kind"] == "donor":
        return _remote_donor(source, wanted, context) if source.get("host") else _donor(source)
    return _staging(params, wanted, context)


def staging_digest(kind: str, python: str, wanted: List[Wanted]) -> str:
    """Hex sha256 over what decides what a staging venv holds."""
    packages = sorted([package.name, package.version, *sorted(package.hashes)] for package in wanted)
    text = json.dumps([1, kind, python, packages], ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _donor(source: Dict[str, Any]) -> SourceVenv:
    path = str(source["location"])
    if not os.path.isfile(os.path.join(path, "pyvenv.cfg")):
        raise InputError("donor-missing", f"the donor {path} is not a venv: it has no pyvenv.cfg", where=path)
    real = os.path.realpath(path)
    return SourceVenv(real, find_site(real, "donor-missing"), aliases=[path])


def _remote_donor(source: Dict[str, Any], wanted: List[Wanted], context: StepContext) -> SourceVenv:
    """A folder that stands for the donor, unpacked from the tars that the controller brought (see ``packing``)."""
    paths = [str(path) for path in context.donor.get("paths") or []]
    place = f"{source['host']}:{paths[0] if paths else source['location']}"
    packs: Dict[str, str] = context.donor.get("packages") or {}
    lacking = sorted(package.name for package in wanted if package.name not in packs)
    if lacking:
        raise StepError(
            "donor-not-brought",
            f"the packages of the donor {place} were not brought here: {', '.join(lacking[:5])}",
            hint="provision again, or use a donor on the host itself, an index or a wheelhouse",
        )
    site = str(context.donor["site"])
    names = sorted((package.name, package.version, packs[package.name]) for package in wanted)
    digest = hashlib.sha256(json.dumps([1, "donor", site, names]).encode("ascii")).hexdigest()
    final, building = context.layout.staging(digest), context.layout.stagings / f"{digest}.partial"
    if not (final / _DONE).is_file():
        remove_tree(final)
        remove_tree(building)
        make_folders(building / site)
        replace_file(building / "pyvenv.cfg", f"home = {place}\n".encode("utf-8", "surrogateescape"))
        for number, (name, _, sha256) in enumerate(names):
            context.progress(Progress("unpack", name, done_files=number, total_files=len(names)))
            unpack(blob(context, sha256, name), str(building))
        replace_file(building / _DONE, json.dumps({"packages": names, "donor": place}).encode("ascii") + b"\n")
        os.rename(building, final)
        sync_folder(context.layout.stagings)
    for _, _, sha256 in names:  # unpacked, so they would only take space
        context.blobs.pop(sha256, None)
        remove_file(context.layout.blob(sha256))
    return SourceVenv(str(final), site, digest, paths)


def _staging(params: Dict[str, Any], wanted: List[Wanted], context: StepContext) -> SourceVenv:
    python = os.path.realpath(context.partial / "bin" / "python")
    kind = str(params["source"]["kind"])
    digest = staging_digest(kind, python, wanted)
    final = context.layout.staging(digest)
    building = context.layout.stagings / f"{digest}.partial"
    if not _ready(str(final), wanted):
        remove_tree(final)
        remove_tree(building)
        context.layout.stagings.mkdir(parents=True, exist_ok=True)
        try:
            _fill(str(building), params, wanted, context)
            _require_complete(str(building), wanted)
        except BaseException:
            with contextlib.suppress(OSError):  # what fails here, the next run makes good
                remove_tree(building)
            raise
        document = {"packages": {package.name: package.version for package in wanted}, "python": python, "kind": kind}
        replace_file(building / _DONE, json.dumps(document, indent=1, sort_keys=True).encode("utf-8") + b"\n")
        os.rename(building, final)
        sync_folder(context.layout.stagings)
    return SourceVenv(str(final), find_site(str(final)), digest, [str(building)], fresh=True)


def _fill(building: str, params: Dict[str, Any], wanted: List[Wanted], context: StepContext) -> None:
    kind = str(params["source"]["kind"])
    log = context.log("uv.log")
    replace_file(log, b"")
    uv = Uv(_uv_path(params, context), str(log), context.indexes if kind == "index" else [], kind)
    uv.run(["venv", "--no-project", "--python", str(context.partial / "bin" / "python"), building])
    requirements = os.path.join(building, "requirements.txt")
    replace_file(requirements, _requirements(wanted))
    arguments = ["pip", "install", "--python", f"{building}/bin/python", "--no-deps", "--require-hashes", "--no-build"]
    arguments += ["--link-mode", link_mode(building), "--requirement", requirements]
    if kind == "wheelhouse":
        arguments += ["--no-index", "--find-links", _wheels(building, params, context)]
    uv.run(arguments, _watcher(building, len(wanted), int(params.get("bytes") or 0), context))
    for name in ("wheels", "requirements.txt"):
        remove_tree(os.path.join(building, name))


def _requirements(wanted: List[Wanted]) -> bytes:
    lines = []
    for package in sorted(wanted, key=lambda package: package.name):
        hashes = "".join(f" --hash=sha256:{digest}" for digest in package.hashes)
        lines.append(f"{package.name}=={package.version}{hashes}\n")
    return "".join(lines).encode("utf-8")


def _wheels(building: str, params: Dict[str, Any], context: StepContext) -> str:
    """A folder in which the wheels that were sent have their own names again."""
    folder = os.path.join(building, "wheels")
    os.mkdir(folder)
    for wheel in params["wheels"]:
        name = os.path.basename(str(wheel["name"]))
        if not _WHEEL.match(name):
            raise InputError("bad-wheel-name", f"{name!r} is not the name of a wheel")
        os.symlink(blob(context, str(wheel["sha256"]), name), os.path.join(folder, name))
    return folder


def blob(context: StepContext, sha256: str, name: str) -> str:
    """Path of a blob on this host; raises StepError ``blob-missing``."""
    path = context.blobs.get(sha256) or str(context.layout.blob(sha256))
    if not os.path.isfile(path):
        raise StepError(
            "blob-missing",
            f"{name} (sha256 {sha256[:12]}…) was not sent to the host",
            where=path,
            hint="provision again",
        )
    return path


def _uv_path(params: Dict[str, Any], context: StepContext) -> str:
    uv = params.get("uv") or {}
    if uv.get("path"):
        return str(uv["path"])
    if uv.get("sha256"):
        return executable(blob(context, str(uv["sha256"]), "uv"), str(context.root / "cache" / "tools"))
    found = shutil.which("uv")
    if found:
        return found
    raise StepError(
        "uv-missing",
        "the host has no uv, and none for its machine type was sent",
        hint="install uv on the host (https://docs.astral.sh/uv/), or use a donor as source",
    )


def _watcher(building: str, packages: int, total: int, context: StepContext) -> Callable[[], None]:
    """Reports what can be seen of uv's work from outside: disk space taken (by its cache while it downloads, by the
    venv where it copies), and packages that are installed."""
    free_before = shutil.disk_usage(building).free
    site = os.path.join(building, find_site(building))

    def report() -> None:
        taken = max(free_before - shutil.disk_usage(building).free, 0)
        installed = sum(name.endswith(".dist-info") for name in os.listdir(site))
        message = "installing packages" if installed else "fetching packages"
        context.progress(
            Progress("fetch", message, min(taken, total) if total else taken, total or None, installed, packages)
        )

    return report


def _ready(final: str, wanted: List[Wanted]) -> bool:
    if not os.path.isfile(os.path.join(final, _DONE)):
        return False
    try:
        _require_complete(final, wanted)
    except (StepError, InputError, OSError):
        return False
    return True


def _require_complete(venv: str, wanted: List[Wanted]) -> None:
    found = find_distributions(venv, find_site(venv))
    for package in wanted:
        same = found.get(canonicalize_name(package.name), [])
        if not any(same_public(distribution.version, package.version) for distribution in same):
            has = same[0].version if same else "nothing"
            raise StepError(
                "source-lacks", f"{package.name} {package.version} was asked of uv, which installed {has}", where=venv
            )
