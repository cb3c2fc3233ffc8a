"""All measurements of docs/benchmarks.md, stage by stage.

    RELEASE/bin/python benchmarks/run_all.py --list
    RELEASE/bin/python benchmarks/run_all.py --pair pairs/nano --out results            # everything that one GPU can do
    RELEASE/bin/python benchmarks/run_all.py --pair pairs/nano --out results --minutes 9 tokens sweep
    RELEASE/bin/python benchmarks/run_all.py --pair pairs/nano --out results --rehearse # on a CPU, small

Each stage is a program of this folder with a time limit. One that fails or runs out of time is noted, what it had
measured stays, and the next one runs. `OUT/results.json` holds all stages and is brought up to date every few seconds;
`OUT/logs.tar.gz` holds the logs. Runs one after the other add to the same OUT. Which GPUs: CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
import uuid
from pathlib import Path
from typing import Any, Callable, NamedTuple

from bench_server import PROJECT, save

FOLDER = Path(__file__).resolve().parent
DDTREE = "--attention-backend triton --speculative-algorithm DDTREE --speculative-ddtree-budget"
DFLASH = "--speculative-algorithm DFLASH --attention-backend"
# Marks the processes of a stage, whose servers have process groups of their own.
MARK = "DDTREE_BENCH_STAGE"


class Stage(NamedTuple):
    """A program with its arguments on a GPU and in a rehearsal.

    Args:
        what: it measures.
        minutes: it takes on one H200, starts included; an estimate.
        program: in this folder.
        gpu, cpu: its arguments, beside models and output.
        needs: pair (the small one), big (the blown-up one).
    """

    what: str
    minutes: float
    program: str
    gpu: list[str]
    cpu: list[str]
    needs: str = "big"
    gpus: int = 1


def servers(**configurations: str) -> list[str]:
    """`dflash_fa3="ARGUMENTS"` as the option that names a server."""
    options = [["--server", f"{name.replace('_', ' ')}={words}"] for name, words in configurations.items()]
    return [word for option in options for word in option]


STAGES: dict[str, Stage] = {
    "pair": Stage(
        "blows the pair up to a 7B target and a 1B draft",
        0.5,
        "inflate_pair.py",
        [],
        [
            "--hidden", "512", "--intermediate", "1024", "--heads", "8", "--kv-heads", "4", "--layers", "7",
            "--draft-layers", "3",
        ],
        needs="pair",
    ),
    "tree_ops": Stage(
        "top-k, tree, mask, walk and commit as one number",
        0.8,
        "tree_ops.py",
        ["--batch", "1,16", "--budget", "15,63"],
        ["--batch", "1,4", "--budget", "15,63"],
    ),
    "tokens": Stage(
        "tokens/s of plain decoding, DFLASH (fa3, flashinfer) and DDTREE auto, 3 turns; profiles of a step",
        8.5,
        "engine_bench.py",
        [
            *servers(
                ddtree_auto=f"{DDTREE} auto",
                dflash_fa3=f"{DFLASH} fa3",
                dflash_flashinfer=f"{DFLASH} flashinfer",
                plain="--attention-backend triton",
            ),
            "--cells", "0:1,4x3,16,32 0.8:1,16", "--repeats", "3", "--profile", "1,16",
        ],
        [
            *servers(ddtree_auto=f"{DDTREE} auto", dflash_fa3=f"{DFLASH} fa3", plain="--attention-backend triton"),
            "--cells", "0:1,2x2 0.8:1", "--repeats", "2", "--profile", "1,2", "--profile-tokens", "200",
            "--requests", "3", "--new-tokens", "24", "--at-once", "1",
        ],
    ),
    "sweep": Stage(
        "tokens/s by fixed budget",
        3.5,
        "engine_bench.py",
        [
            *servers(**{f"ddtree_{budget}": f"{DDTREE} {budget}" for budget in (7, 15, 31, 63, 127)}),
            "--cells", "0:1,4,16,32", "--repeats", "2", "--at-once", "5",
        ],
        [
            *servers(**{f"ddtree_{budget}": f"{DDTREE} {budget}" for budget in (7, 15)}),
            "--cells", "0:1,4", "--at-once", "1", "--requests", "4", "--new-tokens", "24",
        ],
    ),
    "acceptance": Stage(
        "tokens per verify step at each budget beside the authors' rows, float32 and bfloat16",
        1.8,
        "acceptance.py",
        [],
        ["--budgets", "15", "--count", "4", "--at-once", "1"],
        needs="pair",
    ),
    "memory": Stage(
        "GPU memory beyond DFLASH's at budget 63 with a context of 131072",
        4.0,
        "memory.py",
        [],
        ["--context", "9000"],
    ),
    "verify": Stage(
        "how long `verify --gpu` takes, and its GPU memory",
        1.6,
        "verify_gpu.py",
        [],
        ["--size", "small"],
        needs="pair",
    ),
    "tensor_parallel": Stage(
        "answers and tokens/s of TP 2 beside TP 1",
        5.0,
        "tensor_parallel.py",
        [],
        [
            "--tp", "1", "--count", "4", "--compare-at", "2", "--concurrency", "1", "--budgets", "15", "--at-once", "1",
            "--requests", "3", "--new-tokens", "24",
        ],
        gpus=2,
    ),
}  # fmt: skip


def limit_seconds(stage: Stage) -> float:
    """A stage may take twice its estimate, and at most 9.5 minutes on a GPU."""
    return min(2 * stage.minutes, 9.5) * 60


def command_of(name: str, options: argparse.Namespace) -> list[str]:
    stage = STAGES[name]
    command = [sys.executable, str(FOLDER / stage.program)]
    if name == "pair":
        return [*command, str(options.pair), str(options.big), *(stage.cpu if options.rehearse else stage.gpu)]
    models = options.pair if stage.needs == "pair" else options.big
    command += ["--target", str(models / "target"), "--draft", str(models / "draft")]
    command += ["--prompts", str(options.prompts), "--out", str(options.work / f"{name}.json")]
    command += ["--logs", str(options.work / f"{name}.logs")]
    if name == "acceptance":
        command += ["--authors", options.pair.name]
    if options.rehearse:
        return [*command, "--device", "cpu", *stage.cpu]
    return [*command, *stage.gpu]


def end_marked(mark: str) -> None:
    """Kill what a stage has left behind: every process whose environment carries the mark."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                os.kill(int(folder.name), signal.SIGKILL)


