"""Sent to the host and run there by ``python -c``; standard library only, Python 3.9, nothing of ours to import.

Its arguments are the sha256 and the size of the agent's zipapp. It says whether the zipapp is in the cache, takes it
from stdin if not, and becomes the agent. Everything is read with ``os.read``: what follows belongs to the agent.
"""

import contextlib
import hashlib
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, List, Optional


def say(**message: Any) -> None:
    os.write(1, b"DDTREE-BOOTSTRAP " + json.dumps(message).encode("ascii") + b"\n")


def candidates() -> List[Path]:
    """Where the zipapp may be kept: the user's cache, else a folder of the user's own in the temporary folder."""
    private = Path(tempfile.gettempdir(), f"ddtree-deploy-{os.getuid()}")
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "ddtree-deploy")
    except RuntimeError:  # a user without a home
        return [private]
    return [cache, private] if cache.is_absolute() else [private]


def usable(folder: Path) -> bool:
    """Create ``folder`` if need be. Nobody but us may be able to write it, since we run what is in it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        if status.st_mode & 0o022:
            folder.chmod(stat.S_IMODE(status.st_mode) & ~0o022)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def holds(path: Path, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False


def receive(size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(0, min(size - len(data), 1 << 20))
        if not chunk:
            sys.exit(1)  # the controller went away
        data += chunk
    return bytes(data)


def store(data: bytes, folders: List[Path], name: str) -> Optional[Path]:
    """The path written, in the first folder that takes it; otherwise says why and returns None."""
    problem = "no folder to write to"
    for folder in folders:
        partial = folder / f"{name}.{os.getpid()}.partial"
        try:
            with partial.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            return partial.rename(folder / name)
        except OSError as error:
            problem = f"{folder}: {error.strerror}"
            with contextlib.suppress(OSError):
                partial.unlink()
    say(error="agent-not-stored", message=f"cannot store the agent's code: {problem}")
    return None


def main(sha256: str, size: int) -> None:
    name = f"agent-{sha256}.pyz"
    folders = [folder for folder in candidates() if usable(folder)]
    path = next((folder / name for folder in folders if holds(folder / name, sha256)), None)
    if path is None:
        say(have=False)
        data = receive(size)
        if hashlib.sha256(data).hexdigest() != sha256:
            say(error="agent-damaged", message="the agent's code arrived damaged")
            sys.exit(1)
        path = store(data, folders, name)
        if path is None:
            sys.exit(1)
    with contextlib.suppress(OSError):
        os.utime(path)  # prune removes those that nobody has used for a while
    say(have=True)
    os.execv(sys.executable, [sys.executable, "-I", "-S", str(path)])


if __name__ == "__main__":
    main(sys.argv[2], int(sys.argv[3]))
