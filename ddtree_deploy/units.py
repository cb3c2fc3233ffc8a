"""Quantities as people read them. Standard library only (agent-safe)."""

from __future__ import annotations

from typing import Sequence


def human_bytes(count: float) -> str:
    """``1536`` -> ``1.5 KiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def plural(count: int, noun: str) -> str:
    """``1 file``, ``2 patches``, ``no files``."""
    ending = "es" if noun.endswith(("ch", "s", "x")) else "s"
    return f"{count if count else 'no'} {noun}{'' if count == 1 else ending}"


def some(items: Sequence[str]) -> str:
    """``a, b, c, d, e and 3 more``."""
    return ", ".join(items[:5]) + (f" and {len(items) - 5} more" if len(items) > 5 else "")
