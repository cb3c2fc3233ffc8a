"""Inventories: which hosts there are, how they are reached and what they shall serve."""

from __future__ import annotations

from ddtree_deploy.inventory.load import Described, Inventory, default_inventory, describe, load_inventory
from ddtree_deploy.inventory.secrets import Secret
from ddtree_deploy.inventory.settings import Connection, HostSettings

__all__ = [
    "Connection",
    "Described",
    "HostSettings",
    "Inventory",
    "Secret",
    "default_inventory",
    "describe",
    "load_inventory",
]
