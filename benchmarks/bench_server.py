"""What the benchmarks share: a server of the engine, the workload, and files that survive a kill.

Everything runs with the python of a release and the standard library alone.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Sequence

PROJECT = Path(__file__).resolve().parent.parent
MAX_NEW_TOKENS = 160

# Compilations that take minutes are left out. --sleep-on-idle: a server that waits costs nothing.
GPU_ARGUMENTS = [
    "--mem-fraction-static", "0.9", "--max-total-tokens", "30000", "--disable-piecewise-cuda-graph",
    "--cuda-graph-max-bs", "32", "--sampling-backend", "pytorch", "--disable-radix-cache", "--sleep-on-idle",
    "--skip-server-warmup",
]  # fmt: skip
CPU_ARGUMENTS = [
    "--device", "cpu", "--attention-backend", "torch_native", "--disable-overlap-schedule",
    "--disable-piecewise-cuda-graph", "--max-total-tokens", "20000", "--disable-radix-cache", "--sleep-on-idle",
    "--skip-server-warmup",
]  # fmt: skip
CPU_AUTO_BUDGET = "31"


def server_arguments(arguments: Sequence[str], draft: Path, device: str) -> list[str]:
    """A configuration's arguments with the common ones.

    On a CPU, where a run is rehearsed, `auto` becomes a fixed budget and every attention backend torch_native.
    """
    own = list(arguments)
    if "--speculative-algorithm" in own:
        own += ["--speculative-draft-model-path", str(draft)]
    if device != "cpu":
        return [*GPU_ARGUMENTS, *own]
    own = [CPU_AUTO_BUDGET if argument == "auto" else argument for argument in own]
    return ["--dtype", "float32", *own, *CPU_ARGUMENTS]  # of options given twice the last one counts


def server_environment(device: str, changes: dict[str, str] | None = None) -> dict[str, str]:
    """The environment of a server; on a CPU with the driver's stand-in and one thread."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **(changes or {})}
    if device == "cpu":
        shims = str(PROJECT / "overlays" / "files" / "cpu")
        environment.update(LD_LIBRARY_PATH=shims, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [shims, environment.get("PYTHONPATH")]))
    return environment


