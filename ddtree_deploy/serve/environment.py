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
from ddtree_deploy.release.layout import open_layout

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
    """A release by id or path, or the current one; raises InputError ``root-not-a-folder``,
    ``no-current-release`` or ``release-missing``."""
    open_layout(root)
    if release is None:
        current = root / "current"
        if not current.exists():
            raise InputError(
                "no-current-release",
                "no release is active",
                where=str(current),
                hint="run: ddtree-deploy provision HOST",
            )
        return current.resolve()
    path = Path(release).expanduser() if "/" in release else root / "releases" / release
    if not path.is_dir():
        raise InputError(
            "release-missing",
            f"there is no release {release!r}",
            where=str(path),
            hint="ddtree-deploy releases HOST lists them",
        )
    return path.resolve()


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
    environment.setdefault("HOME", str(Path("~").expanduser()))
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
