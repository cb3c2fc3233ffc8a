"""The two sides of a transfer, in this process: what a controller does, without agents and sessions."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.donor.inventory import op_inventory
from ddtree_deploy.donor.receive import stream_receive
from ddtree_deploy.donor.records import LAST, encode_json
from ddtree_deploy.donor.send import stream_send
from ddtree_deploy.donor.store import op_want

PACKAGES = {"some-lib": "2.0", "extra": "1.0", "native": "3.0"}


def inventory(donor: Path, packages: dict[str, str] | None = None, **params: Any) -> dict[str, Any]:
    return op_inventory({"path": str(donor), "packages": packages or PACKAGES, **params}, silent)


def wanted(root: Path, base: Path, found: dict[str, Any]) -> dict[str, Any]:
    return op_want({"root": str(root), "base": str(base), "manifest": found["manifest"]}, silent)


def sent(donor: Path, want: dict[str, Any], compress: bool = False) -> bytes:
    """The records that the donor sends, without the last."""
    pieces: list[bytes] = []
    params = {"venv": str(donor), "files": want["files"], "compress": compress}
    stream_send(params, io.BytesIO(), pieces.append, silent)
    return b"".join(pieces)


def received(root: Path, want: dict[str, Any], data: bytes, last: bool = True) -> dict[str, Any]:
    stream = io.BytesIO(data + (encode_json(LAST, {"problem": None}) if last else b""))
    return stream_receive({"root": str(root), "digest": want["digest"]}, stream, lambda data: None, silent)


def brought(
    donor: Path,
    root: Path,
    base: Path,
    packages: dict[str, str] | None = None,
    change: Callable[[bytes], bytes] = lambda data: data,
    **params: Any,
) -> dict[str, Any]:
    found = inventory(donor, packages, **params)
    want = wanted(root, base, found)
    if want["ready"]:
        return {"staging": want["digest"], "site": found["manifest"]["site"], "notes": []}
    return received(root, want, change(sent(donor, want)))
