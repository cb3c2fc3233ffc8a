"""The stream in which a donor's files travel, whichever way: records of a kind, a length and so many bytes. Agent-safe.

H  JSON {boot_id}                      who sends; only over ssh
F  JSON {file, offset}                 a file begins: its number in the manifest, and where in it
D  bytes                               its next bytes
Z  zlib                                the same, compressed
E  JSON {sha256, problem}              it ends: the hash of the whole file as it was read, and what was wrong
X  JSON {problem}                      the stream ends: null, or why before its time
"""

from __future__ import annotations

import json
import struct
from typing import Any, Dict, Protocol, Tuple

from ddtree_deploy.errors import StepError

HELLO, FILE, DATA, PACKED, END, LAST = b"H", b"F", b"D", b"Z", b"E", b"X"
_HEAD = struct.Struct(">cI")
_LIMIT = 16 << 20  # bytes of a record; a longer one is no record of ours


class Readable(Protocol):
    """What records are read from. ``read`` gives b"" at the end."""

    def read(self, size: int, /) -> bytes: ...


def encode(kind: bytes, payload: bytes) -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


def encode_json(kind: bytes, payload: Dict[str, Any]) -> bytes:
    return encode(kind, json.dumps(payload, separators=(",", ":")).encode("ascii"))


def next_record(stream: Readable) -> Tuple[bytes, bytes]:
    """(kind, payload). Raises EOFError at the end of ``stream``, StepError ``transfer-garbled``."""
    head = _exactly(stream, _HEAD.size)
    kind, size = _HEAD.unpack(head)
    if size > _LIMIT or kind not in (HELLO, FILE, DATA, PACKED, END, LAST):
        raise StepError("transfer-garbled", f"what came from the donor is not what it sends: {head!r}")
    return kind, _exactly(stream, size)


def _exactly(stream: Readable, size: int) -> bytes:
    data = stream.read(size)
    while len(data) < size:
        more = stream.read(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
