"""The donor's side of a transfer: reads files and sends them as records. Reads, and changes nothing. Agent-safe."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import zlib
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple

from ddtree_deploy.agent.protocol import Progress, ProgressSink, silent
from ddtree_deploy.donor.records import DATA, END, FILE, HELLO, LAST, PACKED, encode, encode_json
from ddtree_deploy.errors import StepError
from ddtree_deploy.facts.system import boot_id

MARKER = b"DDTREE-DONOR 1\n"
_CHUNK = 1 << 18
_FLUSH = 1 << 19  # small files travel together


def stream_send(
    params: Dict[str, Any], requests: BinaryIO, emit: Callable[[bytes], None], progress: ProgressSink
) -> Dict[str, Any]:
    """Op ``donor.send``. params: ``venv``, ``files`` [[number, path, size, offset]], ``compress``.

    Emits records (see ``records``), whole ones in each piece, without the last. Returns {files, bytes}.
    """
    sender = Sender(str(params["venv"]), bool(params.get("compress")), emit, progress)
    sender.total_files = len(params["files"])
    sender.total_bytes = sum(size - offset for _, _, size, offset in params["files"])
    for number, path, size, offset in params["files"]:
        sender.send(number, path, size, offset)
    sender.flush()
    sender.finish()
    return {"files": sender.done_files, "bytes": sender.done_bytes}


def main() -> int:
    """``agent.pyz donor-send``: another host's agent runs it over ssh. The request is a line of JSON on stdin, as the
    params of ``donor.send``; stdout gets the marker and then the records."""
    request = json.loads(sys.stdin.buffer.readline())
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)

    def emit(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[out.write(view) or 0 :]

    try:
        emit(MARKER + encode_json(HELLO, {"boot_id": boot_id()}))
        stream_send(request, sys.stdin.buffer, emit, silent)
        emit(encode_json(LAST, {"problem": None}))
    except BrokenPipeError:
        return 1
    return 0


class Sender:
    """Sends one file after the other. A file that changes while it is read is sent all the same, and said to have."""

    def __init__(self, venv: str, compress: bool, emit: Callable[[bytes], None], progress: ProgressSink) -> None:
        self.total_bytes = self.total_files = self.done_bytes = self.done_files = 0
        self._venv = venv
        self._compress = compress
        self._emit = emit
        self._progress = progress
        self._pieces: List[bytes] = []
        self._waiting = 0

    def send(self, number: int, path: str, size: int, offset: int) -> None:
        """The bytes of ``path`` from ``offset``; ``size`` is what the manifest says."""
        if os.path.isabs(path) or os.path.normpath(path) != path or path.split("/")[0] == "..":
            raise StepError("bad-manifest", f"{path!r} is not a file of the donor")
        self._put(encode_json(FILE, {"file": number, "offset": offset}))
        try:
            sha256, problem = self._send_bytes(f"{self._venv}/{path}", path, size, offset)
        except OSError as error:
            sha256, problem = "", error.strerror or str(error)
        self._put(encode_json(END, {"sha256": sha256, "problem": problem}))
        self.done_files += 1
        self._tell(path)

    def flush(self) -> None:
        if self._pieces:
            self._emit(b"".join(self._pieces))
            self._pieces, self._waiting = [], 0

    def finish(self) -> None:
        self._progress(
            Progress(
                "transfer", "", self.done_bytes, self.total_bytes, self.done_files, self.total_files, finished=True
            )
        )

    def _send_bytes(self, full: str, path: str, size: int, offset: int) -> Tuple[str, Optional[str]]:
        digest = hashlib.sha256()
        descriptor = os.open(full, os.O_RDONLY | os.O_CLOEXEC)  # through links, as the inventory did
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            before = os.fstat(descriptor)
            if before.st_size != size:
                return "", f"it has {before.st_size:,} bytes now instead of {size:,}"
            left = offset
            while left:  # the other side has these, and hashes them itself
                chunk = stream.read(min(_CHUNK, left))
                if not chunk:
                    break
                digest.update(chunk)
                left -= len(chunk)
            pack = self._compress
            for chunk in iter(lambda: stream.read(_CHUNK), b""):
                digest.update(chunk)
                pack = self._send_chunk(chunk, pack)
                self.done_bytes += len(chunk)
                self._tell(path)
            after = os.fstat(descriptor)
        same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
        return digest.hexdigest(), None if same else "it was written to while it was read"

    def _send_chunk(self, chunk: bytes, pack: bool) -> bool:
        """Whether compressing goes on to be worth it for this file."""
        if pack:
            packed = zlib.compress(chunk, 1)
            if len(packed) < len(chunk) * 9 // 10:
                self._put(encode(PACKED, packed))
                return True
        self._put(encode(DATA, chunk))
        return False

    def _put(self, record: bytes) -> None:
        self._pieces.append(record)
        self._waiting += len(record)
        if self._waiting >= _FLUSH:
            self.flush()

    def _tell(self, path: str) -> None:
        self._progress(Progress("transfer", path, self.done_bytes, self.total_bytes, self.done_files, self.total_files))
