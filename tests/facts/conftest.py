"""Small venvs with hand-made distributions."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import venvs

Install = Callable[..., Path]


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A real venv without any package."""
    return venvs.make_venv(tmp_path / "base")


@pytest.fixture
def site(venv: Path) -> Path:
    (folder,) = venv.glob("lib/python3*/site-packages")
    return folder


@pytest.fixture
def install(site: Path) -> Install:
    """Put a distribution into the venv as an installer would: ``install(name, version, files={path: bytes}, ...)``."""

    def put(
        name: str,
        version: str,
        files: dict[str, bytes] | None = None,
        metadata: str = "",
        record: bool = True,
        extra: dict[str, str] | None = None,
    ) -> Path:
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        texts = {
            "METADATA": f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n{metadata}\nA description.\n",
            "WHEEL": "Wheel-Version: 1.0\nTag: cp311-cp311-manylinux_2_28_x86_64\nTag: cp311-cp311-linux_x86_64\n",
            "INSTALLER": "uv\n",
            **(extra or {}),
        }
        contents = {f"{info.name}/{file}": text.encode() for file, text in texts.items()} | (files or {})
        rows = []
        for path, data in contents.items():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            (site / path).write_bytes(data)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{path},sha256={digest},{len(data)}")
        if record:
            (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,", ""]))
        return info

    return put
