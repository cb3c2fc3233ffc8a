"""Where the data folders are: `inventory`, `overlays`, `pairs`, `patches`, `playbooks`."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_dir(name: str) -> Path:
    """The folder ``name`` of the source tree if we run from one, else the copy inside the installed package."""
    source = _PACKAGE.parent / name
    if (_PACKAGE.parent / "pyproject.toml").is_file() and source.is_dir():
        return source
    return _PACKAGE / "data" / name