def free_port() -> int:
    """A free port below 50000: the engine also binds port + 10000."""
    for port in random.sample(range(20000, 50000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no free port")


class EngineFailed(Exception):
    """A server that did not come up, or died; with the end of its log."""


class Engine:
    """One server in its own process group.

    Args:
        name: of the configuration, and of the log.
        arguments: of the configuration, without model, draft and port.
        target, draft: folders of the models.
        logs: folder of the log.
        device: cuda or cpu.
        environment: changes to the environment.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        *,
        target: Path,
        draft: Path,
        logs: Path,
        device: str = "cuda",
        environment: dict[str, str] | None = None,
    ):
        self.name, self.device, self.port = name, device, free_port()
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(target), "--port", str(self.port)]
        command += server_arguments(arguments, draft, device)
        self.command = shlex.join(command)
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=server_environment(device, environment),
            )
        self.started = time.monotonic()

    def post(self, path: str, body: dict[str, Any], timeout: float = 300) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                text = response.read()
        except urllib.error.HTTPError as error:
            raise EngineFailed(f"{self.name}: {path} {error.code} {error.read(500)!r}") from error
        except http.client.HTTPException as error:
            raise EngineFailed(f"{self.name}: {path} {type(error).__name__}") from error
        return json.loads(text) if text[:1] in (b"{", b"[") else text.decode()

    def generate(self, ids: list[int], *, top_logprobs: int = 0, **sampling: object) -> dict[str, Any]:
        body: dict[str, Any] = {
            "input_ids": ids,
            "sampling_params": {
                "max_new_tokens": MAX_NEW_TOKENS,
                "temperature": 0,
                "ignore_eos": True,
                **sampling,
            },
        }
        if top_logprobs:
            body.update(return_logprob=True, top_logprobs_num=top_logprobs)
        return dict(self.post("/generate", body))

    def generate_all(self, inputs: Sequence[list[int]], concurrency: int, **sampling: object) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda ids: self.generate(ids, **sampling), inputs))

    def wait(self, prompt: list[int], limit: float = 420) -> float:
        """Seconds from the start until the first answer.

        Raises:
            EngineFailed: with the end of the log.
        """
        while time.monotonic() < self.started + limit and self.process.poll() is None:
            try:
                self.generate(prompt, max_new_tokens=4)
                return time.monotonic() - self.started
            except (OSError, EngineFailed):
                time.sleep(0.5)
        tail = self.log.read_text(errors="replace")[-3000:]
        raise EngineFailed(f"{self.name} did not come up in {limit:.0f} s:\n{tail}")

    def pause(self) -> None:
        """Stop the processes, so that another server has the machine to itself."""
        time.sleep(0.2)  # the step that was launched ahead ends
        os.killpg(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def request_count(concurrency: int) -> int:
    """Requests of one measurement: at least 8, two for each that runs below 16 and three from there on."""
    return max(8, 2 * concurrency) if concurrency < 16 else 3 * concurrency


def measure(
    engine: Engine,
    prompts: Sequence[list[int]],
    concurrency: int,
    temperature: float,
    most: int | None = None,
    new_tokens: int = MAX_NEW_TOKENS,
) -> dict[str, Any]:
    """Tokens per second of `request_count` requests, or at most `most`, after one warm-up request per slot.

    Tokens per verify step are total tokens over total verify steps.
    """
    count = min(most or sys.maxsize, request_count(concurrency))

    def ask(i: int) -> dict[str, Any]:
        ids = prompts[i % len(prompts)]
        return dict(engine.generate(ids, temperature=temperature, max_new_tokens=new_tokens)["meta_info"])

    with ThreadPoolExecutor(concurrency) as pool:
        list(pool.map(ask, range(min(count, concurrency))))
        start = time.monotonic()
        answers = list(pool.map(ask, range(count)))
        seconds = time.monotonic() - start
    tokens = sum(answer["completion_tokens"] for answer in answers)
    steps = [answer.get("spec_verify_ct", 0) for answer in answers]
    return {
        "tokens_per_s": tokens / seconds,
        "tokens_per_step": tokens / (sum(steps) or tokens),
        "verify_steps": steps,
        "latency_s": [round(answer["e2e_latency"], 4) for answer in answers],
    }


def tokens_per_step(answers: Sequence[dict[str, Any]]) -> float:
    tokens = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return tokens / sum(answer["meta_info"]["spec_verify_ct"] for answer in answers)


def largest_gaps(
    judge: Engine, prompts: Sequence[list[int]], expected: Sequence[list[int]], got: Sequence[list[int]]
) -> list[float]:
    """For each answer that differs: how much less probable (in nats) its first differing token was to the judge.

    Batched verification in bf16 may choose otherwise only where two tokens are nearly as probable.
    """
    gaps = []
    for ids, x, y in zip(prompts, expected, got):
        at = next((i for i, (a, b) in enumerate(zip(x, y)) if a != b), None)
        if at is None:
            continue
        answer = judge.generate([*ids, *x[:at]], max_new_tokens=1, top_logprobs=5)
        tops = {token: logprob for logprob, token, _ in answer["meta_info"]["output_top_logprobs"][0]}
        gaps.append(max(tops.values()) - tops.get(y[at], float("-inf")))
    return gaps


def save(path: Path, data: Any) -> None:
    """Replace the file at once, so that a kill leaves the last whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(data, indent=1) + "\n")
    fresh.replace(path)


def machine(device: str) -> dict[str, Any]:
    """What ran the measurement, for the result file."""
    found: dict[str, Any] = {"device": device, "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime())}
    found["cpus"], found["load"] = os.cpu_count(), os.getloadavg()[0]
    if device != "cpu":
        query = ["nvidia-smi", "--query-gpu=index,name,driver_version,memory.total", "--format=csv,noheader"]
        found["gpus"] = subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
        found["visible"] = os.environ.get("CUDA_VISIBLE_DEVICES")
    return found


def arguments(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks of a server have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, type=Path, help="folder of the target model")
    parser.add_argument("--draft", required=True, type=Path, help="folder of the DFlash draft")
    parser.add_argument("--out", required=True, type=Path, help="JSON file of the results")
    parser.add_argument("--logs", type=Path, help="folder of the servers' logs; default: beside the results")
    parser.add_argument("--prompts", type=Path, default=PROJECT / "benchmarks" / "data" / "prompts.json")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu rehearses a run")
    return parser


def logs_folder(options: argparse.Namespace) -> Path:
    return options.logs or options.out.with_suffix(".logs")


def stop_on_sigterm() -> None:
    """Let `finally` run, which ends the servers, when a time limit ends this process."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
