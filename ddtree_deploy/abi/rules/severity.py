"""One place that decides how bad a file that cannot be loaded is: by who imports it, and when."""

from __future__ import annotations

from typing import Iterable

from ddtree_deploy.abi.context import Context

_SEVERITY = {"import": "error", "lazy": "warning", "plugin": "note"}
_RANK = {"import": 2, "lazy": 1, "plugin": 0}


def of_files(context: Context, paths: Iterable[str]) -> str:
    """error | warning | note, by the most certain use among the files."""
    levels = [context.usage.level(path) for path in paths] or ["plugin"]
    return _SEVERITY[max(levels, key=lambda level: _RANK[level])]
