"""Test double of the engine: an HTTP server with the routes that the supervisor asks, and ways to misbehave.

It proves how we handle processes, nothing about the real engine. A release for it is made by ``make_release``: a
folder whose ``bin/python`` runs this file in place of ``-m sglang.launch_server``. STAND_IN_* variables choose what it
does:

    STAND_IN_DELAY       seconds before it listens
    STAND_IN_DIE         a message: print a traceback that ends with it, exit 1, before listening
    STAND_IN_DIE_READY   it exits with code 7 once its supervisor calls it ready, every time
    STAND_IN_FALSE_200   answers 200 without a token this many times first
    STAND_IN_STUBBORN    ignores SIGTERM
    STAND_IN_ORPHAN      starts a child in a session of its own, without the marker, that ignores SIGTERM; its pid is
                         written to this file
    STAND_IN_SAY         a line that it prints, ``{NAME}`` being the variable's value
    STAND_IN_SLOW        seconds that a completion takes
"""

from __future__ import annotations

import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

_ORPHAN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def make_release(path: Path, record: dict[str, Any] | None = None) -> Path:
    """A release whose engine is this stand-in."""
    (path / "bin").mkdir(parents=True)
    (path / ".ddtree").mkdir()
    python = path / "bin" / "python"
    python.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} {Path(__file__).resolve()} "$@"\n')
    python.chmod(0o755)
    (path / ".ddtree" / "release.json").write_text(json.dumps({"id": path.name, "abi_tag": "cpu", **(record or {})}))
    return path


class Handler(http.server.BaseHTTPRequestHandler):
    empty_answers = int(os.environ.get("STAND_IN_FALSE_200", "0"))
    completions = 0
    api_key: str | None = None

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        self.rfile.read(length)
        time.sleep(float(os.environ.get("STAND_IN_SLOW", "0")))
        if self.api_key is not None and self.headers.get("Authorization") != f"Bearer {self.api_key}":
            self._answer(401, {"error": "Unauthorized"})
        elif Handler.empty_answers > 0:
            Handler.empty_answers -= 1
            self._answer(200, {"text": "", "meta_info": {"completion_tokens": 0}})
        else:
            Handler.completions += 1
            meta = {"completion_tokens": 1, "finish_reason": {"type": "length"}}
            self._answer(200, {"text": " x", "meta_info": meta})
            if "STAND_IN_DIE_READY" in os.environ and Handler.completions == 1:
                threading.Thread(target=die_when_ready, daemon=True).start()

    def do_GET(self) -> None:
        self._answer(200, {"internal_states": [{"avg_spec_accept_length": 3.5}]})

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        print(format % arguments, flush=True)


def die_when_ready() -> None:
    while json.loads(Path("state.json").read_text())["state"] != "ready":  # we run in the service's folder
        time.sleep(0.02)
    os._exit(7)


def main(arguments: list[str]) -> int:
    setting = os.environ.get
    print("stand-in engine: " + " ".join(arguments), flush=True)
    if setting("STAND_IN_SAY"):
        print(setting("STAND_IN_SAY", "").format(**os.environ), flush=True)
    if setting("STAND_IN_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if setting("STAND_IN_ORPHAN"):
        clean = {name: value for name, value in os.environ.items() if name != "DDTREE_SERVICE"}
        child = subprocess.Popen([sys.executable, "-c", _ORPHAN], env=clean, start_new_session=True)
        Path(os.environ["STAND_IN_ORPHAN"]).write_text(str(child.pid))
    time.sleep(float(setting("STAND_IN_DELAY", "0")))
    if setting("STAND_IN_DIE"):
        print(
            f'Traceback (most recent call last):\n  File "server_args.py", line 1, in check\n{setting("STAND_IN_DIE")}'
        )
        return 1
    if "--config" in arguments:
        for line in Path(arguments[arguments.index("--config") + 1]).read_text().splitlines():
            name, _, value = line.partition(": ")
            if name == "api-key":
                Handler.api_key = json.loads(value)
    address = (arguments[arguments.index("--host") + 1], int(arguments[arguments.index("--port") + 1]))
    server = http.server.ThreadingHTTPServer(address, Handler)
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
