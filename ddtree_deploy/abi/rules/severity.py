"""One place that decides how bad a file that cannot be loaded is: by who imports it, and when."""

from __future__ import annotations

from typing import Iterable

from ddtree_deploy.abi.context import Context

_SEVERITY = {"import": "error", "lazy": "warning", "plugin": "note"}
_RANK = {"import": 2, "lazy": 1, "plugin": 0}


def of_files(context: Context, paths: Iterable[str]) -> str:
    """error | warning | note, by the most certain use among the files."""
    worst = "plugin"
    for path in paths:
        level = context.usage.level(path)
        if _RANK[level] > _RANK[worst]:
            worst = level
        if worst == "import":
            break  # reading sources takes time, and it cannot get worse
    return _SEVERITY[worst]
