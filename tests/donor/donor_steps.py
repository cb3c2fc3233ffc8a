"""The two sides of a transfer, in this process: what a controller does, without agents and sessions."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import venvs

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.donor.inventory import op_inventory
from ddtree_deploy.donor.receive import stream_receive
from ddtree_deploy.donor.records import LAST, encode_json
from ddtree_deploy.donor.send import stream_send
from ddtree_deploy.donor.store import op_want
from ddtree_deploy.release.executor import apply_plan

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
        return {"staging": want["digest"], "site": found["manifest"]["site"], "names": found["manifest"]["names"]}
    return received(root, want, change(sent(donor, want)))


def provisioned(
    root: Path, base: Path, done: dict[str, Any], packages: dict[str, str] | None = None, take_edited: bool = False
) -> tuple[Path, dict[str, str]]:
    """The release into which the packages that were brought are put, and the notes of that: id -> message."""
    source = {"kind": "donor", "location": "/there", "host": "elsewhere", "take_edited": take_edited}
    install = [(name, version, []) for name, version in (packages or PACKAGES).items()]
    overlay = venvs.overlay_action(install, ["some-lib"], source)
    actions = [venvs.clone_action(base, "test-1", "d" * 64), overlay, venvs.activate_action()]
    plan = venvs.make_plan(root, base, "test-1", actions)
    brought = {"staging": done["staging"], "site": done["site"], "paths": done["names"], "notes": []}
    result = apply_plan({"plan": plan, "blobs": {}, "donor": brought}, silent)
    assert result["actions"][1]["result"]["staging"] == done["staging"]
    return root / "releases" / "test-1", {note["id"]: note["message"] for note in result["notes"]}


def tree_of(root: Path, done: dict[str, Any]) -> Path:
    return root / "cache" / "staging" / done["staging"]
