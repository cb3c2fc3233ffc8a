"""The released files of an engine, from its wheel."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from types import TracebackType
from typing import List, Optional, Type

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ddtree_deploy.errors import InputError

try:
    from lzma import LZMAError
except ImportError:  # a Python that was built without it; zipfile then raises RuntimeError
    from zipfile import BadZipFile as LZMAError  # type: ignore[assignment]

# What zipfile raises of a damaged, encrypted or exotic archive.
_DAMAGED = (zipfile.BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError, ValueError, struct.error)


class Wheel:
    """A wheel file opened for reading; a context manager. Raises InputError ``bad-wheel``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            what = "it is a folder, not a wheel" if path.exists() else "no such file"
            hint = "give the file of the released engine, sglang-<version>-py3-none-any.whl"
            raise InputError("bad-wheel", what, where=str(path), hint=hint)
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
            self._zip = zipfile.ZipFile(path)
        except InvalidWheelFilename as error:
            raise _bad(path, f"{error}; a wheel keeps the name that it was released with") from None
        except (OSError, *_DAMAGED) as error:
            raise _bad(path, f"not a readable wheel: {error}") from None
        self.distribution = str(canonicalize_name(name))
        self.version = str(version)
        self._names = set(self._zip.namelist())

    def __enter__(self) -> Wheel:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._zip.close()

    def files(self, package: str) -> List[str]:
        """Paths of the files below the top-level folder ``package``, sorted."""
        return sorted(name for name in self._names if name.startswith(f"{package}/") and not name.endswith("/"))

    def executable(self, path: str) -> bool:
        """Whether an installer makes the file executable."""
        return path in self._names and bool(self._zip.getinfo(path).external_attr >> 16 & 0o111)

    def read(self, path: str) -> Optional[bytes]:
        """The file's bytes, or None where the wheel has no such file."""
        if path not in self._names:
            return None
        try:
            return self._zip.read(path)
        except (OSError, *_DAMAGED) as error:
            raise _bad(self.path, f"{path}: {error}") from None


def _bad(path: Path, message: str) -> InputError:
    return InputError("bad-wheel", message, where=str(path), hint="download the released wheel again")
