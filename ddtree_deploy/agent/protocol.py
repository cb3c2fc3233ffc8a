"""JSON lines between the controller and the agent on the host. Standard library only.

The controller writes one request a line: ``{"id": 1, "op": "facts", "params": {...}}``. The agent answers with any
number of ``{"id": 1, "progress": {...}}`` and then one ``{"id": 1, "result": {...}}`` or
``{"id": 1, "error": {... DeployError.to_dict() ...}}``. A request of the op ``blob.put`` is followed by
``params["size"]`` raw bytes, one of ``donor.receive`` by records (``donor.records``) up to the last of these. In an
answer ``{"id": 1, "data": 65536}`` is followed by so many raw bytes. stdout carries the protocol alone; anything else
the agent prints goes to stderr. While an operation runs, ``{"id": 1, "heartbeat": true}`` comes every ``HEARTBEAT``
seconds, so that a controller that has heard nothing for ``SILENCE`` seconds knows that the host or the way to it is
gone.
"""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Callable, Dict, Optional

PROTOCOL = 1
HEARTBEAT = 10.0
SILENCE = 90.0


@dataclass(frozen=True)
class Progress:
    """How far a phase is; totals are None where unknown. Rendered by the controller as bars with rates."""

    phase: str  # "clone", "download", "hash" ...
    message: str = ""
    done_bytes: int = 0
    total_bytes: Optional[int] = None
    done_files: int = 0
    total_files: Optional[int] = None
    finished: bool = False


ProgressSink = Callable[[Progress], None]


def silent(progress: Progress) -> None:
    """A progress sink that drops everything."""


class Writer:
    """Writes responses of one request as JSON lines; progress is limited to ten lines a second and phase."""

    def __init__(self, stream: BinaryIO, request_id: int) -> None:
        self._stream = stream
        self._id = request_id
        self._last: Dict[str, float] = {}
        self._lock = threading.Lock()  # operations report progress from their worker threads, too

    def progress(self, progress: Progress) -> None:
        now = time.monotonic()
        if not progress.finished and now - self._last.get(progress.phase, 0.0) < 0.1:
            return
        self._last[progress.phase] = now
        self._send({"progress": asdict(progress)})

    def heartbeat(self) -> None:
        self._send({"heartbeat": True})

    def data(self, payload: bytes) -> None:
        line = json.dumps({"id": self._id, "data": len(payload)}).encode("ascii") + b"\n"
        with self._lock:
            self._stream.write(line)
            self._stream.write(payload)
            self._stream.flush()

    def result(self, result: Dict[str, Any]) -> None:
        self._send({"result": result})

    def error(self, error: Dict[str, Any]) -> None:
        self._send({"error": error})

    def _send(self, message: Dict[str, Any]) -> None:
        line = json.dumps({"id": self._id, **message}, ensure_ascii=True)
        with self._lock:
            self._stream.write(line.encode("ascii") + b"\n")
            self._stream.flush()
