"""Children that end with the process that started them. Standard library only: it travels to a release, too."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Callable

_LIBC = ctypes.CDLL(None)  # loaded now: nothing may be loaded between fork and exec
_PR_SET_PDEATHSIG = 1


def die_with_parent() -> Callable[[], None]:
    """A ``preexec_fn``: the child is killed when the thread that forked it ends. A killed agent must not leave a child
    that goes on writing into what the next run removes."""
    parent = os.getpid()

    def arm() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it ended before that, and no signal will come
            os.kill(os.getpid(), signal.SIGKILL)

    return arm
