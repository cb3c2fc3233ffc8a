"""Tables in a narrow terminal: what somebody may want to copy is folded, never cut."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from ddtree_deploy.cli import release_commands
from ddtree_deploy.cli.hosts import _table
from ddtree_deploy.fleet import HostResult

ID = "sglang-0.5.11-ddtree-cu130-0123456789ab"


def drawn(draw: Any, *arguments: Any) -> str:
    stream = io.StringIO()
    draw(Console(file=stream, width=40), *arguments)
    return stream.getvalue()


def column(text: str, start: int, end: int) -> str:
    return "".join(line[start:end].strip() for line in text.splitlines())


def test_release_ids_are_whole_in_40_columns() -> None:
    release = {
        "id": ID,
        "created": "2026-01-01T00:00:00.000Z",
        "bytes": 5,
        "current": True,
        "complete": True,
    }
    found = {"releases": [release], "current": ID, "previous": None, "partial": [], "foreign": []}
    text = drawn(release_commands._draw_releases, HostResult("gpu1", value=found))
    assert "…" not in text
    start = text.splitlines()[1].index("release")
    end = text.splitlines()[1].index("crea")
    assert ID in column(text, start, end)


def test_host_names_are_whole_in_40_columns() -> None:
    name = "host-with-quite-a-long-name-in-the-inventory-0001"
    assert "…" not in drawn(_table, "provision", [HostResult(name), HostResult("b")])
