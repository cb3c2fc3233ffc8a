"""What every command gets: the global options, the inventory, and the way to hosts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ddtree_deploy.cli.output import Output

if TYPE_CHECKING:
    from ddtree_deploy.inventory.load import Inventory
    from ddtree_deploy.inventory.settings import HostSettings


@dataclass
class AppContext:
    output: Output = field(default_factory=Output)
    inventory_path: Path | None = None
    accept_new_host_keys: bool = False

    def inventory(self) -> Inventory:
        """The inventory of ``--inventory``, else the one that is shipped. Raises InputError."""
        from ddtree_deploy.inventory.load import load_inventory

        return load_inventory(self.inventory_path)

    def hosts(self, patterns: list[str]) -> list[HostSettings]:
        return self.inventory().select(patterns)


def app_context(context: typer.Context) -> AppContext:
    """The context of the running command."""
    root: Any = context.find_root()
    if isinstance(root.obj, AppContext):
        return root.obj
    raise RuntimeError("the command ran without its callback")
