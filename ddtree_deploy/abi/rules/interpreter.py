"""The environment's own Python: there at all, and of the version that its site folder is for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import List

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.model import Finding


def check(context: Context) -> List[Finding]:
    return _dangling(context) + _version(context) + _leftovers(context)


def _dangling(context: Context) -> List[Finding]:
    link = context.environment.dangling_interpreter
    if link is None:
        return []
    target = Path(link).readlink()
    return [
        Finding(
            id="interpreter-missing",
            severity="error",
            title="the environment's Python is gone",
            message=f"{context.environment.short(link)} leads to {target}, which does not exist",
            when="install",
            cause="interpreter",
            why="the Python that this environment was made from was removed or moved",
            fix=f"install Python {context.environment.python_text} again, or make the environment anew",
            files=[context.environment.short(link)],
        )
    ]


def _version(context: Context) -> List[Finding]:
    """bin/python -> python3.12 beside lib/python3.11: nothing that is installed is seen."""
    environment = context.environment
    match = re.search(r"/python(\d+)\.(\d+)$", environment.interpreter or "")
    if match is None:
        return []
    python = f"{match.group(1)}.{match.group(2)}"
    folders = [re.search(r"/python(\d+\.\d+)/", site) for site in environment.site]
    versions = sorted({folder.group(1) for folder in folders if folder})
    if not versions or python in versions:
        return []
    return [
        Finding(
            id="interpreter-mismatch",
            severity="error",
            title=f"the environment is for Python {versions[0]}, its interpreter is {python}",
            message=f"bin/python is {environment.interpreter}; packages lie in lib/python{versions[0]}",
            when="import",
            cause="interpreter",
            why="an interpreter only looks into the folder of its own version: every import fails",
            fix=f"make the environment anew with Python {versions[0]}, or install the packages again for {python}",
            files=["bin/python"],
        )
    ]


def _leftovers(context: Context) -> List[Finding]:
    """pip renames what it removes to ``~name``; what is left of it was interrupted."""
    names = sorted(
        {
            path[len(site) + 1 :].split("/")[0]
            for site in context.environment.site
            for path in context.environment.tree.files
            if path.startswith(site + "/~")
        }
    )
    if not names:
        return []
    return [
        Finding(
            id="interrupted-install",
            severity="warning",
            title="an install was interrupted",
            message=f"site-packages holds what pip renamed before it was stopped: {', '.join(names[:5])}",
            when="install",
            cause="interrupted-install",
            why="the package may be half removed; pip warns of an invalid distribution at every call",
            fix="pip install --force-reinstall the package, then delete the folders that begin with ~",
            files=names,
        )
    ]
