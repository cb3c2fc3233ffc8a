"""What the workers of a session share: things made once by whichever needs them first, and ports."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def made_once(name: str, make: Callable[[], T]) -> T:
    """What ``make`` returned to the first that asked for ``name``, a copy for everyone; others wait for it meanwhile.

    If it could not be made, nobody tries again.
    """
    folder = Path(os.environ["DDTREE_TESTS_CACHE"])
    kept, failure = folder / f"{name}.pickle", folder / f"{name}.failed"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not failure.exists(), f"{name} could not be made: {failure.read_text()}"
        if not kept.exists():
            try:
                content = pickle.dumps(make())
            except BaseException as error:
                failure.write_text(f"{type(error).__name__}: {error}", errors="backslashreplace")
                raise
            kept.write_bytes(content)
    return pickle.loads(kept.read_bytes())


def is_made(name: str) -> bool:
    return Path(os.environ["DDTREE_TESTS_CACHE"], f"{name}.pickle").exists()


def worker_number() -> int:
    """0, 1 ... of the workers of a session."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))


def free_port(first: int, count: int, address: str = "127.0.0.1") -> int:
    """One of the ``count`` ports from ``first`` on which nothing listens now."""
    for port in random.sample(range(first, first + count), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind((address, port))
            return port
    raise OSError("no free port")
