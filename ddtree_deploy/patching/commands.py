"""What ``ddtree-deploy patches check|apply|reverse|export PATH`` does, without parsing and printing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import List, Optional

from packaging.utils import canonicalize_name

from ddtree_deploy.errors import ExitCode, InputError
from ddtree_deploy.patching import engine
from ddtree_deploy.patching.engine import Released
from ddtree_deploy.patching.export import export
from ddtree_deploy.patching.installation import find_installation, require_folder, site_packages_of
from ddtree_deploy.patching.model import FileState, PatchOutcome, PatchSet
from ddtree_deploy.patching.series import load_patch_set, patch_sets
from ddtree_deploy.patching.transaction import exclusive
from ddtree_deploy.patching.wheel import Wheel
from ddtree_deploy.versions import same_version


@dataclass(frozen=True)
class PatchReport:
    """States of a patch set's files in an environment; after ``apply`` and ``reverse`` also what was done."""

    patch_set: str
    distribution: str
    version: str
    digest: str
    site_packages: str
    summary: str  # pristine | applied | partly applied | refused
    files: List[FileState]
    outcome: Optional[PatchOutcome] = None

    @property
    def exit_code(self) -> ExitCode:
        return ExitCode.PROBLEMS if self.summary == "refused" else ExitCode.OK


def check_path(path: Path, patch_set: Optional[str] = None, wheel: Optional[Path] = None) -> PatchReport:
    """The state of the environment at ``path`` (a venv or a site-packages folder) against a patch set.

    Without ``patch_set`` it is the shipped one for the installed engine. ``wheel`` is the released engine, for showing
    what was edited. Raises InputError; files that stop the set are in the report, whose exit code is then 1.
    """
    with _files_of(path):
        site, chosen = _target(path, patch_set)
        with _released(chosen, wheel) as released:
            return _report(chosen, site, engine.check(chosen, site, released))


def apply_path(path: Path, patch_set: Optional[str] = None, wheel: Optional[Path] = None) -> PatchReport:
    """Apply a patch set there; see ``engine.apply``. Raises LockedError while another run changes the same tree."""
    with _files_of(path):
        site, chosen = _target(path, patch_set)
        with exclusive(site), _released(chosen, wheel) as released:
            outcome = engine.apply(chosen, site, released)
            return _report(chosen, site, engine.check(chosen, site), outcome)


def reverse_path(path: Path, patch_set: Optional[str] = None, wheel: Optional[Path] = None) -> PatchReport:
    """Take a patch set out again; see ``engine.reverse``. Raises LockedError as ``apply_path``."""
    with _files_of(path):
        site, chosen = _target(path, patch_set)
        with exclusive(site), _released(chosen, wheel) as released:
            outcome = engine.reverse(chosen, site, released)
            return _report(chosen, site, engine.check(chosen, site), outcome)


def export_path(path: Path, wheel: Path, out: Path) -> PatchSet:
    """Write the patch set that makes the released ``wheel`` into the engine at ``path``; see ``export.export``."""
    with _files_of(path):
        require_folder(path)
        with Wheel(wheel) as opened:
            package = opened.distribution.replace("-", "_")
        return export(wheel, path if (path / package).is_dir() else site_packages_of(path), out)


@contextmanager
def _files_of(path: Path) -> Iterator[None]:
    """What cannot be read there is no bug of ours. Raises InputError ``tree-unreadable``."""
    try:
        yield
    except OSError as error:
        raise InputError(
            "tree-unreadable",
            f"cannot read the engine's files: {error.strerror or error}",
            where=str(error.filename or path),
            hint="run as a user who may read and search the whole environment",
        ) from error


def _target(path: Path, name: Optional[str]) -> tuple[Path, PatchSet]:
    site = site_packages_of(path)
    if name is not None:
        return site, load_patch_set(name)
    shipped = [load_patch_set(each) for each in patch_sets()]
    if not shipped:
        raise InputError("no-patch-set", "no patch set comes with this installation", hint="name one with --patch-set")
    installed = find_installation(site, shipped[0].distribution)
    for patch_set in shipped:
        same_engine = canonicalize_name(patch_set.distribution) == canonicalize_name(installed.distribution)
        if same_engine and same_version(installed.version, patch_set.version):
            return site, patch_set
    known = ", ".join(patch_set.name for patch_set in shipped)
    raise InputError(
        "engine-version",
        f"no patch set for {installed.distribution} {installed.version}; there are: {known}",
        where=str(site),
        hint="install one of these engine versions, or give a patch set of your own with --patch-set",
    )


@contextmanager
def _released(patch_set: PatchSet, wheel: Optional[Path]) -> Iterator[Optional[Released]]:
    if wheel is None:
        yield None
        return
    with Wheel(wheel) as opened:
        same_engine = opened.distribution == canonicalize_name(patch_set.distribution)
        if not same_engine or not same_version(opened.version, patch_set.version):
            raise InputError(
                "wheel-version",
                f"the wheel is {opened.distribution} {opened.version}, "
                f"the patch set is for {patch_set.distribution} {patch_set.version}",
                where=str(wheel),
                hint=f"give the wheel of {patch_set.distribution} {patch_set.version}, or leave --wheel out",
            )
        yield opened.read


def _report(
    patch_set: PatchSet, site: Path, states: List[FileState], outcome: Optional[PatchOutcome] = None
) -> PatchReport:
    kinds = {state.state for state in states}
    refused = bool(kinds - {"pristine", "applied"})
    summary = "refused" if refused else kinds.pop() if len(kinds) == 1 else "partly applied"
    return PatchReport(
        patch_set.name,
        patch_set.distribution,
        patch_set.version,
        patch_set.digest,
        str(site),
        summary,
        states,
        outcome,
    )
