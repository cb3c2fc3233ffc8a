"""Tables in a narrow terminal: what somebody may want to copy is folded, never cut."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from ddtree_deploy.cli import release_commands
from ddtree_deploy.cli.hosts import _table
from ddtree_deploy.fleet import HostResult

ID = "sglang-0.5.11-ddtree-cu130-0123456789ab"


def drawn(draw: Any, *arguments: Any, width: int = 40) -> str:
    stream = io.StringIO()
    draw(Console(file=stream, width=width), *arguments)
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
    text = drawn(release_commands._draw_releases, HostResult("gpu1", value=found), False)
    assert "…" not in text
    start = text.splitlines()[1].index("release")
    end = text.splitlines()[1].index("crea")
    assert ID in column(text, start, end)


def test_releases_in_full_say_what_made_them() -> None:
    made = {"clone_method": "hardlink", "tool_version": "0.1.0"}
    release = {"id": ID, "created": "2026", "bytes": 5, "current": True, "complete": True, **made}
    broken = {**release, "current": False, "complete": False, "clone_method": None, "tool_version": None}
    found = {"releases": [release, broken], "current": ID, "previous": None, "partial": [], "foreign": []}
    lines = drawn(release_commands._draw_releases, HostResult("gpu1", value=found), True, width=120).splitlines()
    assert lines[1].split()[-4:] == ["cloned", "by", "made", "by"]
    assert lines[2].split()[-2:] == ["hardlink", "0.1.0"] and lines[3].split()[-2:] == ["-", "-"]


def test_host_names_are_whole_in_40_columns() -> None:
    name = "host-with-quite-a-long-name-in-the-inventory-0001"
    assert "…" not in drawn(_table, "provision", [HostResult(name), HostResult("b")])
