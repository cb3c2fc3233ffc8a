"""Tiny wheels and a package index of them on loopback or in a folder."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread


def wheel(
    folder: Path, name: str, version: str, requires: Sequence[str] = (), tag: str = "py3-none-any", body: bytes = b""
) -> Path:
    """A valid wheel whose module holds ``body``, stored without compression."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {line}\n" for line in requires)
    files = {
        f"{name}/__init__.py": body,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
    }
    record = "".join(f"{file},sha256={_digest(content)},{len(content)}\n" for file, content in files.items())
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    with zipfile.ZipFile(path, "w") as archive:
        for file, content in files.items():
            archive.writestr(file, content)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


class _Refusing(_Quiet):
    """Lists packages to everybody, gives none away."""

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            self.send_error(403)
        else:
            super().do_GET()

    do_HEAD = do_GET


@contextmanager
def index(folder: Path, refusing: bool = False) -> Iterator[str]:
    """URL of a package index of ``folder`` (``<name>/<wheel>``) on loopback."""
    handler = partial(_Refusing if refusing else _Quiet, directory=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)  # how long `shutdown` waits
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
