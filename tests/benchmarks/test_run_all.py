"""Stages: time limits, what is left behind, and results that are kept."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import bench_server
import pytest
import run_all
from processes import alive, wait_until

LEAVES_A_SERVER = """
import subprocess, sys, time
server = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(server.pid, flush=True)
time.sleep({seconds})
sys.exit({code})
"""


@pytest.mark.parametrize(("seconds", "code", "status"), [(0, 0, "ok"), (0, 3, "failed"), (600, 0, "timeout")])
def test_a_stage_ends_in_time_and_leaves_nothing(tmp_path: Path, seconds, code, status):
    kept, log = [], tmp_path / "x.log"

    def keep():
        kept.append(1)
        wait_until(log.read_text, "the server's number", 60)  # before that no time is over

    program = LEAVES_A_SERVER.format(seconds=seconds, code=code)
    begin = time.monotonic()
    run = run_all.run_stage([sys.executable, "-c", program], limit=1 if seconds else 600, log=log, keep=keep)
    assert run["status"] == status and time.monotonic() - begin < 100
    server = int(run["output"].split()[0])
    wait_until(lambda: not alive(server), "the server to end", 60)
    assert kept or seconds == 0


def test_results_of_several_runs_are_kept_together(tmp_path: Path):
    out, work = tmp_path / "out", tmp_path / "work"
    bench_server.save(work / "tokens.json", {"servers": {"a": 1}})
    (work / "tokens.logs").mkdir()
    (work / "tokens.logs" / "a.log").write_text("hello")
    first = run_all.Results(out, work)
    first.keep("tokens")
    assert json.loads((out / "results.json").read_text())["run"]["tokens"] == {"status": "running"}
    first.keep("tokens", {"status": "ok"})
    first.pack_logs()
    bench_server.save(work / "sweep.json", {"servers": {}})
    run_all.Results(out, work).keep("sweep", {"status": "failed"})
    data = json.loads((out / "results.json").read_text())
    assert data["run"] == {"tokens": {"status": "ok"}, "sweep": {"status": "failed"}}
    assert data["tokens"] == {"servers": {"a": 1}}
    assert sorted(path.name for path in out.iterdir()) == ["logs.tar.gz", "results.json"]
    with tarfile.open(out / "logs.tar.gz") as archive:
        assert archive.getnames() == ["tokens.logs/a.log"]


def options_for(tmp_path: Path, rehearse: bool) -> argparse.Namespace:
    return argparse.Namespace(
        pair=tmp_path / "tiny",
        big=tmp_path / "big",
        work=tmp_path / "work",
        prompts=tmp_path / "p.json",
        rehearse=rehearse,
    )


@pytest.mark.parametrize("rehearse", [False, True])
@pytest.mark.parametrize("name", sorted(run_all.STAGES))
def test_every_stage_has_a_program_that_takes_its_arguments(tmp_path: Path, name, rehearse):
    command = run_all.command_of(name, options_for(tmp_path, rehearse))
    source = Path(command[1]).read_text()
    shared = Path(bench_server.__file__).read_text()
    for word in command[2:]:
        # What a server is started with is one word with blanks.
        if word.startswith("--") and " " not in word:
            assert f'"{word}"' in source + shared, f"{command[1]} has no {word}"
    assert ("--device" in command) == (rehearse and name != "pair")


def test_a_stage_without_time_is_skipped(tmp_path: Path):
    program = Path(run_all.__file__)
    done = subprocess.run(
        [sys.executable, program, "--out", tmp_path / "out", "--minutes", "0.1", "tokens"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 1 and "not done: tokens" in done.stderr
    assert json.loads((tmp_path / "out" / "results.json").read_text())["run"]["tokens"]["status"] == "skipped"


def test_the_list_names_all_stages():
    done = subprocess.run([sys.executable, run_all.__file__, "--list"], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in run_all.STAGES)
    assert all(stage.minutes < 9 for stage in run_all.STAGES.values())


def test_an_unknown_stage_is_refused(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, run_all.__file__, "--out", tmp_path, "tokenz"], capture_output=True, text=True
    )
    assert done.returncode == 2 and "no such stage: tokenz" in done.stderr
