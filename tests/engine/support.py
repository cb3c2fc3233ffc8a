"""What the engine tests share: the release's python, its environment and a server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import shared

PROJECT = Path(__file__).resolve().parents[2]
PACKAGES = (
    "pytest",
    "_pytest",
    "py.py",
    "pluggy",
    "iniconfig",
    "packaging",
    "pygments",
    "hypothesis",
    "sortedcontainers",
    "_hypothesis_globals.py",
    "_hypothesis_ftz_detector.py",
    "_hypothesis_pytestplugin.py",
)


def engine_python() -> str | None:
    """The python of a provisioned release, named by DDTREE_ENGINE_PYTHON; without it, tests/conftest.py makes one."""
    return os.environ.get("DDTREE_ENGINE_PYTHON") or None


def pair() -> Path:
    """Folder with `target` and `draft` of the nano pair (DDTREE_ENGINE_PAIR)."""
    return Path(os.environ.get("DDTREE_ENGINE_PAIR") or PROJECT / "pairs" / "nano")


def prompts() -> list[list[int]]:
    """Token ids of the acceptance prompts."""
    return json.loads((Path(__file__).parent / "prompts.json").read_text())


def cpu_env(scratch: Path) -> dict[str, str]:
    """Environment of a CPU service: no GPU, the driver stand-in, one thread."""
    shims = PROJECT / "overlays" / "files" / "cpu"
    paths = [str(shims)]
    env = dict(os.environ)
    env.update(
        LD_LIBRARY_PATH=str(shims),
        CUDA_VISIBLE_DEVICES="",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="1",
        TRANSFORMERS_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        PYTHONPATH=os.pathsep.join(paths),
        HOME=str(scratch),
    )
    return env


def free_port() -> int:
    """A free port, of this worker's own. The engine also wants port + 233 and port + 10000, which must be below those
    that the system gives to connections."""
    return shared.free_port(11000 + shared.worker_number() % 2 * 3000, 2000)


class Server:
    """One engine on a CPU; a context manager that ends its whole process group."""

    def __init__(self, scratch: Path, *args: str, dtype: str = "float32", env: dict[str, str] | None = None):
        python = engine_python()
        assert python, "DDTREE_ENGINE_PYTHON names the python of a provisioned release"
        self.port = free_port()
        self.log = scratch / f"server-{self.port}.log"
        self.command = [
            python, "-m", "sglang.launch_server", "--model-path", str(pair() / "target"), "--port", str(self.port),
            "--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule",
            "--disable-piecewise-cuda-graph", "--max-total-tokens", "20000", "--sleep-on-idle",
            "--skip-server-warmup", "--dtype", dtype, *args,
        ]  # fmt: skip
        self.env = {**cpu_env(scratch), **(env or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Server:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=subprocess.STDOUT, env=self.env, start_new_session=True
            )
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=10).status == 200:
                    return self
            time.sleep(0.5)
        tail = self.log.read_text(errors="replace")[-4000:]
        self.__exit__()
        raise AssertionError(f"the engine did not come up:\n{tail}")

    def __exit__(self, *_: object) -> None:
        assert self.process is not None
        for sig in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, sig)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(timeout=10)
            time.sleep(0.5)

    def alive(self) -> bool:
        """False once the scheduler has given up, for example over a leaked KV slot."""
        return self.process is not None and self.process.poll() is None

    def post(self, path: str, body: dict[str, object], timeout: float = 300) -> tuple[int, dict]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                status, text = response.status, response.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        return status, json.loads(text) if text.startswith((b"{", b"[")) else {"text": text.decode()}

    def generate(self, input_ids: list[int], **sampling: object) -> dict:
        params = {"max_new_tokens": 160, "temperature": 0, "ignore_eos": True, **sampling}
        status, answer = self.post("/generate", {"input_ids": input_ids, "sampling_params": params})
        assert status == 200, answer
        return answer

    def generate_all(self, inputs: list[list[int]], concurrency: int, **sampling: object) -> list[dict]:
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda ids: self.generate(ids, **sampling), inputs))

    def flush(self) -> None:
        """Empty the radix cache, which a busy engine refuses; it still is for a moment after an answer."""
        deadline = time.monotonic() + 60
        while (answered := self.post("/flush_cache", {}))[0] != 200:
            assert time.monotonic() < deadline, answered
            time.sleep(0.1)


def tokens_per_step(answers: list[dict]) -> float:
    """Total tokens / total verify steps, not the mean of the requests' accept length."""
    tokens = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return tokens / sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)
