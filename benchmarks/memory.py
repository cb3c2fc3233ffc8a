"""GPU memory of DDTREE beyond DFLASH's, with a long context and the same KV pool.

    RELEASE/bin/python benchmarks/memory.py --target T --draft D --out results/memory.json

Starts one server after the other on an otherwise empty GPU and reads the GPU's used memory (nvidia-smi; on a CPU the
processes' resident memory): when it is up, after a request that fills the context, and after 32 requests at once,
by when torch's allocator holds what the largest steps need.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

from bench_server import Engine, EngineFailed, arguments, logs_folder, machine, save, stop_on_sigterm

# The engine's own account, for the parts: weights, KV pools, graphs.
OWN_ACCOUNT = re.compile(r"(?:Load weight end|KV Cache is allocated|Memory pool end|[Cc]apture .* end)[^\n]*")

MOMENTS = ("up", "long_request", "many_requests")


def gpu_mib(index: str) -> int:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", index]
    return int(subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0])


def visible_gpu() -> str:
    """nvidia-smi's index of the GPU that a server takes."""
    return (os.environ.get("CUDA_VISIBLE_DEVICES") or "0").split(",")[0]


def resident_mib(group: int) -> int:
    """Resident memory of a process group."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(folder.name)) == group:
                total += int((folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, ProcessLookupError):
            continue
    return total >> 20


def beyond(dflash: dict[str, Any], ddtree: dict[str, Any]) -> dict[str, int]:
    """What DDTREE used more at each moment that both have."""
    return {moment: ddtree[moment] - dflash[moment] for moment in MOMENTS if moment in dflash and moment in ddtree}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--context", type=int, default=131072)
    parser.add_argument("--budget", default="63")
    parser.add_argument("--backend", default="triton", help="attention backend of both")
    options = parser.parse_args()
    stop_on_sigterm()
    prompts = json.loads(options.prompts.read_text())
    context = options.context
    index = visible_gpu()
    base = [
        "--attention-backend", options.backend, "--context-length", str(context), "--max-total-tokens",
        str(context + 16384), "--max-running-requests", "32",
    ]  # fmt: skip
    configurations = {
        "dflash": [*base, "--speculative-algorithm", "DFLASH"],
        "ddtree": [
            *base,
            "--speculative-algorithm",
            "DDTREE",
            "--speculative-ddtree-budget",
            options.budget,
        ],
    }
    results: dict[str, Any] = {
        "machine": machine(options.device),
        "source": "resident memory" if options.device == "cpu" else "nvidia-smi memory.used",
        "context": context,
        "budget": options.budget,
        "mib": {},
    }
    long_prompt = [token for ids in prompts for token in ids]
    long_prompt = (long_prompt * (context // len(long_prompt) + 1))[: context - 256]
    for name, words in configurations.items():
        before = 0 if options.device == "cpu" else gpu_mib(index)
        engine = Engine(
            name,
            words,
            target=options.target,
            draft=options.draft,
            logs=logs_folder(options),
            device=options.device,
            environment={"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"},
        )
        row = results["mib"][name] = {"before": before}

        def used(engine: Engine = engine, before: int = before) -> int:
            return (resident_mib(engine.process.pid) if options.device == "cpu" else gpu_mib(index)) - before

        try:
            engine.wait(prompts[0])
            row["up"] = used()
            save(options.out, results)
            engine.generate(long_prompt, max_new_tokens=64)
            row["long_request"] = used()
            save(options.out, results)
            engine.generate_all([prompts[i % len(prompts)] for i in range(32)], 32, max_new_tokens=32)
            row["many_requests"] = used()
        except (OSError, EngineFailed) as error:
            row["error"] = f"{type(error).__name__}: {error}"
        finally:
            engine.stop()
        log = engine.log.read_text(errors="replace")
        results.setdefault("account", {})[name] = OWN_ACCOUNT.findall(log)
        save(options.out, results)
        print(name, row, flush=True)
        deadline = time.monotonic() + 20
        while options.device != "cpu" and gpu_mib(index) > before + 100 and time.monotonic() < deadline:
            time.sleep(0.5)
    rows = results["mib"]
    results["ddtree_beyond_dflash_mib"] = beyond(rows["dflash"], rows["ddtree"])
    save(options.out, results)
    print("beyond DFLASH:", results["ddtree_beyond_dflash_mib"], "MiB", flush=True)
    if any("error" in row for row in rows.values()):
        raise SystemExit("failed: " + "; ".join(str(row["error"])[-1500:] for row in rows.values() if "error" in row))


if __name__ == "__main__":
    main()
