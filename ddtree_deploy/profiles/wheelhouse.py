"""Reading a folder of wheels on the controller: names, sha256, and whether the files are whole."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Optional, Sequence

from packaging.utils import InvalidWheelFilename, canonicalize_name, canonicalize_version, parse_wheel_filename
from packaging.version import InvalidVersion

from ddtree_deploy.agent.protocol import Progress, ProgressSink, silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.plan.inputs import WheelInfo
from ddtree_deploy.profiles.model import LockedPackage

_CHUNK = 4 * 1024 * 1024
_UNREADABLE = (OSError, zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, EOFError, NotImplementedError, ValueError)


def read_wheelhouse(
    folder: Path, packages: Sequence[LockedPackage] = (), on_progress: ProgressSink = silent
) -> list[WheelInfo]:
    """The wheels of ``folder``, sorted by file name; with ``packages`` only wheels of these, whatever their version.

    Cheap checks come first: every name and every zip directory, then one sha256 pass. Only a wheel of a locked version
    with a hash that the lock does not know is unpacked in memory, to tell a damaged file from another build. Which
    wheel a host takes is the planner's to say.
    Raises InputError: ``wheelhouse-missing``, ``wheelhouse-empty``, ``wheel-bad-name``, ``wheel-corrupt`` (all of the
    folder's in one error).
    """
    folder = folder.expanduser()
    files = _wheel_files(folder)
    wanted = {package.name for package in packages}
    named = []
    problems: list[InputError] = []
    for path in files:
        try:
            name, version, *_ = parse_wheel_filename(path.name)
        except (InvalidWheelFilename, InvalidVersion):
            hint = "name-version-python-abi-platform.whl; a download that was renamed? Fetch it again"
            problems.append(InputError("wheel-bad-name", "not the name of a wheel", where=str(path), hint=hint))
            continue
        if not wanted or name in wanted:
            named.append((path, canonicalize_name(name), str(version)))
    problems += [problem for path, *_ in named if (problem := _directory_problem(path))]
    _raise(problems)
    locked: dict[tuple[str, str], set[str]] = {}
    for package in packages:
        locked.setdefault((package.name, canonicalize_version(package.version)), set()).update(package.hashes)
    total = sum(path.stat().st_size for path, *_ in named)
    hashing = _Hashing(on_progress, total, len(named))
    wheels = [hashing.wheel(path, name, version) for path, name, version in named]
    hashing.finish()
    for wheel in wheels:
        known = locked.get((wheel.name, canonicalize_version(wheel.version)))
        if known is not None and wheel.sha256 not in known:
            problems += [problem] if (problem := corruption(Path(wheel.path))) else []
    _raise(problems)
    return wheels


def corruption(path: Path) -> Optional[InputError]:
    """What is damaged in a wheel, by its zip checksums and its RECORD; None where every file is whole."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            record = next((name for name in names if name.endswith(".dist-info/RECORD") and name.count("/") == 1), None)
            if record is None:
                return _corrupt(path, "it has no RECORD")
            rows = csv.reader(io.StringIO(archive.read(record).decode("utf-8")))
            recorded = {row[0]: row[1] for row in rows if len(row) >= 2 and row[1]}
            for name, expected in recorded.items():
                if name not in names:
                    return _corrupt(path, f"{name} is missing, its RECORD names it")
                algorithm, _, digest = expected.partition("=")
                if algorithm in hashlib.algorithms_guaranteed and _digest(archive, name, algorithm) != digest:
                    return _corrupt(path, f"{name} is not the file that its RECORD names")
            unhashed = [name for name in names if name not in recorded and not name.endswith("/")]
            for name in unhashed:
                with archive.open(name) as stream:
                    while stream.read(_CHUNK):  # reading to the end compares the checksum
                        pass
    except _UNREADABLE as error:
        return _corrupt(path, str(error) or type(error).__name__)
    return None


def _wheel_files(folder: Path) -> list[Path]:
    hint = "wheelhouse: names a folder of .whl files on this machine; fill it as docs/profiles.md says"
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".whl")
    except FileNotFoundError:
        raise InputError("wheelhouse-missing", "the wheelhouse does not exist", where=str(folder), hint=hint) from None
    except OSError as error:
        message = f"the wheelhouse cannot be read: {error.strerror}"
        raise InputError("wheelhouse-missing", message, where=str(folder), hint=hint) from None
    if not files:
        raise InputError("wheelhouse-empty", "the wheelhouse has no wheels", where=str(folder), hint=hint)
    return files


def _directory_problem(path: Path) -> Optional[InputError]:
    """A truncated or foreign file shows without its zip directory, which is at the end."""
    try:
        if not path.is_file():
            return _corrupt(path, "it is not a file")
        with zipfile.ZipFile(path) as archive:
            if not any(name.endswith(".dist-info/METADATA") for name in archive.namelist()):
                return _corrupt(path, "it has no METADATA")
    except _UNREADABLE as error:
        return _corrupt(path, str(error) or type(error).__name__)
    return None


def _corrupt(path: Path, why: str) -> InputError:
    message = f"{path.name} is damaged: {why[:1].lower()}{why[1:]}"
    return InputError("wheel-corrupt", message, where=str(path), hint="fetch it again")


def _digest(archive: zipfile.ZipFile, name: str, algorithm: str) -> str:
    with archive.open(name) as stream:
        digest = hashlib.new(algorithm)
        while block := stream.read(_CHUNK):
            digest.update(block)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode("ascii")


def _raise(problems: Iterable[InputError]) -> None:
    found = list(problems)
    if not found:
        return
    first = found[0]
    if len(found) > 1:
        first.details["errors"] = [{"id": e.id, "message": e.message, "where": e.where, "hint": e.hint} for e in found]
    raise first


@dataclass
class _Hashing:
    """Hashes wheels and says how far it is."""

    sink: ProgressSink
    total_bytes: int
    total_files: int
    done_bytes: int = 0
    done_files: int = 0

    def wheel(self, path: Path, name: str, version: str) -> WheelInfo:
        digest = hashlib.sha256()
        size = 0
        try:
            with path.open("rb") as stream:
                while block := stream.read(_CHUNK):
                    digest.update(block)
                    size += len(block)
                    self._report(path.name, len(block))
        except OSError as error:
            raise _corrupt(path, f"it cannot be read: {error.strerror}") from error
        self.done_files += 1
        return WheelInfo(path=str(path.absolute()), name=name, version=version, sha256=digest.hexdigest(), bytes=size)

    def finish(self) -> None:
        self._report("", 0, finished=True)

    def _report(self, message: str, count: int, finished: bool = False) -> None:
        self.done_bytes += count
        progress = Progress(
            "hash", message, self.done_bytes, self.total_bytes, self.done_files, self.total_files, finished
        )
        self.sink(progress)
