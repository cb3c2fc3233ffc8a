"""Where the environment is that a user named: by its path, or by a release's id, ``current`` or nothing at all."""

from __future__ import annotations

from typing import Optional

from ddtree_deploy.errors import InputError
from ddtree_deploy.release.layout import is_release_id, open_layout


def place(target: str, root: Optional[str]) -> str:
    """The folder of ``target``: a path as it is, or under ``root`` the release of this id or the ``current`` one.

    Raises InputError ``no-release``, which names the releases that there are.
    """
    if "/" in target or target.startswith("~"):
        return target
    if not isinstance(root, str) or not root:
        raise InputError("bad-params", f"{target} is the id of a release, and no root is given")
    layout = open_layout(root)
    path = layout.current if target == "current" else layout.releases / target
    if not is_release_id(target) or not path.is_dir():
        try:
            known = sorted(entry.name for entry in layout.releases.iterdir() if is_release_id(entry.name))
        except OSError:
            known = []
        there = ", ".join(known) if known else "none; `ddtree-deploy provision HOST` makes one"
        raise InputError("no-release", f"there is no release {target} under {layout.root}", hint=f"there are: {there}")
    return str(path.resolve())


def default_place(root: str, base: Optional[str]) -> str:
    """The current release, else the base venv; raises InputError ``no-release`` where there is neither."""
    layout = open_layout(root)
    if layout.current.is_symlink() or layout.current.exists():  # one that leads nowhere is told, not passed over
        return place("current", root)
    if base:
        return base
    message = f"there is no current release under {layout.root}, and the host has no base venv"
    raise InputError("no-release", message, hint="provision the host, set its `base`, or give HOST:/PATH")
