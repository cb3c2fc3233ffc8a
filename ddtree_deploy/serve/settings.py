"""The settings of a launch: read from the operation's params and checked before anything is touched."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ddtree_deploy import codec
from ddtree_deploy.errors import InputError
from ddtree_deploy.plan.inputs import AUTO, BUDGET_HINT, parse_budget
from ddtree_deploy.serve.command import check_engine_arguments, split_options
from ddtree_deploy.serve.environment import expand_user, profile_arguments
from ddtree_deploy.serve.process import MARKER
from ddtree_deploy.serve.spec import ADMIN_API_KEY, ALGORITHMS, API_KEY, ServiceSpec, is_loopback

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SURROGATE = re.compile("[\ud800-\udfff]")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+\Z")
_OWNED_VARIABLES = {
    MARKER: "launch sets it to find the service's processes",
    "CUDA_VISIBLE_DEVICES": "choose the GPUs with the setting gpus",
    "CUDA_DEVICE_ORDER": "launch numbers GPUs in PCI bus order",
    "PYTHONNOUSERSITE": "a release never sees a user's packages",
}


@dataclass(frozen=True)
class LaunchSettings:
    """``service.launch``'s params. ``environment`` is public, ``secrets`` and ``api_key`` are not; times in seconds.

    ``release``: id or path, None for the current one. ``gpus``: indices in PCI bus order, None for all. ``ports``: the
    first and the last that may be used, two a service. ``replace``: stop what runs with other settings. ``wait``: until
    each service answers a completion; else until its supervisor runs.
    """

    root: str
    model: str = ""
    draft: Optional[str] = None
    algorithm: str = "ddtree"
    budget: Any = None  # int or its text, or auto
    release: Optional[str] = None
    gpus: Optional[List[int]] = None
    listen: str = "127.0.0.1"
    ports: Optional[List[int]] = None
    engine_arguments: List[str] = field(default_factory=list)
    environment: Dict[str, str] = field(default_factory=dict)
    secrets: Dict[str, str] = field(default_factory=dict)
    api_key: Optional[str] = None
    launch_timeout: float = 900.0
    replace: bool = False
    wait: bool = True


def read_settings(params: Dict[str, Any]) -> LaunchSettings:
    """Checked settings; ``api_key`` has become the secret DDTREE_API_KEY. Raises InputError."""
    settings = codec.from_dict(LaunchSettings, params, "launch")
    _check_text(settings)
    secrets = dict(settings.secrets)
    if settings.api_key is not None:
        secrets[API_KEY] = settings.api_key
    _check_variables(settings.environment, secrets)
    for name in (API_KEY, ADMIN_API_KEY):
        if name in secrets:
            _check_key(name, secrets[name])
    check_engine_arguments(settings.engine_arguments, API_KEY in secrets or ADMIN_API_KEY in secrets)
    if not is_loopback(settings.listen) and API_KEY not in secrets:
        raise InputError(
            "api-key-needed",
            f"a service that listens on {settings.listen} is reachable by others and needs an API key",
            where="listen",
            hint="set api_key (by reference), or listen on 127.0.0.1",
        )
    if settings.launch_timeout <= 0:
        raise InputError("bad-timeout", "the launch timeout must be above 0 seconds", where="launch_timeout")
    return LaunchSettings(**{**vars(settings), "secrets": secrets, "api_key": None})


def base_spec(settings: LaunchSettings, release: Path) -> ServiceSpec:
    """What all services of this launch share: a spec without name, GPU and ports. Looks at the model's files."""
    if settings.algorithm not in ALGORITHMS:
        raise InputError(
            "bad-algorithm",
            f"there is no algorithm {settings.algorithm!r}",
            where="algorithm",
            hint=f"one of {', '.join(ALGORITHMS)}",
        )
    budget = _budget(settings)
    if settings.algorithm != "none" and not settings.draft:
        raise InputError(
            "draft-missing",
            f"{settings.algorithm} needs a draft model",
            where="draft",
            hint="set draft to the DFlash drafter of the model, or algorithm to none",
        )
    draft = model_path(str(settings.draft), "draft") if settings.algorithm != "none" else None
    model = model_path(settings.model, "model")
    if draft is not None:
        _check_kinds(model, draft)
    return ServiceSpec(
        name="",
        release=str(release),
        release_id=release.name,
        model=model,
        algorithm=settings.algorithm,
        port=0,
        nccl_port=0,
        draft=draft,
        budget=budget,
        listen=settings.listen,
        profile_arguments=profile_arguments(release),
        engine_arguments=list(settings.engine_arguments),
        environment=dict(settings.environment),
        secret_names=sorted(settings.secrets),
        launch_timeout_s=settings.launch_timeout,
    )


def parse_ports(value: Optional[List[int]], default: Tuple[int, int]) -> range:
    """``[first, last]``, both included; raises InputError ``bad-ports``."""
    first, last = default if value is None else (value[0], value[-1]) if value else (0, 0)
    if not 1 <= first <= last <= 65535 or (value is not None and len(value) > 2):
        raise InputError(
            "bad-ports",
            f"{value} is not a range of ports",
            where="ports",
            hint="give the first and the last port, such as 30000-30099",
        )
    return range(first, last + 1)


