"""Processes by identity, not by number: a pid alone may belong to somebody else after a crash or a reboot.

An identity is pid + start time (field 22 of ``/proc/<pid>/stat``, clock ticks since boot) + the kernel's boot id.
A service's processes are found in three ways, since each alone misses some: descendants of the supervisor (which is a
child subreaper, so orphans come back to it), members of the engine's session, and the ``DDTREE_SERVICE`` marker in
``/proc/<pid>/environ`` (which a process that sets its title may have overwritten). Linux only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Iterable, List, Optional, Set

from ddtree_deploy.facts.system import boot_id

MARKER = "DDTREE_SERVICE"  # environment variable of every process of a service: "<name>:<boot id>:<nonce>"

_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded now: nothing may be loaded between fork and exec
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class ProcessIdentity:
    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class Stat:
    """The part of ``/proc/<pid>/stat`` that is needed here."""

    pid: int
    state: str
    ppid: int
    session: int
    start_ticks: int


def read_stat(pid: int) -> Optional[Stat]:
    """None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except (OSError, ValueError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name in parentheses may hold blanks and parentheses
    return Stat(pid, fields[0], int(fields[1]), int(fields[3]), int(fields[19]))


def identify(pid: int) -> Optional[ProcessIdentity]:
    stat = read_stat(pid)
    return ProcessIdentity(pid, stat.start_ticks, boot_id() or "") if stat else None


def is_alive(identity: Optional[ProcessIdentity]) -> bool:
    """True while exactly this process runs; a zombie, a reused pid or another boot is not it."""
    if identity is None or identity.boot_id != (boot_id() or ""):
        return False
    stat = read_stat(identity.pid)
    return stat is not None and stat.start_ticks == identity.start_ticks and stat.state not in "ZX"


def send_signal(identity: ProcessIdentity, number: int) -> bool:
    """Signal exactly this process; False if it is gone."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return False
    except (AttributeError, OSError):  # kernel < 5.3: check, then signal
        if not is_alive(identity):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, number)
        return True
    try:
        if not is_alive(identity):  # the handle is held, so the pid cannot change its meaning any more
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def become_subreaper() -> None:
    """Orphans among our descendants become our children instead of pid 1's (prctl(2))."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _all_stats() -> Dict[int, Stat]:
    stats = (read_stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return {stat.pid: stat for stat in stats if stat is not None}


def _has_marker(pid: int, marker: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARKER}={marker}".encode() in environment.split(b"\0")


def service_processes(marker: str, leader: Optional[ProcessIdentity], ancestor: Optional[int]) -> List[ProcessIdentity]:
    """The living processes of a service, zombies left out.

    ``leader`` is the engine's first process, the leader of its session; ``ancestor`` is the pid of a living supervisor,
    itself not among the result.
    """
    stats = _all_stats()
    boot = boot_id() or ""
    found: Set[int] = set()
    if leader is not None and leader.boot_id == boot:
        now = stats.get(leader.pid)
        if now is None or now.start_ticks == leader.start_ticks:  # else the number is somebody else's by now
            found |= {
                stat.pid
                for stat in stats.values()
                if stat.session == leader.pid and stat.start_ticks >= leader.start_ticks
            }
    if ancestor is not None:
        found |= _descendants(stats, ancestor)
    found |= {pid for pid in stats if pid not in found and _has_marker(pid, marker)}
    found -= {os.getpid(), ancestor or 0}
    return [ProcessIdentity(pid, stats[pid].start_ticks, boot) for pid in sorted(found) if stats[pid].state not in "ZX"]


def _descendants(stats: Dict[int, Stat], ancestor: int) -> Set[int]:
    children: Dict[int, List[int]] = {}
    for stat in stats.values():
        children.setdefault(stat.ppid, []).append(stat.pid)
    found: Set[int] = set()
    todo = [ancestor]
    while todo:
        for child in children.get(todo.pop(), []):
            if child not in found:
                found.add(child)
                todo.append(child)
    return found


def kill_service_processes(
    marker: str, leader: Optional[ProcessIdentity], ancestor: Optional[int], seconds: float = 10.0
) -> List[ProcessIdentity]:
    """SIGKILL every process of the service until none is left; returns what would not die within ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        left = service_processes(marker, leader, ancestor)
        if not left or time.monotonic() > deadline:
            return left
        for identity in left:
            send_signal(identity, signal.SIGKILL)
        if ancestor == os.getpid():  # orphans are ours to collect; others' children are not
            reap_children()
        time.sleep(0.05)


def reap_children(keep: Iterable[int] = ()) -> None:
    """Collect dead children, adopted ones too, except those in ``keep`` (a Popen collects its own)."""
    kept = set(keep)
    while True:
        try:
            info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if info is None or info.si_pid in kept:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(info.si_pid, os.WNOHANG)
