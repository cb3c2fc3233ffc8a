"""An engine that is started for checks, asked over HTTP, and ended with all of its processes. Standard library only."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ddtree_deploy.children import die_with_parent
from ddtree_deploy.serve.logs import find_cause

_TROUBLE = ("leak", "Traceback (most recent call last)", "CUDA error", "illegal memory access")


class EngineFailed(Exception):
    """The engine did not come up, died, or answered what no request should get."""

    def __init__(self, summary: str, detail: str = "") -> None:
        super().__init__(summary)
        self.detail = detail


def free_ports(count: int) -> List[int]:
    """Ports of the loopback device that are free now, each with the one 10000 above it, which the engine takes too."""
    found: List[int] = []
    for port in random.sample(range(20000, 30000), 500):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10000))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError("no free ports between 20000 and 30000")


class Client:
    """Talks to an engine that somebody runs."""

    def __init__(self, port: int, log: Path) -> None:
        self.port = port
        self.log = log

    def request(self, path: str, body: Optional[Mapping[str, Any]], timeout: float = 120.0) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        return urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, headers), timeout=timeout
        )

    def ask(self, path: str, body: Optional[Mapping[str, Any]] = None, timeout: float = 120.0) -> Tuple[int, Any]:
        """(HTTP status, answer); a GET without ``body``. Raises EngineFailed where nobody answers."""
        try:
            return self.try_asking(path, body, timeout)
        except OSError as error:
            raise EngineFailed(f"the engine does not answer: {error}", self.tail()) from error

    def try_asking(self, path: str, body: Optional[Mapping[str, Any]], timeout: float) -> Tuple[int, Any]:
        """As :meth:`ask`; raises OSError."""
        try:
            with self.request(path, body, timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode("utf-8", "replace")
        except http.client.HTTPException as error:  # it went away in the middle of an answer
            raise ConnectionError(f"{type(error).__name__} {error}") from error
        return 200, json.loads(text) if text[:1] in (b"{", b"[") else text.decode("utf-8", "replace")

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 120.0) -> Tuple[int, Any]:
        return self.ask(path, body, timeout)

    def generate(self, ids: Sequence[int], timeout: float = 120.0, **sampling: Any) -> Dict[str, Any]:
        """The answer to one prompt, greedy and 160 tokens long unless ``sampling`` says otherwise."""
        body: Dict[str, Any] = {"input_ids": list(ids)}
        body.update((name, sampling.pop(name)) for name in ("return_logprob", "top_logprobs_num") if name in sampling)
        body["sampling_params"] = {"max_new_tokens": 160, "temperature": 0, "ignore_eos": True, **sampling}
        status, answer = self.post("/generate", body, timeout)
        if status != 200 or not isinstance(answer, dict):
            raise EngineFailed(f"the engine answered a request with {status}: {str(answer)[:300]}", self.tail())
        return answer

    def generate_all(self, prompts: Sequence[Sequence[int]], concurrency: int, **sampling: Any) -> List[Dict[str, Any]]:
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda ids: self.generate(ids, **sampling), prompts))

    def stream(self, ids: Sequence[int], **sampling: Any) -> List[Dict[str, Any]]:
        """The pieces of a streamed answer, in order."""
        wanted = {"max_new_tokens": 160, "temperature": 0, "ignore_eos": True, **sampling}
        body = {"input_ids": list(ids), "sampling_params": wanted, "stream": True}
        with self.request("/generate", body) as response:
            lines = [line.decode() for line in response if line.startswith(b"data: ")]
        return [json.loads(line[6:]) for line in lines if line.strip() != "data: [DONE]"]

    def load(self) -> Dict[str, Any]:
        """The engine's own count of requests and KV slots (``/v1/loads``)."""
        status, answer = self.ask("/v1/loads")
        if status != 200 or len(answer.get("loads", [])) != 1:
            raise EngineFailed(f"/v1/loads answered {status}: {str(answer)[:300]}", self.tail())
        return dict(answer["loads"][0])

    def wait_until_idle(self, limit_s: float = 30.0) -> Dict[str, Any]:
        """The count once no request is left; the last one where some are still there."""
        deadline = time.monotonic() + limit_s
        while True:
            load = self.load()
            if load["num_running_reqs"] + load["num_waiting_reqs"] + load["num_used_tokens"] == 0:
                return load
            if time.monotonic() > deadline:
                return load
            time.sleep(0.2)

    def flush(self, limit_s: float = 10.0) -> None:
        """Empty the radix cache, which a busy engine refuses; it still is for a moment after an answer."""
        deadline = time.monotonic() + limit_s
        while True:
            status, answer = self.post("/flush_cache", {})
            if status == 200:
                return
            if time.monotonic() > deadline:
                raise EngineFailed(f"the cache was not flushed: {str(answer)[:300]}", self.tail())
            time.sleep(0.1)

    def tail(self, size: int = 4000) -> str:
        """The end of the log."""
        with contextlib.suppress(OSError):
            return self.log.read_text("utf-8", "replace")[-size:]
        return ""

    def trouble(self) -> List[str]:
        """Lines of the log that an engine in order does not write."""
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return [line for line in lines if any(text in line for text in _TROUBLE)]


class Server(Client):
    """An engine in a process group of its own, which dies with this process even if that is killed."""

    def __init__(self, command: Sequence[str], port: int, log: Path, environment: Optional[Mapping[str, str]] = None):
        super().__init__(port, log)
        self.began = time.monotonic()
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=None if environment is None else dict(environment),
                cwd="/",
                start_new_session=True,
                preexec_fn=die_with_parent(),  # and the engine's own children end with it
            )

    def wait(self, limit_s: float = 300.0) -> float:
        """Until it has answered a completion; the seconds that took since it was started, as ``limit_s`` counts.

        Raises EngineFailed.
        """
        deadline = self.began + limit_s
        body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 2}}
        while time.monotonic() < deadline:
            if not self.alive():
                why = find_cause(self.tail(100_000).splitlines())
                how = f"ended with status {self.process.returncode} while it started" + (f": {why}" if why else "")
                raise EngineFailed(f"the engine {how}", self.tail())
            with contextlib.suppress(OSError):
                if self.try_asking("/generate", body, 120.0)[0] == 200:
                    return time.monotonic() - self.began
            time.sleep(0.3)
        raise EngineFailed(f"the engine has not answered within {limit_s:.0f} s", self.tail())

    def alive(self) -> bool:
        """False once the scheduler has given up, for example over a leaked KV slot."""
        return self.process.poll() is None

    def stop(self) -> None:
        """End all of its processes, and wait until they are gone: they hold the GPU."""
        deadline = time.monotonic() + 15.0
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.poll()  # a zombie is still a member of the group
                time.sleep(0.05)
        self.process.wait()