def check_auto_budget(spec: ServiceSpec, on_cpu: bool, engine_arguments: Sequence[str]) -> None:
    """Refuse ``auto`` where the engine would, minutes later; raises InputError ``budget-auto``."""
    if spec.budget != AUTO:
        return
    reason = "this service runs on the CPU" if on_cpu else None
    if any(option == "--disable-cuda-graph" for option, _ in split_options(engine_arguments)):
        reason = reason or "--disable-cuda-graph turns them off"
    if reason is not None:
        raise InputError(
            "budget-auto",
            f"the budget auto is chosen by measuring CUDA graphs, and {reason}",
            where="budget",
            hint="name a number of draft-tree nodes, for example 31",
        )


def _budget(settings: LaunchSettings) -> Optional[Union[int, str]]:
    if settings.algorithm != "ddtree":
        return None  # an inventory's budget does not hinder a launch without a tree
    if settings.budget is None:
        hint = f"Say --budget N, or set budget in the inventory. {BUDGET_HINT}"
        raise InputError("budget-missing", "ddtree needs a budget", where="budget", hint=hint)
    try:
        return parse_budget(settings.budget)
    except InputError as error:
        raise InputError(error.id, error.message, where="budget", hint=error.hint) from None


def model_path(value: str, what: str) -> str:
    """A model's folder on this host, or a hub name, which the engine resolves; raises InputError."""
    if not value:
        raise InputError(f"{what}-missing", f"no {what} is given", where=what, hint=f"set {what} in the inventory")
    path = expand_user(value, what)
    if not path.is_absolute():
        if _HUB_NAME.match(value) and not value.startswith("."):
            return value
        raise InputError(
            f"bad-{what}",
            f"{value!r} is neither an absolute path on the host nor a hub name such as owner/model",
            where=what,
            hint="paths of models are paths on the host, and begin with /",
        )
    if not path.exists():
        raise InputError(
            f"{what}-missing", f"there is no {what} at {path} on this host", where=what, hint="copy it there first"
        )
    if path.is_dir() and not (path / "config.json").is_file():
        raise InputError(
            f"{what}-incomplete",
            f"{path} has no config.json, so it is not a model's folder",
            where=what,
            hint="name the folder that holds config.json and the weights",
        )
    return str(path)


def _check_text(settings: LaunchSettings) -> None:
    """Refuse what is no UTF-8, such as bytes of a path or of a secret in another encoding: JSON cannot keep it."""
    for key, value in vars(settings).items():
        parts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(part, str) and _SURROGATE.search(part) for part in parts):
            raise InputError(
                "bad-text", f"{key} holds what is no UTF-8", where=key, hint="rename it, or save it as UTF-8"
            )


def _check_kinds(model: str, draft: str) -> None:
    """Refuse what the engine ends with after minutes: a small model of its own as the draft, or the two exchanged."""
    drafts = _architectures(draft)
    if drafts and not _is_dflash(drafts):
        raise InputError(
            "draft-not-dflash",
            f"{draft} is no DFlash draft: its config.json says {drafts[0]}",
            where="draft",
            hint="a draft is trained for its model (DFlashDraftModel); a small model of its own does not do",
        )
    if _is_dflash(_architectures(model)):
        raise InputError(
            "model-is-draft",
            f"{model} is a DFlash draft, not a model",
            where="model",
            hint="name the model that the draft was trained for; the draft goes under draft",
        )


def _architectures(path: str) -> List[str]:
    """What a model's config.json names, nothing for a hub name and where it does not say so."""
    try:
        config = json.loads(Path(path, "config.json").read_bytes()) if Path(path).is_absolute() else None
    except (OSError, ValueError):
        return []  # the engine says what is wrong with it
    names = config.get("architectures") if isinstance(config, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _is_dflash(architectures: Sequence[str]) -> bool:
    return any("dflash" in name.lower() for name in architectures)


def _check_variables(environment: Dict[str, str], secrets: Dict[str, str]) -> None:
    for name, value in [*environment.items(), *secrets.items()]:
        if not _VARIABLE.match(name):
            raise InputError("bad-environment", f"{name!r} is not a variable's name", where="environment")
        if "\0" in value:
            raise InputError("bad-environment", f"{name} holds a NUL character", where="environment")
        if name in _OWNED_VARIABLES:
            raise InputError(
                "owned-variable", f"{name} cannot be set here", where="environment", hint=_OWNED_VARIABLES[name]
            )
    both = sorted(set(environment) & set(secrets))
    if both:
        raise InputError("bad-environment", f"{both[0]} is given as text and as a secret", where="environment")


def _check_key(name: str, value: str) -> None:
    if not value or value != value.strip() or value.startswith("-") or not value.isprintable() or not value.isascii():
        raise InputError(
            "bad-api-key",
            f"{name} must be printable ASCII on one line, without blanks around it, and not begin with -",
            where="api_key",
            hint="for example the output of: openssl rand -hex 32",
        )
