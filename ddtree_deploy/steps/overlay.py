"""Step ``overlay``: the profile's packages replace those of the clone, and its extra files are added. Agent-safe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple

from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action, Precondition
from ddtree_deploy.profiles.model import LockedPackage, Source
from ddtree_deploy.release.clone import clone_error
from ddtree_deploy.release.donor import Placed, place_distributions
from ddtree_deploy.release.files import InsideCheck, make_folders, replace_file, sha256_file, shown
from ddtree_deploy.release.hashes import HashCache
from ddtree_deploy.release.removal import remove_distributions
from ddtree_deploy.release.sources import SourceVenv, Wanted, blob, prepare
from ddtree_deploy.steps.context import StepContext
from ddtree_deploy.units import plural


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action, or none where nothing is to be added, replaced, removed or laid over."""
    from ddtree_deploy.plan.sources import pick_wheel, split  # the controller's; this function runs there

    profile, source, facts = inputs.profile, inputs.source, inputs.facts
    from_source = {change.name for change in draft.packages if change.change != "remove"}
    leaving = sorted(change.name for change in draft.packages if change.change != "add")
    install = [package for package in draft.locked if package.name in from_source]
    if not from_source and not leaving and not profile.extra_files:
        return []
    shared = split(inputs, install)
    shop = source.rest if source.kind == "donor" else source
    blobs = [{"sha256": extra.sha256, "name": os.path.basename(extra.source)} for extra in profile.extra_files]
    picked = [pick_wheel(inputs.wheels, package, facts) for package in shared.rest if inputs.wheels]
    wheels = [{"sha256": wheel.sha256, "name": os.path.basename(wheel.path)} for wheel in picked if wheel is not None]
    uv: Dict[str, Any] = {}
    if shared.rest and facts.uv:
        uv = {"path": facts.uv}
    elif shared.rest and inputs.uv is not None and inputs.uv.machine == facts.machine:
        uv = {"sha256": inputs.uv.sha256}
        blobs.append({"sha256": inputs.uv.sha256, "name": "uv"})
    params: Dict[str, Any] = {
        "source": _source(source, inputs),
        "site_packages": draft.site_packages,
        "install": _entries(shared.donor if source.kind == "donor" else install),
        "remove": leaving,
        "preview": any(step.step == "audit" for step in inputs.playbook.steps),
        "extra_files": [
            {"path": extra.path, "sha256": extra.sha256, "mode": extra.mode} for extra in profile.extra_files
        ],
        "wheels": wheels,
        "uv": uv,
        "blobs": blobs + wheels,
    }
    checks: List[Precondition] = []
    if source.kind == "donor":
        if shop is not None and shared.rest:
            params["rest"] = {"source": _source(shop, inputs), "install": _entries(shared.rest)}
        checks = _about_donor(inputs, shared.donor, params)
    from_donor = len(shared.donor) if source.kind == "donor" else 0
    kinds = [("donor", from_donor), (shop.kind if shop is not None else "", len(from_source) - from_donor)]
    summary = _summary(kinds, len(leaving), len(profile.extra_files))
    return [Action(id="overlay", step="overlay", summary=summary, params=params, preconditions=checks)]


def _source(source: Source, inputs: PlanInputs) -> Dict[str, Any]:
    host = source.host if source.host != inputs.settings.host else None
    location = _without_secrets(source.location)
    return {"kind": source.kind, "location": location, "host": host}


def _entries(packages: List[LockedPackage]) -> List[Dict[str, Any]]:
    return [{"name": package.name, "version": package.version, "hashes": list(package.hashes)} for package in packages]


def _about_donor(inputs: PlanInputs, packages: List[LockedPackage], params: Dict[str, Any]) -> List[Precondition]:
    """Fill in what the action has to know of the donor. One on the host itself is checked to be the same."""
    source, donor = params["source"], inputs.donor.base if inputs.donor is not None else None
    source["take_edited"] = inputs.source.take_edited
    if donor is None or not packages:
        return []
    names = {package.name for package in packages}
    source["location"] = donor.path
    source["without_record"] = sorted(one.name for one in donor.packages if one.name in names and not one.record)
    if source["host"] is not None:
        source["compress"] = inputs.source.compress
        params["donor_fingerprint"] = donor.fingerprint
        return []
    if not donor.fingerprint:
        return []
    versions = {package.name: package.version for package in donor.packages}
    checked = {"path": donor.path, "fingerprint": donor.fingerprint, "packages": versions}
    return [Precondition("venv-fingerprint", checked)]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """Returns {removed_files, files, bytes, counts, rewritten, shims, staging, rest_staging}.

    Raises StepError ``index-unreachable``, ``hash-mismatch``, ``no-matching-wheel``, ``package-not-found``,
    ``corrupt-wheel``, ``no-space``, ``source-lacks``, ``source-incomplete``, ``donor-damaged``, ``donor-not-brought``,
    ``outside-release``, ``mix-would-fail``.
    """
    params = action.params
    site = str(params["site_packages"])
    _require_clone(context)
    tree, final = str(context.partial), str(context.final)
    parts = [part for part in (_part(params, params, context), _part(params, params.get("rest"), context)) if part]
    wanted = [package for part in parts for package in part.wanted]
    leaving: Set[str] = set(params["remove"]) | {package.name for package in wanted}
    if parts and params.get("preview"):
        _require_fit(tree, parts, leaving, context)
    result: Dict[str, Any] = {"removed_files": 0, "files": 0, "bytes": 0, "shims": [], "staging": None}
    hashes = HashCache(str(context.layout.hashes))
    try:
        removed = remove_distributions(tree, site, leaving, context.progress)
        context.notes += removed.notes
        result["removed_files"] = removed.files
        for part in parts:
            placed = place_distributions(
                part.venv.path,
                part.venv.site,
                tree,
                site,
                {package.name: package.version for package in part.wanted},
                final,
                context.progress,
                also_known_as=part.venv.aliases,
                fresh=part.venv.fresh,
                hashes=hashes,
                take_edited=part.take_edited,
            )
            context.notes += placed.notes
            _add_up(result, placed, part.venv.digest)
        result["shims"] = _place_extra_files(params["extra_files"], site, context)
    except OSError as error:
        raise clone_error(error, parts[0].venv.path if parts else tree, tree, 0) from error
    finally:
        hashes.save()
    return result


