"""The agent's process: answers requests on stdin until it ends. Standard library only (agent-safe).

``python agent.pyz`` serves; ``python agent.pyz supervise ...`` is the process that keeps a service, ``python agent.pyz
donor-send`` what another host's agent starts here over ssh to read files from.

The controller holds the other end of stdin. When it goes away (Ctrl-C, a lost connection, a closed laptop) or SIGTERM
comes, the running operation gets a :class:`Stopped` in the main thread, so that its ``finally`` blocks release
locks and stop children; an operation that has not ended ``GRACE`` seconds later is ended with the process. Every
operation must survive SIGKILL anyway.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO, Dict, List, NoReturn, Optional

from ddtree_deploy.agent import blobs, operations
from ddtree_deploy.agent.protocol import HEARTBEAT, Progress, ProgressSink, Writer
from ddtree_deploy.errors import DeployError, ExitCode, InputError, StepError
from ddtree_deploy.release.space import is_full

GRACE = 60.0  # removing a half-built release of 60,000 files takes a while on a busy disk
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Stopped(KeyboardInterrupt):
    """The controller is gone, or asked us to stop."""


def main(arguments: List[str]) -> int:
    """Entry of the zipapp; returns the exit status."""
    if arguments[:1] == ["supervise"]:
        from ddtree_deploy.serve.supervisor import main as supervise

        return int(supervise(arguments[1:]))
    if arguments[:1] == ["donor-send"]:
        from ddtree_deploy.donor.send import main as send

        return int(send())
    if arguments:
        known = "supervise, donor-send, or none to serve requests"
        sys.stderr.write(f"agent: unknown command {arguments[0]!r}; known: {known}\n")
        return int(ExitCode.BAD_INPUT)
    own_process_group()
    requests, responses = take_over_stdio()
    return Server(requests, responses).serve()


def own_process_group() -> None:
    """Lead a process group, so that what operations start can be ended with us, and a terminal's ^C is not for us."""
    if os.getpgrp() != os.getpid():
        os.setsid()


def take_over_stdio() -> tuple[BinaryIO, BinaryIO]:
    """The protocol's two streams; fd 0 and 1 become /dev/null and stderr for us and for every child."""
    requests = os.fdopen(os.dup(0), "rb")
    responses = os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, responses


class Server:
    """One request after the other; see the module's docstring for how it ends."""

    def __init__(self, requests: BinaryIO, responses: BinaryIO) -> None:
        self._requests = requests
        self._responses = responses
        self._active: Optional[Writer] = None
        self._stopping = False
        self._spoiled = False  # what follows a request was not read to its end, so that the next one is not found

    def serve(self) -> int:
        """Answer until end of input (exit status 0) or until stopped (130)."""
        for number in SIGNALS:
            signal.signal(number, self._on_signal)
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            while True:
                line = self._requests.readline()
                if self._stopping or not line:
                    break
                self._answer(line)
                if self._spoiled:
                    return int(ExitCode.STEP_FAILED)
        except (Stopped, BrokenPipeError):
            self._stopping = True
        if not self._stopping:
            return int(ExitCode.OK)
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        os.killpg(os.getpgrp(), signal.SIGTERM)  # children that an operation has left behind
        return int(ExitCode.INTERRUPTED)

    def _answer(self, line: bytes) -> None:
        writer = Writer(self._responses, 0)
        try:
            request = _parse(line)
            writer = Writer(self._responses, request["id"])
            self._active = writer
            result = self._run(request["op"], request["params"], writer)
            self._active = None
            writer.result(result)
        except BrokenPipeError:
            raise
        except Stopped:
            self._active = None
            writer.error(StepError("agent-stopped", "the agent was stopped during the operation").to_dict())
            raise
        except DeployError as error:
            self._active = None
            writer.error(error.to_dict())
        except BaseException as error:
            self._active = None
            writer.error((_refusal(error) or _crash(error)).to_dict())

    def _run(self, op: str, params: Dict[str, Any], writer: Writer) -> Dict[str, Any]:
        if op == "blob.put":
            return blobs.put(params, self._requests)

        def progress(progress: Progress) -> None:
            try:
                writer.progress(progress)
            except BrokenPipeError as error:
                raise Stopped from error

        if op in operations.STREAMS:
            return self._stream(op, params, writer, progress)
        return operations.find(op)(params, progress)

    def _stream(self, op: str, params: Dict[str, Any], writer: Writer, progress: ProgressSink) -> Dict[str, Any]:
        def emit(data: bytes) -> None:
            try:
                writer.data(data)
            except BrokenPipeError as error:
                raise Stopped from error

        try:
            return operations.find_stream(op)(params, self._requests, emit, progress)
        except BaseException:
            self._spoiled = True
            raise

    def _watch(self) -> None:
        """Tell the controller that we live, and the operation when the controller does not."""
        poller = select.poll()
        poller.register(self._requests.fileno(), select.POLLRDHUP)
        while not poller.poll(HEARTBEAT * 1000):
            writer = self._active
            if writer is not None:
                try:
                    writer.heartbeat()
                except OSError:
                    break
        # the last requests may still be unread: nobody waits for their answers any more, so they are stopped as well
        while self._active is None:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)
        os.killpg(os.getpgrp(), signal.SIGKILL)

    def _on_signal(self, number: int, frame: Any) -> None:
        if self._stopping:
            return  # the first one is being obeyed; do not interrupt the clean-up
        self._stopping = True
        raise Stopped


def _parse(line: bytes) -> Dict[str, Any]:
    try:
        request = json.loads(line)
        valid = isinstance(request["id"], int) and isinstance(request["op"], str)
        params = request.setdefault("params", {})
    except (ValueError, KeyError, TypeError, AttributeError):
        valid, params = False, None
    if not valid or not isinstance(params, dict):
        raise StepError("agent-bad-request", f"not a request: {line[:200]!r}")
    return request  # type: ignore[no-any-return]


def _refusal(error: BaseException) -> Optional[DeployError]:
    """What no operation can foresee: the host does not let its user read, write or signal something, is full, or takes
    no name of that length."""
    if not isinstance(error, OSError):
        return None
    place = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else None
    from ddtree_deploy.facts.system import user_name

    what = f"{place}: {error.strerror}" if place else str(error.strerror or error)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        hint = "connect as the user whose files and processes these are, or as root"
        if error.errno == errno.EROFS:
            hint = "the file system is mounted read-only, as the kernel does after an error of the disk: look at dmesg"
        return StepError("permission-denied", f"user {user_name()} may not do this: {what}", where=place, hint=hint)
    if is_full(error):
        hint = "free some space: `ddtree-deploy prune HOST --keep 1` removes old releases"
        return StepError("no-space", f"the disk is full: {what}", where=place, hint=hint)
    if error.errno == errno.ENAMETOOLONG:
        return InputError("bad-path", what, where=place, hint="give a path that this host can have")
    return None


def _crash(error: BaseException) -> StepError:
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f"{last[0].filename}:{last[0].lineno}" if last else None
    return StepError(
        "agent-crashed",
        f"unexpected {type(error).__name__} on the host: {error}",
        where=where,
        hint="this is a bug of ddtree-deploy; the traceback is in the details (-v or --json)",
        details={"traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__))},
    )


def run() -> NoReturn:
    """``python agent.pyz`` and ``python -m ddtree_deploy.agent.main``."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