def run_stage(command: list[str], limit: float, log: Path, keep: Callable[[], None]) -> dict[str, Any]:
    """Run a program until it ends or its time is over, calling `keep` every few seconds.

    Returns:
        status (ok, failed, timeout), seconds, exit code, and the end of what it printed.
    """
    mark = uuid.uuid4().hex
    begin = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, MARK: mark, "PYTHONUNBUFFERED": "1"}
        )
    status = None
    try:
        while process.poll() is None:
            keep()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
            if process.poll() is None and time.monotonic() - begin > limit:
                status = "timeout"
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=10)
                break
    finally:
        end_marked(mark)
        process.wait()
    return {
        "status": status or ("failed" if process.returncode else "ok"),
        "seconds": round(time.monotonic() - begin, 1),
        "exit_code": process.returncode,
        "command": shlex.join(command),
        "output": log.read_text(errors="replace")[-4000:],
    }


class Results:
    """`results.json`: what every stage has measured so far, and how its run ended."""

    def __init__(self, out: Path, work: Path):
        self.out, self.work = out, work
        file = out / "results.json"
        self.data: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"run": {}}

    def keep(self, name: str, run: dict[str, Any] | None = None) -> None:
        measured = self.work / f"{name}.json"
        if measured.exists():
            self.data[name] = json.loads(measured.read_text())
        self.data["run"][name] = run or {"status": "running"}
        save(self.out / "results.json", self.data)

    def pack_logs(self) -> None:
        fresh = self.out / "logs.tar.gz.new"
        with tarfile.open(fresh, "w:gz") as archive:
            for path in sorted(self.work.rglob("*.log")):
                archive.add(path, path.relative_to(self.work))
        fresh.replace(self.out / "logs.tar.gz")


def show_stages() -> None:
    total = 0.0
    for name, stage in STAGES.items():
        total += stage.minutes
        gpus = "" if stage.gpus == 1 else f" ({stage.gpus} GPUs)"
        print(f"{name:16} {stage.minutes:4.1f} min, at most {limit_seconds(stage) / 60:4.1f}   {stage.what}{gpus}")
    print(f"{'together':16} {total:4.1f} min on an H200, estimated")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", metavar="STAGE", help="default: all that one GPU can do")
    parser.add_argument("--list", action="store_true", help="say what the stages measure and how long they take")
    parser.add_argument("--pair", type=Path, default=PROJECT / "pairs" / "nano", help="folder with target/ and draft/")
    parser.add_argument("--big", type=Path, help="the blown-up pair, made by the stage `pair`; default: OUT/work/big")
    parser.add_argument("--prompts", type=Path, default=FOLDER / "data" / "prompts.json")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--work", type=Path, help="folder of logs and of each stage's file; default: OUT/work")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="for all stages together")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU: the same programs with few requests")
    options = parser.parse_args()
    if options.list:
        show_stages()
        return
    unknown = [name for name in options.stages if name not in STAGES]
    if unknown:
        parser.error(f"no such stage: {', '.join(unknown)}; there are {', '.join(STAGES)}")
    options.work = options.work or options.out / "work"
    options.big = options.big or options.work / "big"
    options.work.mkdir(parents=True, exist_ok=True)
    names = options.stages or [name for name, stage in STAGES.items() if stage.gpus == 1]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = time.monotonic() + 60 * options.minutes
    results = Results(options.out, options.work)
    failed = []
    for name in names:
        left = end - time.monotonic()
        if left < 60 * STAGES[name].minutes / 2:
            run: dict[str, Any] = {"status": "skipped", "output": f"{left:.0f} s left"}
        else:
            print(f"{name}: {STAGES[name].what}", flush=True)
            limit = min(left, 1200 if options.rehearse else limit_seconds(STAGES[name]))
            log = options.work / f"{name}.log"
            run = run_stage(command_of(name, options), limit, log, lambda name=name: results.keep(name))
        results.keep(name, run)
        results.pack_logs()
        print(f"{name}: {run['status']}, {run.get('seconds', 0)} s\n{run['output'][-1500:]}", flush=True)
        failed += [name] if run["status"] != "ok" else []
    if failed:
        raise SystemExit(f"not done: {', '.join(failed)}")


if __name__ == "__main__":
    main()
