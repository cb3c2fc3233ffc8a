"""How long the checks of `ddtree-deploy verify --gpu` take on this GPU, and its memory meanwhile.

    RELEASE/bin/python benchmarks/verify_gpu.py --target T --draft D --out results/verify.json

Runs what the command runs on the host, with this Python as the release's. The results are brought up to date while the
checks go on, so that a kill keeps what there is: when each began and ended, what it said, and the most memory that the
GPU had in use until then (nvidia-smi, beyond what was in use before).
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench_server import (
    CPU_ARGUMENTS,
    PROJECT,
    arguments,
    logs_folder,
    machine,
    save,
    server_environment,
    stop_on_sigterm,
)
from memory import gpu_mib, visible_gpu

sys.path.insert(0, str(PROJECT))

from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.verify import on_gpu


class Watch:
    """Notes what the checks say, and the GPU's memory, in the file of results."""

    def __init__(self, out: Path, device: str) -> None:
        self.out = out
        self.gpu = None if device == "cpu" else visible_gpu()
        self.before = self._mib()
        self.began = time.monotonic()
        self.peak = 0
        self.results: dict[str, Any] = {"machine": machine(device), "timeline": [], "mib_before": self.before}
        self._said = ""

    def _mib(self) -> int:
        return 0 if self.gpu is None else gpu_mib(self.gpu)

    def note(self, what: str, **more: Any) -> None:
        row = {"s": round(time.monotonic() - self.began, 1), "peak_mib": self.peak, "what": what, **more}
        self.results["timeline"].append(row)
        save(self.out, self.results)
        print(row["s"], f"{self.peak} MiB", what, flush=True)

    def progress(self, said: Progress) -> None:
        """Each check once: the message of one that runs is its name and the seconds that it has run."""
        check = said.message.split(",")[0]
        if check != self._said:
            self._said = check
            self.note(f"{check} runs")

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        over = threading.Event()

        def sample() -> None:
            while not over.wait(0.5):
                self.peak = max(self.peak, self._mib() - self.before)

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--backend", default="triton", help="attention backend")
    parser.add_argument("--size", choices=("full", "small"), default="full", help="how much is asked")
    parser.add_argument("--arguments", default="", help="more arguments of the engines, in one word")
    options = parser.parse_args()
    stop_on_sigterm()
    on_cpu = options.device == "cpu"
    if on_cpu:
        words = ["--dtype", "float32", *(word for word in CPU_ARGUMENTS if word != "--disable-radix-cache")]
    else:
        words = [*on_gpu.LIMITED, "--attention-backend", options.backend, "--sampling-backend", "pytorch"]
    words += options.arguments.split()
    pair = {
        f"{name}/{path.name}": str(path.resolve())
        for name, folder in (("target", options.target), ("draft", options.draft))
        for path in folder.iterdir()
    }
    watch = Watch(options.out, options.device)
    with watch.sampling(), on_gpu.program_folder(pair) as folder:
        try:
            outcomes = on_gpu.run_in(
                folder,
                Path(sys.executable),
                Path(sys.prefix),
                server_environment(options.device),
                words,
                on_cpu,
                watch.progress,
                options.size,
            )
        finally:
            logs = logs_folder(options)
            logs.mkdir(parents=True, exist_ok=True)
            for log in folder.glob("*.log"):
                shutil.copy(log, logs)
    watch.results["checks"] = [
        {name: getattr(one, name) for name in ("check", "status", "seconds", "cause", "summary", "detail", "data")}
        for one in outcomes
    ]
    for one in outcomes:
        print(f"{one.check}: {one.status} after {one.seconds:.1f} s: {one.summary}", flush=True)
    watch.note("done")
    wrong = [one.check for one in outcomes if one.status not in ("ok", "warning")]
    if wrong:
        raise SystemExit(f"failed: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
