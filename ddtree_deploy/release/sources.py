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
from ddtree_deploy.release.donor import damaged_distributions, pick, same_public
from ddtree_deploy.release.files import file_states, remove_file, remove_tree, replace_file, sync_folder
from ddtree_deploy.release.hashes import HashCache
from ddtree_deploy.release.layout import STAGING_DONE, Layout
from ddtree_deploy.release.uv import Uv, executable, link_mode
from ddtree_deploy.steps.context import StepContext
from ddtree_deploy.units import some

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
        return _brought_donor(source, context) if source.get("host") else _donor(source, wanted, context)
    return _staging(params, wanted, context)


def staging_digest(kind: str, python: str, wanted: List[Wanted]) -> str:
    """Hex sha256 over what decides what a staging venv holds."""
    packages = sorted([package.name, package.version, *sorted(package.hashes)] for package in wanted)
    text = json.dumps([1, kind, python, packages], ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def give_up_staging(path: str, layout: Layout) -> None:
    """Let the next run make the staging venv anew that ``path`` is in, if it is in one."""
    start = str(layout.stagings) + "/"
    if path.startswith(start):
        remove_file(layout.stagings / path[len(start) :].split("/")[0] / STAGING_DONE)


def _donor(source: Dict[str, Any], wanted: List[Wanted], context: StepContext) -> SourceVenv:
    path = str(source["location"])
    if not os.path.isfile(os.path.join(path, "pyvenv.cfg")):
        raise InputError("donor-missing", f"the donor {path} is not a venv: it has no pyvenv.cfg", where=path)
    real = os.path.realpath(path)
    site = find_site(real, "donor-missing")
    available = find_distributions(real, site)
    chosen = [pick(available, package.name, package.version, path) for package in wanted]
    if all(distribution.record for distribution in chosen):
        return SourceVenv(real, site, aliases=[path])
    return _described_donor(path, wanted, bool(source.get("take_edited")), context)


def _described_donor(path: str, wanted: List[Wanted], take_edited: bool, context: StepContext) -> SourceVenv:
    """A tree of the donor's files in which packages without RECORD get one."""
    from ddtree_deploy.donor.assemble import assemble
    from ddtree_deploy.donor.inventory import take_inventory
    from ddtree_deploy.donor.store import Wish

    hashes = HashCache(str(context.layout.hashes))
    packages = {package.name: package.version for package in wanted}
    try:
        manifest, notes = take_inventory(path, packages, hashes, context.progress, take_edited, read_all=True)
        located = {file.sha256: os.path.realpath(f"{manifest.venv}/{file.path}") for file in manifest.files}
        done = assemble(context.layout, Wish(manifest, located), hashes, context.progress)
    finally:
        hashes.save()
    context.notes += notes
    return SourceVenv(str(context.layout.staging(done["staging"])), done["site"], done["staging"], done["names"])


def _brought_donor(source: Dict[str, Any], context: StepContext) -> SourceVenv:
    """The tree into which the packages of a donor on another host were brought (see ``donor/``)."""
    digest = context.donor.get("staging")
    if not digest or not (context.layout.staging(str(digest)) / STAGING_DONE).is_file():
        raise StepError(
            "donor-not-brought",
            f"the packages of the donor {source['host']}:{source['location']} were not brought here",
            hint="provision again, or use a donor on the host itself, an index or a wheelhouse",
        )
    context.notes += list(context.donor.get("notes") or [])
    paths = [str(path) for path in context.donor["paths"]]
    return SourceVenv(str(context.layout.staging(str(digest))), str(context.donor["site"]), str(digest), paths)


def _staging(params: Dict[str, Any], wanted: List[Wanted], context: StepContext) -> SourceVenv:
    python = os.path.realpath(context.partial / "bin" / "python")
    kind = str(params["source"]["kind"])
    digest = staging_digest(kind, python, wanted)
    final = context.layout.staging(digest)
    building = context.layout.stagings / f"{digest}.partial"
    if not _ready(str(final), wanted, context):
        remove_tree(final)
        remove_tree(building)
        context.layout.stagings.mkdir(parents=True, exist_ok=True)
        try:
            _fill(str(building), params, wanted, context)
        except BaseException:
            with contextlib.suppress(OSError):  # what fails here, the next run makes good
                remove_tree(building)
            raise
        document = {
            "packages": {package.name: package.version for package in wanted},
            "python": python,
            "kind": kind,
            "state": _state(str(building)),
        }
        replace_file(building / STAGING_DONE, json.dumps(document, indent=1, sort_keys=True).encode("utf-8") + b"\n")
        os.rename(building, final)
        sync_folder(context.layout.stagings)
    return SourceVenv(str(final), find_site(str(final)), digest, [str(building)], fresh=True)


def _fill(building: str, params: Dict[str, Any], wanted: List[Wanted], context: StepContext) -> None:
    kind = str(params["source"]["kind"])
    log = context.log("uv.log")
    replace_file(log, b"")
    uv = Uv(_uv_path(params, context), str(log), context.indexes if kind == "index" else [], kind)
    uv.run(["venv", "--no-project", "--python", str(context.partial / "bin" / "python"), building])
    _install(uv, building, params, wanted, context, ["--link-mode", link_mode(building)])
    _require_complete(building, wanted)
    # uv's cache is shared with venvs that somebody may have written into: every byte is looked at, this once.
    damaged = _damaged(building, wanted, context, HashCache())
    if not damaged:
        return
    again = [package for package in wanted if package.name in damaged]
    _install(uv, building, params, again, context, ["--no-cache", "--reinstall", "--link-mode", "copy"])
    still = _damaged(building, again, context, HashCache())
    if still:
        raise StepError(
            "source-incomplete",
            f"wheels hold other files than their RECORD says: {_told(still)}",
            where=str(log),
            hint="let a wheel be made anew by who made it, and lock that; the files of this one cannot be checked",
        )
    message = f"uv's cache on the host holds damaged files, and was passed by: {_told(damaged)}; "
    context.note("warning", "uv-cache-damaged", message + f"`uv cache clean {' '.join(sorted(damaged))}` removes them")


def _install(
    uv: Uv, building: str, params: Dict[str, Any], wanted: List[Wanted], context: StepContext, options: List[str]
) -> None:
    """Let uv install ``wanted`` into the venv ``building``."""
    requirements = os.path.join(building, "requirements.txt")
    replace_file(requirements, _requirements(wanted))
    arguments = ["pip", "install", "--python", f"{building}/bin/python", "--no-deps", "--require-hashes", "--no-build"]
    arguments += [*options, "--requirement", requirements]
    if params["source"]["kind"] == "wheelhouse":
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


def _ready(final: str, wanted: List[Wanted], context: StepContext) -> bool:
    """Whether the staging venv is there and what it was; one that is damaged is said to be."""
    try:
        with open(os.path.join(final, STAGING_DONE), encoding="ascii") as stream:
            state = json.load(stream).get("state")
        _require_complete(final, wanted)
        damaged = _damaged(final, wanted, context)
        same = state in (None, _state(final))  # none: made before that was kept
    except (StepError, InputError, OSError, ValueError, AttributeError):
        return False
    if damaged or not same:
        told = _told(damaged) or "files came, went, or were written into since"
        context.note("warning", "staging-damaged", f"{final} was damaged, and is filled anew: {told}")
    return same and not damaged


def _state(venv: str) -> str:
    """Hex digest over path, size and time of change of every file of the packages of a staging venv: RECORD may be
    damaged too, has not all of them, and large ones take long to read."""
    digest = hashlib.sha256()
    for path, (_, size, changed) in sorted(file_states(venv, find_site(venv)).items()):
        digest.update(os.fsencode(f"{path}\0{size}\0{changed}\n"))
    return digest.hexdigest()


def _damaged(
    venv: str, wanted: List[Wanted], context: StepContext, hashes: Optional[HashCache] = None
) -> Dict[str, List[str]]:
    versions: Dict[str, str] = {canonicalize_name(package.name): package.version for package in wanted}
    return damaged_distributions(venv, find_site(venv), versions, context.progress, hashes)


def _told(damaged: Dict[str, List[str]]) -> str:
    return "; ".join(f"{name}: {some(wrong)}" for name, wrong in sorted(damaged.items()))


def _require_complete(venv: str, wanted: List[Wanted]) -> None:
    found = find_distributions(venv, find_site(venv))
    for package in wanted:
        same = found.get(canonicalize_name(package.name), [])
        if not any(same_public(distribution.version, package.version) for distribution in same):
            has = same[0].version if same else "nothing"
            raise StepError(
                "source-lacks", f"{package.name} {package.version} was asked of uv, which installed {has}", where=venv
            )
