"""Files that the controller sends: ``<root>/cache/blobs/<sha256>``. Standard library only (agent-safe).

A blob's name is its content, so it is sent once for all hosts' releases, and a half-sent one is never seen: it is
written beside, checked, synced and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any, BinaryIO, Dict, List

from ddtree_deploy.agent.protocol import ProgressSink
from ddtree_deploy.errors import StepError
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.space import is_full, require_space

CHUNK = 1 << 20
STALE = 24 * 3600.0  # seconds after which a half-written blob belongs to nobody
_SHA256 = re.compile(r"[0-9a-f]{64}\Z")


def blob_path(root: str, sha256: str) -> Path:
    """Where the blob is, or will be."""
    if not _SHA256.match(sha256):
        raise StepError("blob-invalid", f"not a sha256: {sha256[:80]!r}")
    return Layout(root).blob(sha256)


def op_missing(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``blob.missing``. params: ``root``, ``blobs`` {sha256: size in bytes}.

    Returns ``missing`` [sha256] and ``paths`` {sha256: path} of all. StepError ``no-space`` if they do not fit.
    """
    root, sizes = str(Layout(params["root"]).root), params["blobs"]
    paths = {sha256: blob_path(root, sha256) for sha256 in sizes}
    missing = [sha256 for sha256, path in paths.items() if not _has(path, sizes[sha256])]
    require_space(root, sum(sizes[sha256] for sha256 in missing), "what is to be sent needs")
    return {"missing": missing, "paths": {sha256: str(path) for sha256, path in paths.items()}}


def put(params: Dict[str, Any], stream: BinaryIO) -> Dict[str, Any]:
    """Op ``blob.put``. params: ``root``, ``sha256``, ``size``; then ``size`` bytes on ``stream``.

    Returns ``path``. Whatever goes wrong, all bytes are read, so that the next request is found.
    """
    left = int(params["size"])
    try:
        path = blob_path(params["root"], params["sha256"])
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path.parent)
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        digest = hashlib.sha256()
        try:
            with partial.open("wb") as file:
                while left:
                    chunk = _read(stream, left)
                    left -= len(chunk)
                    digest.update(chunk)
                    file.write(chunk)
                file.flush()
                os.fsync(file.fileno())
            if digest.hexdigest() != path.name:
                raise StepError("blob-corrupt", f"blob {path.name[:12]} arrived with sha256 {digest.hexdigest()[:12]}")
            partial.replace(path)
        except BaseException:
            try:
                partial.unlink(missing_ok=True)
            except BaseException:  # the signal that stops the agent comes once, and may come here
                partial.unlink(missing_ok=True)
                raise
            raise
    except OSError as error:
        raise write_error(error, params["root"]) from error
    finally:
        while left:
            left -= len(_read(stream, left))
    return {"path": str(path)}


def write_error(error: OSError, root: str) -> StepError:
    """What an OSError while writing under ``root`` means to the user."""
    place = str(error.filename or root)
    if is_full(error):
        return StepError("no-space", f"no space left while writing {place}", where=place, hint="free space, or prune")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = f"make {root} writable for the user that connects, or choose another root"
        return StepError("root-not-writable", f"cannot write {place}: {error.strerror}", where=place, hint=hint)
    hint = "is something else in its place? Move it away, or choose another root"
    return StepError("write-failed", f"cannot write {place}: {error.strerror or error}", where=place, hint=hint)


def _read(stream: BinaryIO, left: int) -> bytes:
    chunk = stream.read(min(left, CHUNK))
    if not chunk:
        raise BrokenPipeError("the controller went away in the middle of a blob")
    return chunk


def _has(path: Path, size: int) -> bool:
    try:
        return path.stat().st_size == size
    except OSError:
        return False


def _remove_stale(folder: Path) -> None:
    partials: List[Path] = list(folder.glob("*.partial"))
    for partial in partials:
        with contextlib.suppress(OSError):
            if time.time() - partial.stat().st_mtime > STALE:
                partial.unlink()
