"""Running uv on the host. Standard library only (agent-safe)."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import Callable, Dict, List, Optional

from ddtree_deploy.children import die_with_parent
from ddtree_deploy.errors import StepError
from ddtree_deploy.release.clone import choose_method
from ddtree_deploy.release.uv_errors import masked, uv_error

_DROPPED = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT_ENVIRONMENT", "UV_SYSTEM_PYTHON")


class Uv:
    """uv at ``path``; its output goes to the file ``log`` with passwords masked.

    ``indexes``: index URLs, the main one first (``default``: uv's own); they may hold secrets, so they travel in the
    environment, which other users cannot read, and not on the command line.
    """

    def __init__(self, path: str, log: str, indexes: List[str], source: str) -> None:
        self._path = path
        self._log = log
        self._source = source
        self._environment = _environment(indexes)

    def run(self, arguments: List[str], watch: Optional[Callable[[], None]] = None) -> None:
        """Run ``uv ARGUMENTS``; ``watch`` is called twice a second meanwhile. Raises StepError, see ``uv_errors``."""
        raw = self._log + ".raw"
        try:
            with open(raw, "wb") as output:
                os.fchmod(output.fileno(), 0o600)
                process = self._start(arguments, output.fileno())
                try:
                    status = _wait(process, watch)
                except BaseException:
                    _end(process)
                    raise
            with open(raw, encoding="utf-8", errors="replace") as stream:
                text = stream.read()
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(raw)
        with open(self._log, "a", encoding="utf-8") as log:
            log.write(f"$ uv {' '.join(arguments)}\n{masked(text)}\n")
        if status != 0:
            raise uv_error(text, status, self._log, self._source)

    def _start(self, arguments: List[str], output: int) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [self._path, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            hint = "install uv on the host, or take it off PATH there: ours is sent then"
            raise StepError("uv-missing", f"cannot run uv: {error.strerror}", where=self._path, hint=hint) from error


def link_mode(folder: str) -> str:
    """uv's ``--link-mode`` from its cache into ``folder``: the cheapest that works there."""
    cache = os.environ.get("UV_CACHE_DIR") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "uv"
    )
    while cache and not os.path.isdir(cache):
        cache = os.path.dirname(cache)
    probe = os.path.join(cache, f".ddtree-probe-{os.getpid()}")
    try:
        with open(probe, "wb") as stream:
            stream.write(b"probe")
        return {"reflink": "clone", "hardlink": "hardlink", "copy": "copy"}[choose_method(probe, folder)]
    except OSError:
        return "copy"
    finally:
        with contextlib.suppress(OSError):
            os.unlink(probe)


def executable(path: str, tools: str) -> str:
    """A uv that was sent as a blob, made executable: a copy in ``tools``, since blobs are never changed."""
    target = os.path.join(tools, "uv-" + os.path.basename(path)[:12])
    if not os.access(target, os.X_OK):
        os.makedirs(tools, exist_ok=True)
        temporary = f"{target}.{os.getpid()}.tmp"
        shutil.copyfile(path, temporary)
        os.chmod(temporary, 0o755)
        os.replace(temporary, target)
    return target


def _environment(indexes: List[str]) -> Dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in _DROPPED}
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    environment["UV_NO_PROGRESS"] = "1"
    environment.setdefault("UV_HTTP_CONNECT_TIMEOUT", "10")
    if indexes:
        # Hashes say which build is right, so every index may be asked for every package.
        environment["UV_INDEX_STRATEGY"] = "unsafe-best-match"
        if indexes[0] != "default":
            environment["UV_DEFAULT_INDEX"] = indexes[0]
        if indexes[1:]:
            environment["UV_INDEX"] = " ".join(indexes[1:])
    return environment


def _wait(process: subprocess.Popen[bytes], watch: Optional[Callable[[], None]]) -> int:
    while True:
        try:
            return process.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            if watch is not None:
                watch()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
