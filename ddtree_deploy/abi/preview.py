"""Would this mix work? The audit of an environment that does not exist yet, from the files that it would be made of.

The base's files, without those of the distributions that leave, and with those that another environment (a staging venv
or a donor) would bring: a tree of logical paths over real files, which the audit reads as if it lay on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Optional, Set, Tuple

from packaging.utils import canonicalize_name

from ddtree_deploy.abi.audit import audit_loaded
from ddtree_deploy.abi.cache import cache_folder
from ddtree_deploy.abi.environment import Environment, complete, load_environment
from ddtree_deploy.abi.host import HostLimits, limits_from_facts, probe_host
from ddtree_deploy.abi.metadata import Distribution
from ddtree_deploy.abi.model import Finding, Report
from ddtree_deploy.abi.tree import Entry
from ddtree_deploy.agent.protocol import ProgressSink, silent
from ddtree_deploy.codec import to_dict
from ddtree_deploy.errors import InputError, StepError

_SHOWN = 5


@dataclass(frozen=True)
class Mix:
    """``remove`` leaves ``base``; ``take`` comes from the environment ``source`` (a distribution of the same name in
    ``base`` leaves). Names in any spelling; ``source`` None where nothing is taken. ``more``: further pairs of source
    and names."""

    base: str
    remove: List[str] = field(default_factory=list)
    source: Optional[str] = None
    take: List[str] = field(default_factory=list)
    more: List[Tuple[str, List[str]]] = field(default_factory=list)


def planned_environment(mix: Mix) -> Environment:
    """The environment that ``mix`` would make; its paths are those of the base.

    Raises InputError ``no-environment``, ``source-lacks`` (with the names that the source does not have).
    """
    base = load_environment(mix.base)
    sources = [*([(mix.source, mix.take)] if mix.source else []), *mix.more]
    leaving = _names([*mix.remove, *mix.take, *(name for _, names in mix.more for name in names)])
    gone = [path for dist in base.distributions if dist.name in leaving for path in _files(base, dist)]
    brought: Dict[str, Entry] = {}
    for source, names in sources:
        brought.update(_brought(base, source, _names(names)) if names else {})
    tree = base.tree.without(gone).overlay(brought)
    return complete(replace(base, tree=tree, distributions=[], torch_site=None, torch_version=None, torch_cuda=None))


def preview(
    mix: Mix, host: Optional[HostLimits] = None, progress: ProgressSink = silent, cache_dir: Optional[str] = None
) -> Report:
    """The audit of :func:`planned_environment`. Nothing is written but the cache."""
    return audit_loaded(planned_environment(mix), host, progress, cache_dir)


def require_fit(mix: Mix, host: HostLimits, progress: ProgressSink = silent, cache_dir: Optional[str] = None) -> Report:
    """The preview; raises StepError ``mix-would-fail`` with the findings where one of them is an error."""
    report = preview(mix, host, progress, cache_dir)
    errors = [finding for finding in report.findings if finding.severity == "error"]
    if errors:
        raise StepError(
            "mix-would-fail",
            f"the planned packages do not fit together, nothing was changed: {_sentence(errors)}",
            where=mix.base,
            hint=next((finding.fix for finding in errors if finding.fix), None),
            details={"findings": [to_dict(finding) for finding in errors]},
        )
    return report


def op_preview(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Agent operation ``abi.preview``: params ``base``, ``remove``, ``source``, ``take``; as ``abi.audit``: ``root``,
    ``facts``, ``environment``. Returns the Report of what would be."""
    base, source = params.get("base"), params.get("source")
    if not isinstance(base, str) or not base or not isinstance(source, (str, type(None))):
        raise InputError("bad-params", "abi.preview needs base, and source where packages are taken")
    variables = params.get("environment")
    host = probe_host(str(variables.get("LD_LIBRARY_PATH", "")) if isinstance(variables, dict) else None)
    if params.get("facts"):
        host = limits_from_facts(params["facts"], host)
    mix = Mix(base, list(params.get("remove") or []), source, list(params.get("take") or []))
    cache = cache_folder(params.get("root"))
    return to_dict(preview(mix, host, progress, cache))


def _names(names: Iterable[str]) -> Set[str]:
    return {str(canonicalize_name(name)) for name in names}


def _brought(base: Environment, source: str, take: Iterable[str]) -> Dict[str, Entry]:
    """Logical path in the base -> file, of the distributions ``take`` in ``source``."""
    other = load_environment(source)
    lacking = sorted(name for name in take if other.distribution(name) is None)
    if lacking:
        raise InputError(
            "source-lacks", f"{source} does not have {', '.join(lacking[:_SHOWN])}", where=source, hint="plan again"
        )
    files: Dict[str, Entry] = {}
    for name in take:
        dist = other.distribution(name)
        for path in _files(other, dist) if dist else []:
            entry = other.tree.find(path)
            if entry is not None and dist is not None and path.startswith(dist.site + "/"):
                files[base.site[0] + path[len(dist.site) :]] = entry
    return files


def _files(environment: Environment, dist: Distribution) -> List[str]:
    """What a distribution owns: by RECORD and its metadata folder; without RECORD, below its module's name."""
    paths = set(dist.record or {})
    starts = [dist.folder + "/"]
    if dist.record is None:
        starts.append(f"{dist.site}/{dist.name.replace('-', '_')}/")
        paths.add(dist.folder)  # an egg-info may be a file
    paths.update(path for path in environment.tree.files if path.startswith(tuple(starts)))
    return sorted(paths)


def _sentence(errors: List[Finding]) -> str:
    lines = [f"{finding.id}: {finding.message}" for finding in errors[:_SHOWN]]
    more = f" (and {len(errors) - _SHOWN} more)" if len(errors) > _SHOWN else ""
    return "; ".join(lines) + more
