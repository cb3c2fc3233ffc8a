"""Talks to a running agent: one request at a time, progress on the way, errors as exceptions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Self

from ddtree_deploy.agent.protocol import SILENCE, Progress
from ddtree_deploy.errors import DeployError, InputError, StepError, UnreachableError
from ddtree_deploy.transport.base import Stream

OnProgress = Callable[[Progress], None]

CHUNK = 1 << 18
PIPELINED = 32  # blobs under way whose answers have not been read
LAST_WORDS = 5.0  # seconds for an agent that reads no more to say why
CLOSE_TIMEOUT = 65.0  # seconds the agent gets to stop what it is doing; it gives itself a little less


class LineReader:
    """Lines of a stream's stdout, and the bytes that may come between them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._searched = 0  # bytes of the buffer in which there is no end of a line

    def line(self, timeout: float) -> Optional[bytes]:
        """The next line without its end, None at the end of the stream. Raises TimeoutError."""
        while (end := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            data = self._stream.read(timeout)
            if not data:
                return None
            self._buffer += data
        return self._take(end + 1)[:-1]

    def exactly(self, size: int, timeout: float) -> Optional[bytes]:
        """The next ``size`` bytes, None where the stream ends before. Raises TimeoutError."""
        while len(self._buffer) < size:
            data = self._stream.read(timeout)
            if not data:
                return None
            self._buffer += data
        return self._take(size)

    def _take(self, size: int) -> bytes:
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._searched = 0
        return data


class AgentSession:
    """The controller's end of the protocol (``agent.protocol``). A context manager; closing it ends the agent.

    One thread calls; ``close`` may come from another, which is how Ctrl-C ends what a thread waits for.
    """

    def __init__(self, stream: Stream, reader: LineReader, label: str) -> None:
        self._stream = stream
        self._reader = reader
        self._label = label
        self._next_id = 1
        self._closed = False
        self._in_use = threading.RLock()

    def call(
        self, op: str, params: Optional[Mapping[str, Any]] = None, on_progress: Optional[OnProgress] = None
    ) -> dict[str, Any]:
        """The result of operation ``op``.

        Raises the DeployError that the operation raised, UnreachableError ``connection-lost`` or ``host-silent``, or
        StepError ``agent-died``. After any other exception (Ctrl-C, an error in ``on_progress``) the session is
        closed, so that the agent does not carry on unseen.
        """
        with self._in_use:
            try:
                return self._result(self._request(op, dict(params or {})), on_progress)
            except DeployError:
                raise
            except BaseException:
                self.close()
                raise

    def stream(
        self,
        op: str,
        params: Mapping[str, Any],
        on_data: Callable[[bytes], None],
        on_progress: Optional[OnProgress] = None,
    ) -> dict[str, Any]:
        """As ``call``; ``on_data`` gets the bytes that the operation sends. After any error the session is closed."""
        with self._in_use:
            try:
                return self._result(self._request(op, dict(params)), on_progress, on_data)
            except BaseException:
                self.close()
                raise

    @contextlib.contextmanager
    def upload(self, op: str, params: Mapping[str, Any], on_progress: Optional[OnProgress] = None) -> Iterator[Upload]:
        """Call an operation that reads bytes after its request. After any error the session is closed."""
        with self._in_use:
            try:
                yield Upload(self, self._request(op, dict(params)), on_progress)
            except BaseException:
                self.close()
                raise

    def put_blobs(self, paths: Iterable[Path], root: str, on_progress: Optional[OnProgress] = None) -> dict[str, str]:
        """Send the files that the host's blob store under ``root`` does not hold. Returns {sha256: path on host}.

        Raises what ``call`` raises, InputError ``file-unreadable``, StepError ``no-space``.
        """
        files = {_sha256(path): path for path in paths}
        sizes = {sha256: path.stat().st_size for sha256, path in files.items()}
        if not files:
            return {}
        answer = self.call("blob.missing", {"root": root, "blobs": sizes})
        missing = [sha256 for sha256 in files if sha256 in set(answer["missing"])]
        if missing:
            with self._in_use:
                try:
                    self._put({sha256: files[sha256] for sha256 in missing}, sizes, root, on_progress)
                except BaseException:
                    self.close()  # the agent may be in the middle of a blob
                    raise
        return dict(answer["paths"])

    def stderr(self) -> str:
        """The last part of what the agent's process wrote to stderr."""
        return self._stream.stderr()

    def close(self) -> None:
        """End the agent: it gets end of file, stops what it is doing, and has ``CLOSE_TIMEOUT`` seconds for that."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + CLOSE_TIMEOUT
        try:
            self._stream.close_input()
            if self._in_use.acquire(timeout=CLOSE_TIMEOUT):  # a thread in a call reads the end itself
                try:
                    self._drain(deadline)
                finally:
                    self._in_use.release()
        finally:
            self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _put(self, files: dict[str, Path], sizes: dict[str, int], root: str, on_progress: Optional[OnProgress]) -> None:
        """Send all of ``files``; the answers are read a few blobs later, so that small ones do not wait for each."""
        total, sent = sum(sizes[sha256] for sha256 in files), 0
        waiting: deque[int] = deque()
        for number, (sha256, path) in enumerate(files.items()):
            waiting.append(self._request("blob.put", {"root": root, "sha256": sha256, "size": sizes[sha256]}))
            for chunk in _chunks(path, sizes[sha256]):
                self._write(chunk)
                sent += len(chunk)
                if on_progress:
                    on_progress(Progress("upload", path.name, sent, total, number, len(files)))
            while len(waiting) > PIPELINED:
                self._result(waiting.popleft(), None)
        while waiting:
            self._result(waiting.popleft(), None)
        if on_progress:
            on_progress(Progress("upload", "", total, total, len(files), len(files), finished=True))

    def _request(self, op: str, params: dict[str, Any]) -> int:
        if self._closed:
            raise StepError("agent-closed", f"the agent on {self._label} has been closed")
        number, self._next_id = self._next_id, self._next_id + 1
        self._write(json.dumps({"id": number, "op": op, "params": params}).encode("ascii") + b"\n")
        return number

    def _write(self, data: bytes) -> None:
        try:
            self._stream.write(data)
        except (BrokenPipeError, TimeoutError) as error:
            raise self._ended() from error

    def _result(
        self,
        number: int,
        on_progress: Optional[OnProgress],
        on_data: Callable[[bytes], None] = lambda data: None,
    ) -> dict[str, Any]:
        while True:
            try:
                result = self._answer(number, SILENCE, on_progress, on_data)
            except TimeoutError:
                raise self._silent() from None
            if result is not None:
                return result

    def _answer(
        self, number: int, timeout: float, on_progress: Optional[OnProgress], on_data: Callable[[bytes], None]
    ) -> Optional[dict[str, Any]]:
        """Take one message: the result, or None for any that is not the last. Raises TimeoutError, DeployError."""
        line = self._reader.line(timeout)
        if line is None:
            raise self._ended()
        message = self._decode(line)
        if "heartbeat" in message:
            return None  # one that was late may be of the request before
        if message.get("id") != number:
            raise StepError("agent-protocol", f"the agent on {self._label} answered another request than asked")
        if "result" in message:
            return dict(message["result"])
        if "error" in message:
            raise DeployError.from_dict(message["error"])
        if "data" in message:
            data = self._reader.exactly(int(message["data"]), SILENCE)
            if data is None:
                raise self._ended()
            on_data(data)
        if "progress" in message and on_progress:
            on_progress(Progress(**message["progress"]))
        return None

    def _decode(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            text = f"the agent on {self._label} sent something else than an answer: {line[:200]!r}"
            raise StepError("agent-protocol", text, details={"stderr": self.stderr()})
        return message

    def _drain(self, deadline: float) -> None:
        """Read what is left, so that an agent in the middle of an answer can end, and wait for that."""
        with contextlib.suppress(OSError):  # a TimeoutError, too
            while (left := deadline - time.monotonic()) > 0 and not self._stream.lost():
                if not self._stream.read(left):
                    self._stream.exit_status(max(0.0, deadline - time.monotonic()))
                    return

    def _silent(self) -> UnreachableError:
        self._closed = True
        self._stream.close()
        return UnreachableError(
            "host-silent",
            f"nothing heard from {self._label} for {SILENCE:.0f} seconds",
            where=self._label,
            hint="the host or the network is down, or the host is stopped; run again when it is back",
        )

    def _ended(self) -> DeployError:
        """Why there is no answer: the connection, or the agent's process."""
        if self._closed:
            return StepError("agent-closed", f"the agent on {self._label} was stopped by us", where=self._label)
        status = self._stream.exit_status(2.0)
        stderr = self.stderr()
        self._closed = True
        self._stream.close()
        if status is None and self._stream.lost():
            return UnreachableError(
                "connection-lost",
                f"the connection to {self._label} was lost",
                where=self._label,
                hint="nothing is half done: run the command again and it will finish or clean up",
                details={"stderr": stderr},
            )
        how = "without an exit status" if status is None else f"with status {status}"
        how = f"by signal {-status}" if status is not None and status < 0 else how
        last = stderr.strip().splitlines()[-1:]
        return StepError(
            "agent-died",
            f"the agent on {self._label} ended {how}" + (f": {last[0]}" if last else ""),
            where=self._label,
            hint="killed by somebody, or out of memory? `dmesg` on the host tells",
            details={"stderr": stderr, "exit_status": status},
        )


class Upload:
    """An operation that is reading what is written here."""

    def __init__(self, session: AgentSession, number: int, on_progress: Optional[OnProgress]) -> None:
        self._session = session
        self._number = number
        self._on_progress = on_progress

    def write(self, data: bytes) -> None:
        """Send ``data``. Raises what the operation raised meanwhile."""
        try:
            self._session._stream.write(data)
        except (BrokenPipeError, TimeoutError) as error:
            self._listen(LAST_WORDS)  # it ends by saying why
            raise self._session._ended() from error
        self._listen(0)

    def result(self) -> dict[str, Any]:
        """Wait for the result, once all is written."""
        return self._session._result(self._number, self._on_progress)

    def _listen(self, timeout: float) -> None:
        with contextlib.suppress(TimeoutError):
            while self._session._answer(self._number, timeout, self._on_progress, lambda data: None) is None:
                pass


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError("file-unreadable", f"cannot read {path}: {error.strerror}", where=str(path)) from error


def _chunks(path: Path, size: int) -> Iterable[bytes]:
    """The file's bytes; exactly ``size`` of them, or InputError ``file-changed``."""
    left = size
    with path.open("rb") as file:
        while left:
            chunk = os.read(file.fileno(), min(CHUNK, left))
            if not chunk:
                raise InputError("file-changed", f"{path} became shorter while it was sent", where=str(path))
            left -= len(chunk)
            yield chunk
