"""Step ``overlay``: the profile's packages replace those of the clone, and its extra files are added. Agent-safe."""

from __future__ import annotations

import os
from typing import Any, Dict, List, Set

from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action, Precondition
from ddtree_deploy.release.clone import clone_error
from ddtree_deploy.release.donor import place_distributions
from ddtree_deploy.release.files import InsideCheck, make_folders, replace_file, sha256_file, shown
from ddtree_deploy.release.removal import remove_distributions
from ddtree_deploy.release.sources import Wanted, blob, prepare
from ddtree_deploy.steps.context import StepContext


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action, or none where nothing is to be added, replaced, removed or laid over."""
    profile, source, facts = inputs.profile, inputs.source, inputs.facts
    from_source = {change.name for change in draft.packages if change.change != "remove"}
    leaving = sorted(change.name for change in draft.packages if change.change != "add")
    install = [package for package in draft.locked if package.name in from_source]
    if not from_source and not leaving and not profile.extra_files:
        return []
    blobs = [{"sha256": extra.sha256, "name": os.path.basename(extra.source)} for extra in profile.extra_files]
    wheels: List[Dict[str, str]] = []
    uv: Dict[str, Any] = {}
    if install and source.kind == "wheelhouse":
        from ddtree_deploy.plan.sources import pick_wheel  # the controller's; this function runs there

        for package in install:
            wheel = pick_wheel(inputs.wheels, package, facts)
            if wheel is not None:
                wheels.append({"sha256": wheel.sha256, "name": os.path.basename(wheel.path)})
    if install and source.kind != "donor":
        if facts.uv:
            uv = {"path": facts.uv}
        elif inputs.uv is not None and inputs.uv.machine == facts.machine:
            uv = {"sha256": inputs.uv.sha256}
            blobs.append({"sha256": inputs.uv.sha256, "name": "uv"})
    checks: List[Precondition] = []
    donor = inputs.donor.base if inputs.donor is not None else None
    if source.kind == "donor" and source.host is None and donor is not None and donor.fingerprint:
        packages = {package.name: package.version for package in donor.packages}
        checks.append(
            Precondition(
                "venv-fingerprint", {"path": donor.path, "fingerprint": donor.fingerprint, "packages": packages}
            )
        )
    return [
        Action(
            id="overlay",
            step="overlay",
            summary=_summary(len(from_source), len(leaving), len(profile.extra_files), source.kind),
            params={
                "source": {
                    "kind": source.kind,
                    "location": _without_secrets(source.location),
                    "host": source.host if source.host != inputs.settings.host else None,
                },
                "site_packages": draft.site_packages,
                "install": [
                    {"name": package.name, "version": package.version, "hashes": list(package.hashes)}
                    for package in install
                ],
                "remove": leaving,
                "preview": any(step.step == "audit" for step in inputs.playbook.steps),
                "extra_files": [
                    {"path": extra.path, "sha256": extra.sha256, "mode": extra.mode} for extra in profile.extra_files
                ],
                "wheels": wheels,
                "uv": uv,
                "blobs": blobs + wheels,
            },
            preconditions=checks,
        )
    ]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """Returns {removed_files, files, bytes, counts, rewritten, shims, staging}.

    Raises StepError ``index-unreachable``, ``hash-mismatch``, ``no-matching-wheel``, ``package-not-found``,
    ``corrupt-wheel``, ``no-space``, ``source-lacks``, ``source-incomplete``, ``outside-release``, ``mix-would-fail``.
    """
    params = action.params
    site = str(params["site_packages"])
    wanted = [Wanted(entry["name"], entry["version"], list(entry["hashes"])) for entry in params["install"]]
    _require_clone(context)
    tree, final = str(context.partial), str(context.final)
    source = prepare(params, wanted, context) if wanted else None
    leaving: Set[str] = set(params["remove"]) | {package.name for package in wanted}
    if source is not None and params.get("preview"):
        _require_fit(str(context.partial), source.path, leaving, wanted, context)
    result: Dict[str, Any] = {"removed_files": 0, "files": 0, "bytes": 0, "shims": [], "staging": None}
    try:
        removed = remove_distributions(tree, site, leaving, context.progress)
        context.notes += removed.notes
        result["removed_files"] = removed.files
        if source is not None:
            placed = place_distributions(
                source.path,
                source.site,
                tree,
                site,
                {package.name: package.version for package in wanted},
                final,
                context.progress,
                also_known_as=source.aliases,
                fresh=source.fresh,
            )
            context.notes += placed.notes
            result.update(
                files=placed.files,
                bytes=placed.bytes,
                counts={name: count for name, count in placed.counts.items() if count},
                rewritten=[shown(path) for path in placed.rewritten],
                staging=source.digest,
            )
        result["shims"] = _place_extra_files(params["extra_files"], site, context)
    except OSError as error:
        raise clone_error(error, source.path if source else tree, tree, 0) from error
    return result


def undo(action: Action, context: StepContext) -> None:
    """Nothing: the clone that it worked on is removed as a whole, and a filled staging venv serves the next run."""


def _require_fit(tree: str, source: str, leaving: Set[str], wanted: List[Wanted], context: StepContext) -> None:
    """Would this mix work? Told from the source's files, before any of the clone's is touched."""
    from ddtree_deploy.abi.host import probe_host  # brings the ELF reader: only when needed
    from ddtree_deploy.abi.preview import Mix, require_fit
    from ddtree_deploy.serve.environment import profile_environment

    limits = probe_host(profile_environment(context.final).get("LD_LIBRARY_PATH", ""))
    mix = Mix(tree, sorted(leaving), source, [package.name for package in wanted])
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


def _summary(packages: int, leaving: int, extra: int, kind: str) -> str:
    parts = []
    if packages:
        parts.append(f"install {packages} packages from the {kind}")
    if leaving:
        parts.append(f"remove {leaving} old ones")
    if extra:
        parts.append(f"add {extra} files of the profile")
    return ", ".join(parts)


def _without_secrets(location: Any) -> Any:
    from ddtree_deploy.release.uv_errors import masked

    return masked(location) if isinstance(location, str) else location
