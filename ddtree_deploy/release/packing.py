"""Distributions of a donor on another host, each read as a tar that is the same as long as its files are. Agent-safe.

On the donor's host the controller asks for the digests, then reads what the target lacks, chunk by chunk; on the target
the tars, by now blobs, are unpacked into a staging folder that stands for the donor.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import stat
import tarfile
import zlib
from typing import Any, Dict, Iterator, List, Optional

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.release.distributions import Distribution, find_distributions, find_site, is_bytecode
from ddtree_deploy.release.donor import pick
from ddtree_deploy.release.files import make_folders, remove_file, shown
from ddtree_deploy.release.relocate import old_paths

_READ = 1 << 20
_CHUNK = 4 << 20  # bytes of a tar in one answer, before compression
_BLOCK = 512

# The tar being read by this session, and what its donor has; an agent serves one request after the other.
_reading: Optional[Iterator[bytes]] = None
_available: Dict[str, Dict[str, List[Distribution]]] = {}


def op_digest(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``donor.digest``: {path, packages {name: version}} -> {site, paths, packages {name: {sha256, size}}}.

    ``sha256`` and ``size`` are of the package's tar; ``paths``: all the names under which the donor may mention itself.
    Raises InputError ``donor-missing``, StepError ``source-lacks``, ``source-incomplete``.
    """
    venv, site = _venv(params)
    available = _available[venv] = find_distributions(venv, site)
    chosen = [pick(available, name, version, venv) for name, version in sorted(params["packages"].items())]
    found: Dict[str, Any] = {}
    for number, distribution in enumerate(chosen):
        digest, size = hashlib.sha256(), 0
        for piece in _tar(venv, distribution):
            digest.update(piece)
            size += len(piece)
            progress(Progress("hash", distribution.name, done_bytes=size, done_files=number, total_files=len(chosen)))
        found[distribution.name] = {"sha256": digest.hexdigest(), "size": size}
    progress(Progress("hash", "", done_files=len(chosen), total_files=len(chosen), finished=True))
    return {"site": site, "paths": old_paths(str(params["path"])), "packages": found}


def op_open(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``donor.open``: {path, name, version} -> {}; ``donor.read`` then gives the tar."""
    global _reading
    venv, site = _venv(params)
    available = _available.get(venv) or find_distributions(venv, site)
    distribution = pick(available, str(params["name"]), str(params["version"]), venv)
    _reading = _chunks(_tar(venv, distribution))
    return {}


def op_read(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``donor.read``: {} -> {data: base64 of zlib, end: bool}, the next chunk of what ``donor.open`` opened."""
    global _reading
    if _reading is None:
        raise StepError("donor-not-open", "donor.read without donor.open")
    piece = next(_reading, None)
    if piece is None:
        _reading = None
        return {"data": "", "end": True}
    return {"data": base64.b64encode(zlib.compress(piece, 1)).decode("ascii"), "end": False}


def unpack(tar: str, folder: str) -> None:
    """Unpack a tar of ours below ``folder``: files and symlinks, none outside. Raises StepError ``bad-donor-tar``."""
    try:
        with tarfile.open(tar, "r:", encoding="utf-8", errors="surrogateescape") as archive:
            for member in archive:
                _unpack_member(archive, member, folder)
    except tarfile.TarError as error:
        raise StepError("bad-donor-tar", f"what came from the donor cannot be read: {error}", where=tar) from error


def _unpack_member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: str) -> None:
    name = os.path.normpath(member.name)
    if os.path.isabs(name) or name == ".." or name.startswith("../"):
        raise StepError("bad-donor-tar", f"{shown(member.name)} leads out of the release", where=folder)
    target = os.path.join(folder, name)
    make_folders(os.path.dirname(target))
    if os.path.realpath(os.path.dirname(target)) != os.path.normpath(
        os.path.join(os.path.realpath(folder), os.path.dirname(name))
    ):
        raise StepError("bad-donor-tar", f"{shown(member.name)} goes through a symlink", where=folder)
    remove_file(target)  # two packages may own it
    if member.issym():
        os.symlink(member.linkname, target)
        return
    source = archive.extractfile(member) if member.isreg() else None
    if source is None:
        raise StepError("bad-donor-tar", f"{shown(member.name)} is neither a file nor a symlink", where=folder)
    with open(target, "xb") as stream:
        shutil.copyfileobj(source, stream, _READ)
    os.chmod(target, member.mode)
    os.utime(target, (member.mtime, member.mtime))


def _venv(params: Dict[str, Any]) -> tuple[str, str]:
    path = str(params["path"])
    if not os.path.isfile(os.path.join(path, "pyvenv.cfg")):
        raise InputError("donor-missing", f"the donor {path} is not a venv: it has no pyvenv.cfg", where=path)
    real = os.path.realpath(path)
    return real, find_site(real, "donor-missing")


def _tar(venv: str, distribution: Distribution) -> Iterator[bytes]:
    """The distribution's files, sorted, without byte code, owners and fractions of a second."""
    for path in sorted(set(distribution.files)):
        if is_bytecode(path):
            continue
        full = f"{venv}/{path}"
        try:
            info = os.lstat(full)
        except FileNotFoundError:
            raise StepError(
                "source-incomplete",
                f"{distribution.name}: {shown(full)} is in its RECORD but not there",
                where=shown(full),
                hint=f"reinstall {distribution.name} {distribution.version} in the environment that it is taken from",
            ) from None
        member = tarfile.TarInfo(path)
        member.mode = stat.S_IMODE(info.st_mode)
        member.mtime = int(info.st_mtime)
        if stat.S_ISLNK(info.st_mode):
            member.type, member.linkname = tarfile.SYMTYPE, os.readlink(full)
            yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
        elif stat.S_ISREG(info.st_mode):
            member.size = info.st_size
            yield member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")
            yield from _content(full, info.st_size)
    yield b"\0" * (2 * _BLOCK)


def _content(full: str, size: int) -> Iterator[bytes]:
    left = size
    with open(full, "rb") as stream:
        while left:
            piece = stream.read(min(left, _READ))
            if not piece:
                raise StepError(
                    "source-incomplete", f"{shown(full)} became shorter while it was read", where=shown(full)
                )
            left -= len(piece)
            yield piece
    yield b"\0" * (-size % _BLOCK)


def _chunks(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held = bytearray()
    for piece in pieces:
        held += piece
        if len(held) >= _CHUNK:
            yield bytes(held)
            held.clear()
    if held:
        yield bytes(held)
