"""Every path under the root, in one place (see docs/architecture.md). Standard library only (agent-safe)."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Union

from ddtree_deploy.errors import InputError

PARTIAL = ".partial"
REMOVING = ".removing"
RECORD = ".ddtree/release.json"
STAGING_DONE = ".ddtree-staging.json"  # of a staging venv, or of a donor's tree; written last

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,199}\Z")
# A venv's scripts quote their own path in five shells, and PATH is split at colons.
_BAD_IN_ROOT = re.compile("[:'\"\\\\$`\x00-\x1f]")


def is_release_id(name: str) -> bool:
    """Whether a folder of this name under ``releases/`` can be a release."""
    return bool(_ID.match(name)) and not name.endswith((PARTIAL, REMOVING))


def check_release_id(release_id: str) -> str:
    """``release_id`` if it may be a folder's name under ``releases/``; raises InputError ``bad-release-id``."""
    if not isinstance(release_id, str) or not is_release_id(release_id):
        raise InputError(
            "bad-release-id",
            f"{release_id!r} is not a release id",
            hint="ids look like sglang-0.5.11-cpu-0123456789ab; `ddtree-deploy releases HOST` lists them",
        )
    return release_id


@dataclass(frozen=True)
class Layout:
    """Paths under the absolute folder ``root``; ``~`` in what is given is the agent's user's home.

    Raises InputError ``bad-root`` for a root no venv could live in.
    """

    root: Path

    def __init__(self, root: Union[str, os.PathLike[str]]) -> None:
        text = os.path.expanduser(os.fspath(root))
        if not text.startswith("/") or ".." in text.split("/"):
            raise InputError("bad-root", f"the root folder must be an absolute path without '..': {text!r}")
        bad = _BAD_IN_ROOT.search(text)
        if bad:
            raise InputError(
                "bad-root",
                f"the root folder {text!r} has the character {bad.group()!r}, which PATH or activate scripts break at",
                hint="choose another `root` in the inventory",
            )
        normal = os.path.normpath(text)
        if normal in ("/", "//"):
            raise InputError("bad-root", "the root folder must not be / itself", hint="for example /opt/ddtree")
        object.__setattr__(self, "root", Path(normal))

    @property
    def current(self) -> Path:
        return self.root / "current"

    @property
    def releases(self) -> Path:
        return self.root / "releases"

    @property
    def services(self) -> Path:
        return self.root / "services"

    @property
    def blobs(self) -> Path:
        return self.root / "cache" / "blobs"

    @property
    def stagings(self) -> Path:
        return self.root / "cache" / "staging"

    @property
    def donor(self) -> Path:
        """Files of a donor that have arrived, by their sha256, until their tree is put together."""
        return self.root / "cache" / "donor"

    @property
    def hashes(self) -> Path:
        return self.root / "cache" / "hashes.json"

    @property
    def journal(self) -> Path:
        return self.root / "journal.jsonl"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    def logs(self, release_id: str) -> Path:
        return self.root / "logs" / check_release_id(release_id)

    def release(self, release_id: str) -> Path:
        return self.releases / check_release_id(release_id)

    def partial(self, release_id: str) -> Path:
        return self.releases / (check_release_id(release_id) + PARTIAL)

    def removing(self, release_id: str) -> Path:
        return self.releases / (check_release_id(release_id) + REMOVING)

    def record(self, release_id: str) -> Path:
        return self.release(release_id) / RECORD

    def blob(self, sha256: str) -> Path:
        return self.blobs / sha256

    def staging(self, digest: str) -> Path:
        return self.stagings / digest


def open_layout(root: Union[str, os.PathLike[str]]) -> Layout:
    """As ``Layout``, where ``root`` is a folder or nothing yet; raises InputError ``root-not-a-folder``."""
    from ddtree_deploy.facts.disk import blocked_by  # paths alone need none of it

    layout = Layout(root)
    blocked = blocked_by(layout.root)
    if blocked is not None:
        raise InputError(
            "root-not-a-folder",
            f"the root {layout.root} cannot be a folder: {blocked} is none",
            where=str(blocked),
            hint="move that away, or set another `root` in the inventory",
        )
    return layout
