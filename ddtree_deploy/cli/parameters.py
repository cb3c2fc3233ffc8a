"""Arguments and options that several commands share, and what the shell completes for them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def complete_hosts(context: typer.Context, incomplete: str) -> list[str]:
    """Hosts and groups of the inventory; nothing where it cannot be read."""
    from ddtree_deploy.errors import DeployError
    from ddtree_deploy.inventory.load import load_inventory

    try:
        inventory = load_inventory(_inventory_path(context))
    except DeployError:
        return []
    return [name for name in [*inventory.hosts, *inventory.groups, "all"] if name.startswith(incomplete)]


def complete_profiles(incomplete: str) -> list[str]:
    """Names of the shipped profiles."""
    from ddtree_deploy.resources import data_dir

    return sorted(path.stem for path in data_dir("overlays").glob("*.yaml") if path.stem.startswith(incomplete))


def complete_playbooks(incomplete: str) -> list[str]:
    """Names of the shipped playbooks."""
    from ddtree_deploy.resources import data_dir

    return sorted(path.stem for path in data_dir("playbooks").glob("*.yaml") if path.stem.startswith(incomplete))


def complete_patch_sets(incomplete: str) -> list[str]:
    """Names of the shipped patch sets."""
    from ddtree_deploy.resources import data_dir

    return sorted(
        path.parent.name
        for path in data_dir("patches").glob("*/series.yaml")
        if path.parent.name.startswith(incomplete)
    )


def _inventory_path(context: Any) -> Path | None:
    while context is not None:
        value = context.params.get("inventory")
        if value:
            return Path(value)
        context = context.parent
    return None


Hosts = Annotated[
    list[str],
    typer.Argument(metavar="HOST", help="Hosts, groups, patterns, or all.", autocompletion=complete_hosts),
]
Host = Annotated[str, typer.Argument(metavar="HOST", help="A host of the inventory.", autocompletion=complete_hosts)]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile", metavar="NAME", help="Runtime profile: a name or a file.", autocompletion=complete_profiles
    ),
]
Playbook = Annotated[
    str | None,
    typer.Option(
        "--playbook", metavar="NAME", help="Steps to run: a name or a file.", autocompletion=complete_playbooks
    ),
]
Source = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="SOURCE",
        help="Where packages come from: index, index:URL, wheelhouse:FOLDER, donor:/PATH or donor:HOST:/PATH.",
    ),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="DONOR",
        help="Copy packages from a venv that works: HOST:/PATH, HOST (its base venv), USER@ADDRESS:/PATH, or /PATH on "
        "the host itself. What it lacks comes from --source, if that is given.",
        autocompletion=complete_hosts,
    ),
]
TakeEdited = Annotated[
    bool,
    typer.Option("--take-edited", help="From a donor, also take compiled files that are not what their RECORD says."),
]
Services = Annotated[
    list[str] | None,
    typer.Option("--service", metavar="NAME", help="Only this service (may be repeated). Default: all."),
]
