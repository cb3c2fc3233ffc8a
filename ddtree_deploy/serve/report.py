"""How services are shown. Controller only. ``service`` is one of ``service.status``'s or ``service.launch``'s dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

_STYLES = {"ready": "green", "starting": "yellow", "stopping": "yellow", "stopped": "dim"}
_COLUMNS = ("service", "state", "pid", "address", "GPU", "algorithm", "model", "release", "uptime", "last completion")


def render(console: Console, services: Iterable[Mapping[str, Any]], *, host: str = "") -> None:
    """A table with a row a service; below it why a service failed, with the end of its log."""
    from rich.table import Table
    from rich.text import Text

    known = list(services)
    place = f"{host}: " if host else ""
    if not known:
        console.print(Text(f"{place}no services"))
        return
    table = Table(title=f"{place}services", title_justify="left", box=None, pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold")
    for service in known:
        state = Text(str(service["state"]), style=_STYLES.get(str(service["state"]), "bold red"))
        table.add_row(Text(str(service["name"])), state, *(Text(cell) for cell in _cells(service)))
    console.print(table)
    for service in known:
        if service["state"] in ("failed", "dead", "unknown"):
            console.print(Text(f"\n{service['name']}: {service.get('cause') or service['detail'] or ''}", style="red"))
            for line in service.get("last_lines") or []:
                console.print(Text(f"  {line}"))
        elif service["detail"]:
            console.print(Text(f"{service['name']}: {service['detail']}", style="dim"))


def _cells(service: Mapping[str, Any]) -> list[str]:
    if service["state"] == "unknown":
        return []
    gpu = "CPU" if service["gpu_index"] is None else f"{service['gpu_index']} {service['gpu_uuid'] or ''}".strip()
    budget = f" {service['budget']}" if service["budget"] is not None else ""
    return [
        str(service["pid"] or ""),
        f"{service.get('listen', '')}:{service['port']}",
        gpu,
        f"{service['algorithm']}{budget}",
        str(service["model"]).rstrip("/"),
        str(service["release"]),
        uptime(service["started"]),
        _probe(service),
    ]


def _probe(service: Mapping[str, Any]) -> str:
    probe = service.get("probe")
    if not probe:
        return ""
    if not probe["ok"]:
        return f"failed: {probe['error']}"
    steps = service.get("tokens_per_step")
    return f"{probe['seconds']:.2f} s" + (f", {steps:.2f} tokens/step" if steps else "")


def uptime(started: str | None, now: datetime | None = None) -> str:
    """``3d 4h``, ``5m 7s`` since the ISO time ``started``; empty if it does not run."""
    if started is None:
        return ""
    left = max(0, int(((now or datetime.now(timezone.utc)) - datetime.fromisoformat(started)).total_seconds()))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size}{unit}")
            left %= size
    return " ".join(parts[:2])
