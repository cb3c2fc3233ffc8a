"""One run at a time on a root: a flock held by a live process, with a record of who holds it.

The kernel drops a flock when its process dies, so a killed run never blocks the next one; its record is found in
the file and named in a note. A held flock is never taken away from its holder. Standard library only (agent-safe).
"""

from __future__ import annotations

import errno
import fcntl
import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Optional, Type

from ddtree_deploy.errors import LockedError, StepError
from ddtree_deploy.facts.system import boot_id
from ddtree_deploy.release.journal import utc_now
from ddtree_deploy.release.space import is_full


@dataclass(frozen=True)
class Owner:
    """Who holds the lock. ``started`` is the process's start in clock ticks since boot (field 22 of /proc/PID/stat):
    with ``boot_id`` it tells a process from a later one of the same pid."""

    pid: int
    started: Optional[int]
    boot_id: Optional[str]
    host: str
    user: str
    command: str
    since: str  # ISO 8601, UTC

    def __str__(self) -> str:
        return f"{self.command!r} of {self.user} on {self.host} (pid {self.pid}, since {self.since})"


class Lock:
    """Context manager. ``note`` says, once entered, that a dead owner's lock was taken over (else None).

    Raises LockedError ``locked`` naming the owner, StepError ``root-not-writable``.
    """

    def __init__(self, path: Path, command: str) -> None:
        self._path = path
        self._command = command
        self._descriptor: Optional[int] = None
        self.note: Optional[str] = None

    def __enter__(self) -> Lock:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StepError(
                "root-not-writable",
                f"cannot write below {self._path.parent}: {error.strerror}",
                where=str(self._path),
                hint="run as a user who may write there, or choose another `root`",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise self._locked() from None
        before = _parse(os.pread(descriptor, 65536, 0))
        if before is not None:
            self.note = f"took over the lock of a run that died: {before}"
        self._descriptor = descriptor
        owner = json.dumps(asdict(_ourselves(self._command)), ensure_ascii=True)
        os.ftruncate(descriptor, 0)
        try:
            os.pwrite(descriptor, owner.encode("ascii") + b"\n", 0)
            os.fsync(descriptor)
        except OSError as error:
            if not is_full(error):  # the flock counts; a full disk must not hinder the prune that makes room
                raise
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], value: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def _locked(self) -> LockedError:
        owner = read_owner(self._path)
        if owner is None:
            text, hint = "another run", None
        elif owner_gone(owner):
            text = f"what is left of {owner}"
            hint = "the run itself has ended; a process it started still holds the lock, `fuser` names it"
        else:
            text, hint = str(owner), None
        return LockedError(
            "locked",
            f"{self._path.parent} is locked by {text}",
            where=str(self._path),
            hint=hint or "wait until it is done; the lock ends with its process",
            details={"owner": asdict(owner) if owner else None},
        )


def holder(path: Path) -> Optional[str]:
    """Who holds the lock right now, in words, or None. Takes nothing; for facts and status."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        owner = read_owner(path)
        return str(owner) if owner else "another run"
    finally:
        os.close(descriptor)
    return None


def read_owner(path: Path) -> Optional[Owner]:
    """The record in the lock file, or None where there is none (or it is being written)."""
    try:
        return _parse(path.read_bytes())
    except OSError:
        return None


def owner_gone(owner: Owner) -> bool:
    """True when ``owner`` was a process of this host that no longer runs."""
    if owner.host != socket.gethostname():
        return False
    if owner.boot_id != boot_id():
        return True
    return process_started(owner.pid) != owner.started


def process_started(pid: int) -> Optional[int]:
    """Start of a process in clock ticks since boot, or None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return None
    # The second field is the command in parentheses and may itself hold spaces and parentheses.
    return int(text.rpartition(")")[2].split()[19])


def _ourselves(command: str) -> Owner:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a uid without a passwd entry, as in many containers
        user = str(os.getuid())
    pid = os.getpid()
    return Owner(pid, process_started(pid), boot_id(), socket.gethostname(), user, command, utc_now())


def _parse(data: bytes) -> Optional[Owner]:
    try:
        return Owner(**json.loads(data.decode("utf-8")))
    except (ValueError, TypeError):
        return None
