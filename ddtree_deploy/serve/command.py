"""The engine's command line from a ServiceSpec. Pure: data in, argument vector out."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterable, List, Optional, Sequence, Tuple

from ddtree_deploy.errors import InputError
from ddtree_deploy.serve.spec import ServiceSpec

SECRET_OPTIONS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")
# what `launch` itself decides; a second value by an engine argument would make status, ports or probes wrong
OWNED_OPTIONS: Dict[str, str] = {
    "--model-path": "model",
    "--model": "model",
    "--host": "listen",
    "--port": "the port range",
    "--nccl-port": "the port range",
    "--speculative-algorithm": "algorithm",
    "--speculative-algo": "algorithm",
    "--speculative-draft-model-path": "draft",
    "--speculative-draft-model": "draft",
    "--speculative-ddtree-budget": "budget",
    "--base-gpu-id": "gpus",
}
_OTHERS = ("--ssl-keyfile",)  # the engine's own options whose names begin one of the above


def engine_command(spec: ServiceSpec, engine_config: Path) -> List[str]:
    """``python -m sglang.launch_server …`` for ``spec``.

    Later options win: ours, the profile's, then the user's; an option of the profile's that the user gives too is
    left out. ``engine_config`` carries the API keys, since a command line can be read by everybody on the host.
    """
    command = [str(Path(spec.release) / "bin" / "python"), "-m", "sglang.launch_server"]
    if spec.has_engine_config:
        command += ["--config", str(engine_config)]
    command += ["--model-path", spec.model, "--host", spec.listen, "--port", str(spec.port)]
    command += ["--nccl-port", str(spec.nccl_port)]
    command += speculative_arguments(spec)
    return command + merge_arguments(spec.profile_arguments, spec.engine_arguments)


def speculative_arguments(spec: ServiceSpec) -> List[str]:
    if spec.algorithm == "none":
        return []
    arguments = ["--speculative-algorithm", spec.algorithm.upper(), "--speculative-draft-model-path", str(spec.draft)]
    if spec.algorithm == "ddtree":
        arguments += ["--speculative-ddtree-budget", str(spec.budget)]
    return arguments


def merge_arguments(profile: Sequence[str], user: Sequence[str]) -> List[str]:
    """The profile's options, without those that the user sets too, then the user's as given."""
    names = {name for name, _ in split_options(user)}
    kept = [token for name, tokens in split_options(profile) if name not in names for token in tokens]
    return kept + list(user)


def split_options(arguments: Sequence[str]) -> List[Tuple[str, List[str]]]:
    """Group an argument vector by option: ``--a 1 2 --b=3`` -> ``[("--a", [--a, 1, 2]), ("--b", [--b=3])]``."""
    groups: List[Tuple[str, List[str]]] = []
    for token in arguments:
        if token.startswith("--") or not groups:
            groups.append((token.split("=", 1)[0], [token]))
        else:
            groups[-1][1].append(token)
    return groups


def option_value(arguments: Sequence[str], name: str) -> Optional[str]:
    """The last value that ``arguments`` give option ``name``, or None."""
    value: Optional[str] = None
    for option, tokens in split_options(arguments):
        if option == name:
            value = tokens[0].partition("=")[2] if "=" in tokens[0] else (tokens[1] if len(tokens) > 1 else None)
    return value


def stands_for(flag: str, options: Iterable[str]) -> Optional[str]:
    """The one of ``options`` that ``flag`` is or may be taken for, else None.

    The engine takes any beginning of an option's name for the option (``--api-k``); ``_`` for ``-`` it refuses, but
    its command line would have shown the value by then.
    """
    name = "--" + flag.partition("=")[0].lstrip("-").replace("_", "-").lower()
    if name in _OTHERS or len(name) < len("--xx"):  # one letter begins too many for the engine to take it
        return None
    known = sorted(options, key=len)
    return name if name in known else next((option for option in known if option.startswith(name)), None)


def check_engine_arguments(arguments: Sequence[str], api_key: bool) -> None:
    """Refuse engine arguments that would show a secret or contradict what ``launch`` decides (InputError)."""
    for name, tokens in split_options(arguments):
        if not name.startswith("--"):
            raise InputError(
                "bad-engine-argument",
                f"engine argument {tokens[0]!r} is not an option",
                where="engine_arguments",
                hint="options start with --; give an option's value right after it",
            )
        secret, owned = stands_for(name, SECRET_OPTIONS), stands_for(name, OWNED_OPTIONS)
        if secret is not None:
            raise InputError(
                "secret-in-arguments",
                f"{secret} would show the secret to everybody on the host, who can read command lines",
                where="engine_arguments",
                hint="give the key as a secret (api_key) instead",
            )
        if owned is not None:
            raise InputError(
                "owned-engine-argument",
                f"{_as_meant(name, owned)} is set by launch itself",
                where="engine_arguments",
                hint=f"use the setting for it: {OWNED_OPTIONS[owned]}",
            )
        if name == "--config" and api_key:
            raise InputError(
                "config-and-api-key",
                "the engine takes one --config file only, and the API key travels in it",
                where="engine_arguments",
                hint="give what your file holds as engine arguments",
            )


def _as_meant(name: str, option: str) -> str:
    return option if name == option else f"{name} (taken for {option})"
