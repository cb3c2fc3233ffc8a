"""The environment in which a service runs, and in which its release is verified: the same for both.

Nothing of the caller's shell gets in but the few variables below: a service started over SSH, by hand or by an init
system must behave alike, and a stray PYTHONPATH or LD_LIBRARY_PATH is what breaks such environments.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from ddtree_deploy.errors import InputError
from ddtree_deploy.release.layout import PARTIAL, RECORD, Layout, open_layout
from ddtree_deploy.release.store import current_release

INHERITED = ("HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def release_record(release: Path) -> Dict[str, Any]:
    """``<release>/.ddtree/release.json``; empty for an environment that we did not build."""
    path = release / ".ddtree" / "release.json"
    try:
        record = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(
            "release-record", f"cannot read the release's record: {error}", where=str(path), hint="provision again"
        ) from error
    if not isinstance(record, dict):
        raise InputError("release-record", "the release's record is not an object", where=str(path))
    return record


def release_python(release: Path) -> Path:
    """The release's interpreter; raises InputError ``release-missing`` or ``release-python-missing``."""
    python = release / "bin" / "python"
    if not release.is_dir():
        raise InputError(
            "release-missing", "there is no such release", where=str(release), hint="run provision, or list releases"
        )
    if not os.access(python, os.X_OK):
        raise InputError(
            "release-python-missing",
            "the release has no Python that can be run",
            where=str(python),
            hint="its base interpreter may have been removed; provision again",
        )
    return python


def resolve_release(root: Path, release: Optional[str]) -> Path:
    """A release by id or path, or the current one. Raises InputError ``root-not-a-folder``, ``no-current-release``,
    ``release-missing``, ``bad-release-id``; ``current-not-a-link`` or ``current-elsewhere`` where ``current`` is not
    ours or leads to what is none of our releases; ``release-incomplete`` for one that is half built."""
    layout = open_layout(root)
    if release is None:
        path = _current(layout)
    elif "/" in release:
        path = expand_user(release, "release")
    else:
        path = layout.release(release)
    if not path.is_dir():
        raise InputError(
            "release-missing",
            f"there is no release {path.name if release is None else release!r}",
            where=str(path),
            hint="ddtree-deploy releases HOST lists them",
        )
    real = path.resolve()
    if real.name.endswith(PARTIAL):  # while one is built its name leads there, and also after a run that was killed
        raise InputError(
            "release-incomplete",
            f"the release {path.name} is being built, or was left half built by a run that was interrupted",
            where=str(real),
            hint="wait for the run that builds it, or provision again",
        )
    return real


def _current(layout: Layout) -> Path:
    """Where ``current`` leads to, a folder of ``releases``, whether it is there or not."""
    if not os.path.lexists(layout.current):
        raise InputError(
            "no-current-release",
            "no release is active",
            where=str(layout.current),
            hint="run: ddtree-deploy provision HOST",
        )
    if not layout.current.is_symlink():
        raise InputError(
            "current-not-a-link",
            f"{layout.current} is no symlink, so it was not made by us, and leads to no release",
            where=str(layout.current),
            hint="look at it, then move it away, or set another `root`",
        )
    name = current_release(layout)
    path = layout.releases / (name or "")
    if name is None or (path.is_dir() and not os.path.lexists(path / RECORD)):
        raise InputError(
            "current-elsewhere",
            f"{layout.current} leads to {os.path.realpath(layout.current)}, which is no release of ours",
            where=str(layout.current),
            hint="`ddtree-deploy rollback HOST --to RELEASE` makes one of ours current; or name one with --release",
        )
    return path


def expand_user(text: str, what: str) -> Path:
    """``text`` with ``~`` as the home it stands for on this host; raises InputError ``no-such-home``."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        user = text.split("/", 1)[0]
        raise InputError(
            "no-such-home", f"there is no home folder for {user} on this host", where=what, hint="give the whole path"
        ) from error


def profile_environment(release: Path) -> Dict[str, str]:
    """The profile's variables as the release's record keeps them, ``{release}`` expanded."""
    recorded = release_record(release).get("environment") or {}
    return {str(name): str(value).replace("{release}", str(release)) for name, value in recorded.items()}


def profile_arguments(release: Path) -> List[str]:
    """The profile's engine arguments, ``{release}`` expanded."""
    recorded = release_record(release).get("engine_arguments") or []
    return [str(argument).replace("{release}", str(release)) for argument in recorded]


def service_environment(
    release: Path, overrides: Optional[Mapping[str, str]] = None, *, gpu_index: Optional[int] = None
) -> Dict[str, str]:
    """The whole environment of a service: the system's basics, the profile's variables, then ``overrides``."""
    environment = {name: os.environ[name] for name in INHERITED if name in os.environ}
    home = os.path.expanduser("~")  # noqa: PTH111  Path raises where there is none
    environment.setdefault("HOME", home if home != "~" else "/")  # a uid without an entry in passwd has none
    environment["PATH"] = SYSTEM_PATH
    environment["VIRTUAL_ENV"] = str(release)
    environment["PYTHONNOUSERSITE"] = "1"
    environment["PYTHONUNBUFFERED"] = "1"
    environment.update(profile_environment(release))
    environment.update(overrides or {})
    environment["PATH"] = f"{release / 'bin'}:{environment['PATH']}"
    if gpu_index is not None:
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        environment["CUDA_VISIBLE_DEVICES"] = str(gpu_index)
    return environment
