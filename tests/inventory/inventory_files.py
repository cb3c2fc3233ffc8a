"""Help for the tests of this folder: an inventory from text."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from ddtree_deploy.errors import ExitCode, InputError
from ddtree_deploy.inventory import HostSettings, Inventory, load_inventory


def load(folder: Path, text: str) -> Inventory:
    path = folder / "hosts.yaml"
    path.write_text(textwrap.dedent(text), "utf-8")
    return load_inventory(path)


def one(folder: Path, text: str) -> HostSettings:
    """Settings of a host ``a`` with the given keys."""
    return load(folder, "hosts:\n  a:\n" + textwrap.indent(textwrap.dedent(text).strip(), "    ") + "\n").host("a")


def fails(folder: Path, text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load(folder, text)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    return caught.value


def one_fails(folder: Path, text: str) -> InputError:
    """The error of a host ``a`` with the given keys, which begin in line 3, column 5."""
    with pytest.raises(InputError) as caught:
        one(folder, text)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    return caught.value
