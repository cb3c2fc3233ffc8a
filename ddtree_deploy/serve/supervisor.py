"""The process of ours that keeps one service: starts the engine, watches it, restarts it, stops all of it.

``python -m ddtree_deploy.serve.supervisor <service folder> <launch id>`` puts itself into a session of its own, away
from the SSH channel that started it, and holds the folder's lock as long as it lives. It asks for readiness by a real
completion, one probe at a time; liveness is the process alone, so a long prefill never kills a service.

Policy: an engine that ends before it was ever ready is a failed launch, not restarted. One that was ready before is
restarted after 1, 2, 4, … s, five times within ten minutes (the spec's numbers); then the service is ``failed``.
Stopping: SIGTERM to the engine's first process (it finishes what it serves), after the grace period SIGKILL to
everything of the service, wherever it was re-parented to (sglang#23627, #31645).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from ddtree_deploy.children import die_with_parent
from ddtree_deploy.errors import DeployError, InputError, StepError
from ddtree_deploy.serve import readiness
from ddtree_deploy.serve.command import engine_command
from ddtree_deploy.serve.environment import service_environment
from ddtree_deploy.serve.gpus import current_index
from ddtree_deploy.serve.logs import PARSER_ERROR, LogWriter, end_since, find_cause
from ddtree_deploy.serve.process import (
    MARKER,
    ProcessIdentity,
    become_subreaper,
    identify,
    kill_service_processes,
    reap_children,
    send_signal,
    service_processes,
)
from ddtree_deploy.serve.spec import API_KEY, ServiceFolder, ServiceSpec
from ddtree_deploy.serve.state import ProbeResult, ServiceState, timestamp, write_state

_PROBE_PAUSE_S = 0.1  # between two looks at the port
_BACKOFF_LIMIT_S = 60.0
_LINE_LIMIT = 65536
_LOCK_S = 1.0


class Supervisor:
    """One service's life, from the launch to the end; ``run`` returns when nothing of it is left."""

    def __init__(self, folder: ServiceFolder, spec: ServiceSpec, launch: str, lock: int) -> None:
        """``lock``: the folder's, held."""
        self._folder = folder
        self._lock = os.fstat(lock)
        self._displaced_since: Optional[float] = None
        self._spec = spec
        self._secrets = folder.secrets()
        self._log = LogWriter(folder.log, self._secrets.values())
        self._marker = f"{spec.name}:{uuid.uuid4().hex}"
        self._state = ServiceState("starting", supervisor=identify(os.getpid()), marker=self._marker, launch=launch)
        self._engine: Optional[subprocess.Popen[bytes]] = None
        self._identity: Optional[ProcessIdentity] = None
        self._pump: Optional[threading.Thread] = None
        self._stopping = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only wakes the loop
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        become_subreaper()
        # Who launched it waits for this, and not for the driver: eight cards without persistence mode take a while.
        phase = "looking for its GPU" if self._spec.gpu_uuid else ""
        self._state = replace(self._state, phase=phase, log_start=self._log.cursor())
        write_state(self._folder, self._state)  # where that fails nobody would know of the engine: none is started
        error: Optional[DeployError] = None
        try:
            self._keep_running()
        except DeployError as problem:
            error = problem
        except Exception as problem:  # whatever it is, no engine may stay behind unwatched
            error = StepError("supervisor-failed", f"{type(problem).__name__}: {problem}", where=str(self._folder.path))
        self._shut_down(error)

    def _on_stop(self, *_: Any) -> None:
        self._stopping = True

    def _keep_running(self) -> None:
        restarts: Deque[float] = deque()
        total = 0
        while not self._stopping:
            was_ready, without_gpu = self._run_engine(total)
            if self._stopping:
                return
            left = self._sweep()
            exit_text = without_gpu or self._exit_text()
            self._say(f"engine ended: {exit_text}")
            if total == 0 and not was_ready:
                raise self._failure("engine-died", f"the engine ended before it was ready: {exit_text}")
            if left:
                raise self._failure("processes-left", f"processes of the engine cannot be ended: {left}")
            now = time.monotonic()
            window = self._spec.restart_window_s
            while restarts and now - restarts[0] > window:
                restarts.popleft()
            if len(restarts) >= self._spec.max_restarts:
                ended = f"the engine ended {len(restarts) + 1} times within {window:.0f} s"
                raise self._failure("crash-loop", f"{ended}, last: {exit_text}")
            delay = min(self._spec.restart_delay_s * 2.0 ** len(restarts), _BACKOFF_LIMIT_S)
            restarts.append(now)
            total += 1
            self._set(
                state="starting",
                phase=f"restart {total} in {delay:.0f} s, the engine ended: {exit_text}",
                engine=None,
                ready=None,
                restarts=total,
                last_exit=exit_text,
            )
            self._wait(delay)

    def _run_engine(self, restarts: int) -> Tuple[bool, Optional[str]]:
        """Until it ends or is to stop. Whether it became ready; why it was not started again for the lack of its GPU:
        after a crash the driver may need a while, so that counts as another end."""
        try:
            self._start_engine(restarts)
        except StepError as error:
            if error.id != "gpu-gone" or restarts == 0:
                raise
            return False, "; ".join(filter(None, [error.message, error.hint]))
        return self._watch(), None

    def _start_engine(self, restarts: int) -> None:
        spec = self._spec
        index = current_index(spec.gpu_uuid) if spec.gpu_uuid else spec.gpu_index
        environment = service_environment(Path(spec.release), {**spec.environment, **self._secrets}, gpu_index=index)
        environment[MARKER] = self._marker
        command = engine_command(spec, self._folder.engine_config)
        start = self._log.cursor()
        self._say(f"starting: {' '.join(command)}")
        try:
            self._engine = subprocess.Popen(
                command,
                env=environment,
                cwd=self._folder.path,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent(),  # without a supervisor nobody would restart or stop it
            )
        except OSError as error:
            raise InputError(
                "engine-not-started", f"cannot start the engine: {error}", where=command[0], hint="verify the release"
            ) from error
        self._identity = identify(self._engine.pid)
        self._pump = threading.Thread(target=self._copy_output, args=(self._engine,), daemon=True)
        self._pump.start()
        self._set(
            state="starting",
            phase="loading" if restarts == 0 else f"loading again, restart {restarts}",
            engine=self._identity,
            started=timestamp(),
            ready=None,
            log_start=start,
        )

    def _copy_output(self, engine: subprocess.Popen[bytes]) -> None:
        assert engine.stdout is not None
        handle = engine.stdout.fileno()
        buffer = b""
        while True:
            chunk = os.read(handle, 65536)
            buffer = (buffer + chunk).replace(b"\r", b"\n")
            *lines, buffer = buffer.split(b"\n")
            if len(buffer) > _LINE_LIMIT or not chunk:
                lines, buffer = [*lines, buffer], b""
            for line in lines:
                if line:
                    self._log.write_line(line.decode("utf-8", "replace"))
            if not chunk:
                return

    def _watch(self) -> bool:
        """Until the engine ends or is to stop; True if it became ready. Raises StepError ``launch-timeout``,
        ``folder-gone``."""
        assert self._engine is not None
        deadline = time.monotonic() + self._spec.launch_timeout_s
        prober = _Prober(self._spec, self._secrets.get(API_KEY), self._owns_port, deadline, self._wake)
        prober.start()
        ready = False
        try:
            while not self._stopping and self._engine.poll() is None:
                reap_children(keep=[self._engine.pid])
                if not ready and prober.success:
                    ready = True
                    self._say("ready: a completion was answered")
                    self._set(state="ready", phase="", ready=timestamp(), probe=prober.success)
                if not ready and time.monotonic() > deadline:
                    said = f"; last probe: {prober.last_error}" if prober.last_error else ""
                    raise self._failure(
                        "launch-timeout", f"no completion within {self._spec.launch_timeout_s:.0f} s{said}"
                    )
                self._check_folder()
                self._wait(5.0 if ready else 0.25)
        finally:
            prober.cancel()
        return ready or prober.success is not None  # it may have ended right after

    def _check_folder(self) -> None:
        """Raises StepError ``folder-gone`` once the folder was removed, or made anew, for longer than an end may take:
        no status shows this service and no stop finds it, and it would hold its GPU for ever."""
        now = time.monotonic()
        self._displaced_since = (self._displaced_since or now) if self._is_displaced() else None
        if self._displaced_since is not None and now - self._displaced_since > self._spec.stop_grace_s:
            raise StepError("folder-gone", "the service's folder was removed", where=str(self._folder.path))

    def _is_displaced(self) -> bool:
        try:
            there = self._folder.lock.stat()
            if (there.st_dev, there.st_ino) == (self._lock.st_dev, self._lock.st_ino):
                return False
        except OSError as error:
            if error.errno != errno.ENOENT:
                return False
        try:  # of a lock that was cleared away alone, or a folder put back from a copy, status and stop know no less
            state = self._folder.read(self._folder.state_file, ServiceState)
        except (DeployError, OSError):
            return False
        return state is None or state.marker != self._marker

    def _owns_port(self) -> bool:
        mine = service_processes(self._marker, self._identity, os.getpid())
        return bool(readiness.listener_pids(self._spec.port, mine))

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it wakes anyway
            os.write(self._wake_write, b"\0")

    def _wait(self, seconds: float) -> None:
        """Sleep, but wake for a signal or the first completion."""
        select.select([self._wake_read], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake_read, 4096):
                pass

    def _sweep(self) -> List[int]:
        """SIGKILL all that is left of the engine; returns the pids that would not die."""
        left = kill_service_processes(self._marker, self._identity, os.getpid())
        if self._engine is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._engine.wait(5.0)
        reap_children()
        if self._pump is not None:
            self._pump.join(5.0)
        return [identity.pid for identity in left]

    def _shut_down(self, error: Optional[DeployError]) -> None:
        if self._engine is not None and self._engine.poll() is None:
            self._set(state="stopping", phase="waiting for the engine to end")
            if self._identity is not None:
                send_signal(self._identity, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._engine.wait(self._spec.stop_grace_s if error is None else min(5.0, self._spec.stop_grace_s))
        left = self._sweep()
        self._say("stopped" if error is None else f"failed: {error.message}")
        self._set(
            state="stopped" if error is None else "failed",
            phase="",
            engine=self._identity if left else None,
            error=None if error is None else error.to_dict(),
            left_over=left,
        )
        self._log.close()

    def _failure(self, id: str, message: str) -> DeployError:
        """A failed service: the engine's own words first. What the engine refuses as an argument is bad input."""
        lines = end_since(self._folder.log, self._state.log_start)
        cause = find_cause(lines)
        details: Dict[str, Any] = {"log": lines[-40:], "cause": cause, "message": message}
        refused = id == "engine-died" and cause is not None and _is_refusal(cause, lines)
        cls, id = (InputError, "engine-refused") if refused else (StepError, id)
        return cls(
            id,
            f"{cause} ({message})" if cause else message,
            where=str(self._folder.log),
            hint="correct the setting that the engine names" if refused else "the log has the whole story",
            details=details,
        )

    def _exit_text(self) -> str:
        code = self._engine.returncode if self._engine else None
        if code is None:
            return "unknown"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    def _set(self, **changes: Any) -> None:
        self._state = replace(self._state, **changes)
        if self._is_displaced():  # the folder is another service's by now
            return
        try:
            write_state(self._folder, self._state)
        except OSError as error:  # a full disk must not stop the engine
            print(f"[{timestamp()}] state not written: {error}", file=sys.stderr, flush=True)

    def _say(self, text: str) -> None:
        self._log.write_line(f"[{timestamp()} supervisor] {text}")


class _Prober(threading.Thread):
    """Asks for a completion, again and again, one at a time, until there is one."""

    def __init__(
        self,
        spec: ServiceSpec,
        api_key: Optional[str],
        owns_port: Callable[[], bool],
        deadline: float,
        on_success: Callable[[], None],
    ) -> None:
        super().__init__(daemon=True)
        self._spec = spec
        self._api_key = api_key
        self._owns_port = owns_port
        self._deadline = deadline
        self._on_success = on_success
        self._cancelled = threading.Event()
        self.success: Optional[ProbeResult] = None
        self.last_error: Optional[str] = None

    def run(self) -> None:
        while not self._cancelled.wait(_PROBE_PAUSE_S):
            if not readiness.can_connect(self._spec):
                continue
            if not self._owns_port():
                self.last_error = f"port {self._spec.port} is answered by a process that is not this service's"
                continue
            left = max(self._deadline - time.monotonic(), 1.0)  # the first kernels may be compiled, for minutes
            result = readiness.complete(self._spec, self._api_key, left)
            self.last_error = result.error
            if result.ok:
                self.success = result
                self._on_success()
                return

    def cancel(self) -> None:
        self._cancelled.set()


def _is_refusal(cause: str, lines: List[str]) -> bool:
    """True if the engine ended in checking its arguments, before it loaded anything."""
    if PARSER_ERROR.match(cause):
        return True
    return cause.startswith(("ValueError:", "AssertionError:")) and any("server_args.py" in line for line in lines)


def _detach() -> None:
    """Fork and leave the caller's session; the caller's child ends at once."""
    if os.fork() > 0:
        os._exit(0)
    if os.getpid() != os.getsid(0):
        os.setsid()
    os.chdir("/")
    os.umask(0o022)


def _taken(lock: int) -> bool:
    """Take the folder's lock; False if another supervisor has it. Whoever stops or starts a service has it only for a
    moment."""
    deadline = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
        time.sleep(0.02)


def main(arguments: List[str]) -> int:
    """``<service folder> <launch id>``; ends at once in the caller, stays as a process of its own."""
    directory, launch = arguments
    folder = ServiceFolder(Path(directory))
    _detach()
    lock = os.open(folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _taken(lock):
        print(f"another supervisor keeps {folder.path}", file=sys.stderr)
        return 1
    spec = folder.spec()
    if spec is None:
        print(f"no spec.json in {folder.path}", file=sys.stderr)
        return 1
    print(f"[{timestamp()}] supervisor {os.getpid()} of {spec.name}", file=sys.stderr, flush=True)
    Supervisor(folder, spec, launch, lock).run()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