@dataclass(frozen=True)
class _Part:
    """Packages that come from one place."""

    venv: SourceVenv
    wanted: List[Wanted]
    take_edited: bool


def _part(params: Dict[str, Any], about: Optional[Dict[str, Any]], context: StepContext) -> Optional[_Part]:
    if about is None or not about["install"]:
        return None
    wanted = [Wanted(entry["name"], entry["version"], list(entry["hashes"])) for entry in about["install"]]
    venv = prepare({**params, "source": about["source"]}, wanted, context)
    return _Part(venv, wanted, bool(about["source"].get("take_edited")))


def _add_up(result: Dict[str, Any], placed: Placed, digest: Optional[str]) -> None:
    counts: Dict[str, int] = result.setdefault("counts", {})
    for name, count in placed.counts.items():
        if count:
            counts[name] = counts.get(name, 0) + count
    result["files"] += placed.files
    result["bytes"] += placed.bytes
    result.setdefault("rewritten", []).extend(shown(path) for path in placed.rewritten)
    result["rest_staging" if result["staging"] else "staging"] = digest


def undo(action: Action, context: StepContext) -> None:
    """Nothing: the clone that it worked on is removed as a whole, and a filled staging venv serves the next run."""


def _require_fit(tree: str, parts: List[_Part], leaving: Set[str], context: StepContext) -> None:
    """Would this mix work? Told from the sources' files, before any of the clone's is touched."""
    from ddtree_deploy.abi.host import probe_host  # brings the ELF reader: only when needed
    from ddtree_deploy.abi.preview import Mix, require_fit
    from ddtree_deploy.serve.environment import profile_environment

    limits = probe_host(profile_environment(context.final).get("LD_LIBRARY_PATH", ""))
    first, *more = [(part.venv.path, [package.name for package in part.wanted]) for part in parts]
    mix = Mix(tree, sorted(leaving), *first, more=more)
    require_fit(mix, limits, context.progress, str(context.root / "cache" / "abi"))


def _place_extra_files(extra_files: List[Dict[str, Any]], site: str, context: StepContext) -> List[str]:
    placed = []
    inside = InsideCheck(context.partial)
    for extra in extra_files:
        path = os.path.normpath(str(extra["path"]).replace("{site}", site))
        if os.path.isabs(path) or path == ".." or path.startswith("../") or path == ".":
            raise InputError("bad-extra-file", f"extra file {extra['path']!r} is not inside the release")
        source = blob(context, str(extra["sha256"]), path)
        if sha256_file(source) != extra["sha256"]:
            raise StepError("blob-damaged", f"{path}: the file that was sent is damaged", where=source)
        full = f"{context.partial}/{path}"
        inside.require(full)
        make_folders(os.path.dirname(full))
        if os.path.lexists(full) and (not os.path.isfile(full) or sha256_file(full) != extra["sha256"]):
            context.note("warning", "extra-file-replaced", f"{path} was there already, and is the profile's now")
        with open(source, "rb") as stream:
            replace_file(full, stream.read(), int(extra.get("mode", 0o644)))
        placed.append(path)
    return placed


def _require_clone(context: StepContext) -> None:
    if not context.partial.is_dir():
        raise StepError(
            "nothing-to-overlay",
            f"there is no clone at {context.partial}",
            hint="a playbook needs the step `clone` before `overlay`",
        )


def _summary(kinds: List[Tuple[str, int]], leaving: int, extra: int) -> str:
    parts = [f"install {plural(count, 'package')} from the {kind}" for kind, count in kinds if count]
    if leaving:
        parts.append(f"remove {plural(leaving, 'old one')}")
    if extra:
        parts.append(f"add {plural(extra, 'file')} of the profile")
    return ", ".join(parts)


def _without_secrets(location: Any) -> Any:
    from ddtree_deploy.release.uv_errors import masked

    return masked(location) if isinstance(location, str) else location
