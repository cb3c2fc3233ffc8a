"""Pairs of versions that are known not to work together: ``knownbad.json``, dated, with sources.

To add one, append an entry: ``packages`` maps names (alternatives by ``|``) to specifiers, all of which must hold;
``same_version`` names distributions whose public versions must be equal. Optional conditions: ``capabilities`` (one of
the host's GPUs), ``missing`` (a file below site-packages), ``unless`` (an entry that tells it better).
"""

from __future__ import annotations

import functools
import json
import pkgutil
from typing import Any, Dict, List, Optional

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from ddtree_deploy.abi.context import Context
from ddtree_deploy.abi.metadata import Distribution
from ddtree_deploy.abi.model import Finding


@functools.lru_cache(maxsize=1)
def entries() -> List[Dict[str, Any]]:
    """The entries of the data file, in its order."""
    data = pkgutil.get_data("ddtree_deploy.abi", "knownbad.json")
    return list(json.loads(data or b'{"entries": []}')["entries"])


def check(context: Context) -> List[Finding]:
    findings, told = [], set()
    for entry in entries():
        if entry.get("unless") in told:
            continue
        matched = _matches(context, entry)
        if matched:
            told.add(entry["id"])
            findings.append(_finding(entry, matched))
    return findings


def _matches(context: Context, entry: Dict[str, Any]) -> List[Distribution]:
    """The distributions that an entry is about, empty where it does not apply."""
    capabilities = entry.get("capabilities")
    if capabilities and not set(capabilities) & set(context.host.compute_capabilities):
        return []
    missing = entry.get("missing")
    if missing and any(context.environment.tree.find(f"{site}/{missing}") for site in context.environment.site):
        return []
    if "same_version" in entry:
        found = [context.environment.distribution(name) for name in entry["same_version"]]
        present = [dist for dist in found if dist is not None]
        equal = len({dist.version.split("+")[0] for dist in present}) < 2
        return present if len(present) == len(found) and not equal else []
    matched = []
    for names, specifier in entry["packages"].items():
        dist = _first(context, names.split("|"), specifier)
        if dist is None:
            return []
        matched.append(dist)
    return matched


def _first(context: Context, names: List[str], specifier: str) -> Optional[Distribution]:
    for name in names:
        dist = context.environment.distribution(name)
        try:
            if dist is not None and SpecifierSet(specifier).contains(Version(dist.version), prereleases=True):
                return dist
        except InvalidVersion:
            continue
    return None


def _finding(entry: Dict[str, Any], matched: List[Distribution]) -> Finding:
    fix = entry["fix"]
    for dist in matched:
        fix = fix.replace("{" + dist.name + "}", dist.version.split("+")[0])
    return Finding(
        id="known-bad",
        severity=entry["severity"],
        title=entry["title"],
        message=" with ".join(dist.label for dist in matched)
        + f" ({entry['id']}, {entry['date']}: {entry['sources'][0]})",
        when=entry["when"],
        cause=f"known-bad:{entry['id']}",
        why=entry["why"],
        fix=fix,
        packages=[dist.label for dist in matched],
    )
