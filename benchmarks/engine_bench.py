"""Tokens per second of several engine configurations on one GPU, side by side.

Starts all servers at once, then measures them one after the other, so that ratios come
from one machine in one state. Needs only the standard library besides the release:

    RELEASE/bin/python benchmarks/engine_bench.py --target T --draft D --prompts prompts.json --out results \\
        --server "ddtree=--attention-backend triton --speculative-algorithm DDTREE --speculative-ddtree-budget auto" \\
        --server "dflash=--attention-backend fa3 --speculative-algorithm DFLASH" \\
        --server "plain=--attention-backend triton"

A request wants 160 tokens. At concurrency c there are max(8, 2 c) of them below 16 and 3 c
from there on, after c warm-up requests. Tokens per verify step are total tokens over total
verify steps.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

COMMON = [
    "--mem-fraction-static", "0.9", "--max-total-tokens", "30000", "--disable-piecewise-cuda-graph",
    "--cuda-graph-max-bs", "32", "--sampling-backend", "pytorch", "--disable-radix-cache", "--sleep-on-idle",
    "--skip-server-warmup",
]  # fmt: skip


class Engine:
    """One server in its own process group."""

    def __init__(self, name: str, args: str, options: argparse.Namespace, port: int):
        self.name, self.port = name, port
        extra = shlex.split(args)
        if "--speculative-algorithm" in extra:
            extra += ["--speculative-draft-model-path", options.draft]
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", options.target, "--port", str(port)]
        self.log = options.out / f"{name}.log"
        self.process = subprocess.Popen(
            [*command, *COMMON, *extra], stdout=self.log.open("wb"), stderr=subprocess.STDOUT, start_new_session=True
        )

    def generate(self, ids: list[int], **sampling: object) -> dict:
        params = {"max_new_tokens": 160, "temperature": 0, "ignore_eos": True, **sampling}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/generate",
            json.dumps({"input_ids": ids, "sampling_params": params}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=180) as response:
            return json.loads(response.read())

    def wait(self, prompt: list[int], limit: float = 400) -> None:
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.generate(prompt, max_new_tokens=4)
                return
            except OSError:
                time.sleep(1)
        raise SystemExit(f"{self.name} did not come up:\n{self.log.read_text(errors='replace')[-3000:]}")

    def measure(self, prompts: list[list[int]], concurrency: int, temperature: float) -> dict[str, float]:
        count = max(8, 2 * concurrency) if concurrency < 16 else 3 * concurrency

        def ask(i: int) -> dict:
            return self.generate(prompts[i % len(prompts)], temperature=temperature)["meta_info"]

        with ThreadPoolExecutor(concurrency) as pool:
            list(pool.map(ask, range(concurrency)))
            start = time.monotonic()
            answers = list(pool.map(ask, range(count)))
            seconds = time.monotonic() - start
        tokens = sum(answer["completion_tokens"] for answer in answers)
        steps = sum(answer.get("spec_verify_ct", 0) for answer in answers) or tokens
        return {"tokens_per_s": tokens / seconds, "tokens_per_step": tokens / steps}

    def stop(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", required=True, help="folder of the target model")
    parser.add_argument("--draft", required=True, help="folder of the DFlash draft")
    parser.add_argument("--prompts", required=True, type=Path, help="JSON list of token-id lists")
    parser.add_argument("--out", required=True, type=Path, help="folder for logs and results.json")
    parser.add_argument("--server", action="append", required=True, metavar="NAME=ARGS")
    parser.add_argument("--concurrency", default="1,4,16,32")
    parser.add_argument("--temperature", default="0,0.8")
    parser.add_argument("--port", type=int, default=31000)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prompts = json.loads(options.prompts.read_text())

    engines = [
        Engine(*server.partition("=")[::2], options, options.port + i) for i, server in enumerate(options.server)
    ]
    results: dict[str, dict[str, dict[str, float]]] = {}
    try:
        for engine in engines:
            engine.wait(prompts[0])
        for engine in engines:
            rows = results[engine.name] = {}
            for temperature in map(float, options.temperature.split(",")):
                for concurrency in map(int, options.concurrency.split(",")):
                    row = engine.measure(prompts, concurrency, temperature)
                    rows[f"T={temperature:g} c={concurrency}"] = row
                    print(
                        f"{engine.name:12} T={temperature:g} c={concurrency:<3} {row['tokens_per_s']:9.1f} tok/s "
                        f"{row['tokens_per_step']:5.2f} tokens/step",
                        flush=True,
                    )
    finally:
        for engine in engines:
            engine.stop()
        (options.out / "results.json").write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
