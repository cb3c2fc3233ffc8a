"""Survey an installed engine from its files: nothing of it is imported or run. Standard library only (agent-safe)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

from ddtree_deploy import codec
from ddtree_deploy.agent.protocol import ProgressSink
from ddtree_deploy.errors import DeployError, InputError
from ddtree_deploy.facts.engine import git_commit
from ddtree_deploy.patching import engine
from ddtree_deploy.patching.installation import Installation, find_installation, site_packages_of
from ddtree_deploy.patching.model import PatchSet
from ddtree_deploy.release.layout import open_layout
from ddtree_deploy.survey.algorithms import find_algorithms, find_components, find_server_arguments, mask_policies
from ddtree_deploy.survey.backends import find_backends
from ddtree_deploy.survey.changes import local_changes, wheel_commit
from ddtree_deploy.survey.model import PatchPreview, Survey
from ddtree_deploy.survey.source import Source

DEFAULT_DISTRIBUTION = "sglang"


def op_survey(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """The agent's ``survey.run``. Returns a Survey as a dict.

    Params: ``environment`` (a venv or a site-packages folder), or ``root`` and ``base``: the current release, if
    there is one, else the base venv; ``distribution`` (default sglang); ``patch_set`` (a PatchSet as a dict, or None).
    """
    environment = _environment(params)
    document = params.get("patch_set")
    patch_set = codec.from_dict(PatchSet, document, "patch_set") if document is not None else None
    site = site_packages_of(environment)
    return codec.to_dict(survey(site, params.get("distribution") or DEFAULT_DISTRIBUTION, patch_set))


def _environment(params: Dict[str, Any]) -> Path:
    root, base = params.get("root"), params.get("base")
    named = params.get("environment")
    if not named and root:
        current = open_layout(root).current
        named = str(current) if current.exists() else base
    if not named:
        hint = "provision the host first, or name a base venv in the inventory"
        raise InputError("survey-environment", "there is no environment to survey", where="survey.run", hint=hint)
    return Path(named).expanduser()


def survey(
    site_packages: Path, distribution: str = DEFAULT_DISTRIBUTION, patch_set: Optional[PatchSet] = None
) -> Survey:
    """What the engine installed in ``site_packages`` has. Raises InputError where it is not installed.

    Rules that find nothing give empty lists and a note, so that an engine of another version is reported too.
    """
    installation = find_installation(site_packages, distribution)
    package = distribution.replace("-", "_")
    root, commit = _root(installation, package)
    source = Source(root, package)
    algorithms = find_algorithms(source)
    backends = find_backends(source)
    applied = engine.applied_patch_set(installation)
    return Survey(
        distribution=distribution,
        version=installation.version,
        location=str(root / package),
        changes=local_changes(installation, package),
        editable=installation.editable,
        commit=commit,
        applied_patch_set=applied[0] if applied else None,
        algorithms=algorithms,
        backends=backends,
        components=find_components(source),
        server_arguments=find_server_arguments(source),
        patch=_preview(patch_set, site_packages) if patch_set is not None else None,
        notes=_notes(source, bool(algorithms), bool(backends)),
    )


def _root(installation: Installation, package: str) -> Tuple[Path, Optional[str]]:
    """The folder that holds the package, and the commit it was made from where that is known."""
    if installation.editable is None:
        return installation.site_packages, wheel_commit(installation.site_packages / package / "_version.py")
    project = Path(installation.editable)
    for root in (project, project / "python", project / "src"):
        if (root / package).is_dir():
            return root, git_commit(root)
    raise InputError(
        "engine-source",
        f"the editable install's project holds no folder {package!r}",
        where=installation.editable,
        hint="the checkout was moved or removed; install the engine again",
    )


def _notes(source: Source, algorithms: bool, backends: bool) -> List[str]:
    notes = mask_policies(source)
    if not algorithms:
        notes.append("no speculative algorithms were found: this engine keeps them elsewhere, or has none")
    if not backends:
        notes.append("no attention backends were found: this engine keeps them elsewhere")
    return notes + source.problems


def _preview(patch_set: PatchSet, site_packages: Path) -> PatchPreview:
    """What applying the set would meet; a set for another version is told, not an error."""
    try:
        states = engine.check(patch_set, site_packages)
    except DeployError as error:
        return PatchPreview(patch_set.name, False, error.message)
    except OSError as error:
        return PatchPreview(patch_set.name, False, f"{error.filename} cannot be read: {error.strerror}")
    stopped = sum(state.state not in ("pristine", "applied") for state in states)
    if stopped:
        return PatchPreview(patch_set.name, False, f"{stopped} of {len(states)} files stop it", states)
    applied = sum(state.state == "applied" for state in states)
    note = "applied" if applied == len(states) else f"{len(states) - applied} of {len(states)} files would change"
    return PatchPreview(patch_set.name, True, note, states)
