"""``verify --gpu`` around its checks: which GPU, what is sent and laid out, refusals, and what the program prints.

The cards are a test double's, and so is the release: its engine cannot start. ``test_gpu_checks`` and the end-to-end
tests have the checks themselves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli.cli_support import run, write_inventory
from doubles.nvidia_smi_double import install
from processes import alive, wait_until
from release_double import fill, make_venv

from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.facts.gpu import GpuFacts
from ddtree_deploy.facts.model import Gpu
from ddtree_deploy.resources import data_dir
from ddtree_deploy.verify import checks, on_gpu
from ddtree_deploy.verify.on_gpu import FILES, NEEDED_MIB, TITLES, ChosenGpu, choose_gpu, op_gpu

PROJECT = Path(__file__).resolve().parents[2]
GPU_RECORD = {"abi_tag": "cu130", "engine_arguments": []}


def card(index: int, used: int | None, total: int | None = 40000) -> Gpu:
    return Gpu(index, f"GPU-{index}", "Double", memory_mib=total, memory_used_mib=used)


@pytest.mark.parametrize(
    ("cards", "wanted", "chosen"),
    [
        ([card(0, 35000), card(1, 10), card(2, 20)], None, 1),
        ([card(0, 35000 - NEEDED_MIB), card(1, 10), card(3, 20)], [0, 3], 3),
        ([card(0, None), card(1, 10)], None, 1),
        ([card(0, None, None)], None, 0),  # a driver that does not tell: it is tried
    ],
)
def test_the_gpu_with_the_most_free_memory(cards: list[Gpu], wanted: list[int] | None, chosen: int) -> None:
    assert choose_gpu(GpuFacts(cards), wanted, False).index == chosen


@pytest.mark.parametrize(
    ("facts", "wanted", "on_cpu", "id"),
    [
        (GpuFacts([card(0, 0)]), None, True, "no-gpu-to-check"),
        (GpuFacts(), None, None, "no-gpu-to-check"),
        (GpuFacts(problem="the driver is not loaded"), None, False, "no-gpus"),
        (GpuFacts([card(0, 0)]), [1], False, "gpu-missing"),
        (GpuFacts([card(0, 40001 - NEEDED_MIB)]), None, False, "gpu-busy"),
    ],
)
def test_no_gpu_for_it(facts: GpuFacts, wanted: list[int] | None, on_cpu: bool | None, id: str) -> None:
    with pytest.raises(InputError) as caught:
        choose_gpu(facts, wanted, on_cpu)
    assert caught.value.id == id
    assert caught.value.hint


def test_the_program_has_all_of_its_files() -> None:
    package = PROJECT / "ddtree_deploy"
    ours = {path.relative_to(package).as_posix() for path in (package / "verify" / "gpu").iterdir() if path.is_file()}
    assert ours <= set(FILES)
    assert all((package / file).is_file() for file in FILES)


def test_prompts_are_those_of_the_engine_tests() -> None:
    """docs/acceptance.md gives tokens per verify step for them."""
    ours = json.loads((PROJECT / "ddtree_deploy/verify/gpu/prompts.json").read_text())
    assert ours == json.loads((PROJECT / "tests/engine/prompts.json").read_text())


def test_the_checks_are_the_programs(tmp_path: Path) -> None:
    from ddtree_deploy.verify.gpu.checks import Session

    assert list(Session("cuda", "/pair", str(tmp_path), [], "bfloat16", "full").checks()) == list(TITLES)


def pair_files() -> dict[str, str]:
    folder = data_dir("pairs") / "nano"
    return {path.relative_to(folder).as_posix(): str(path) for path in folder.rglob("*") if path.is_file()}


def test_every_check_has_a_result_where_the_release_is_no_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program gets as far as this release lets it, says why, and leaves nothing behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seen = tmp_path / "seen"
    told = {
        "sglang/launch_server.py": f"""
            import os, pathlib, sys
            model = pathlib.Path(sys.argv[sys.argv.index("--model-path") + 1])
            said = [(model / "config.json").is_file(), *sys.argv, os.environ["CUDA_VISIBLE_DEVICES"]]
            pathlib.Path({str(seen)!r}).write_text(" ".join(map(str, said)))
            raise SystemExit("no engine here")
            """
    }
    release = fill(make_venv(tmp_path / "root" / "releases" / "r1"), told, GPU_RECORD)
    arguments = ["--attention-backend", "flashinfer", "--disable-cuda-graph", "--context-length", "32768"]
    outcomes = on_gpu.run_gpu_checks(release, pair_files(), 3, {}, arguments, silent)
    found = {outcome.check: outcome for outcome in outcomes}
    assert list(found) == list(TITLES)
    assert found["gpu-kernels"].cause == "check-error"  # the stand-in of torch has no generators
    assert found["gpu-engine"].cause == "engine-failed"
    assert "no engine here" in (found["gpu-engine"].detail or "")
    assert {found[name].status for name in list(TITLES)[2:]} == {"skipped"}
    said = seen.read_text()
    assert said.startswith("True ") and said.endswith(" 3")
    assert "--attention-backend flashinfer" in said and "--context-length" not in said
    assert "--speculative-ddtree-budget 31" in said  # auto needs graphs
    assert list(tmp_path.glob("ddtree-verify-*")) == []


SERVES = """
    import http.server, os, pathlib, subprocess, sys
    # a child as the scheduler is: it dies with its parent, in no other way
    child = "import ctypes, time; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); print(flush=True); time.sleep(600)"
    worker = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE)
    worker.stdout.readline()  # before that nothing would end it
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")
    http.server.ThreadingHTTPServer.request_queue_size = 64  # a refused connection is tried again a second later
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler)
    pathlib.Path(PIDS).open("a").write(f"{os.getpid()} {worker.pid}\\n")
    server.serve_forever()
    """


def serving_release(folder: Path, **changes: str) -> tuple[Path, Path]:
    """A release whose engine answers everything with nothing, and the file with its processes' numbers."""
    pids = folder / "pids"
    served = {"sglang/launch_server.py": SERVES.replace("PIDS", repr(str(pids))), **changes}
    return fill(make_venv(folder / "root" / "releases" / "r1"), served, GPU_RECORD), pids


def test_engines_end_with_the_checks(tmp_path: Path) -> None:
    release, pids = serving_release(tmp_path)
    found = {each.check: each for each in on_gpu.run_gpu_checks(release, pair_files(), 0, {}, [], silent)}
    assert found["gpu-engine"].status == "ok"
    assert "31 after" in found["gpu-engine"].summary and "auto after" in found["gpu-engine"].summary
    assert {found[name].status for name in list(TITLES)[2:]} == {"failed"}
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 4 and not any(map(alive, started))


@pytest.mark.parametrize("how", ["hang", "killed"])
def test_engines_end_with_what_started_them(tmp_path: Path, how: str) -> None:
    """A check that hangs is ended with its program; a killed agent takes the program along."""
    # A busy machine may need longer than the shortest limit until both engines are there.
    for limit_s in (1.0, 4.0, 16.0) if how == "hang" else (300.0,):
        release, pids = serving_release(
            tmp_path / f"{limit_s}", **{"sglang/srt/speculative/ddtree_utils.py": "import time; time.sleep(600)"}
        )
        code = (
            "import sys; from pathlib import Path; from ddtree_deploy.verify import on_gpu\n"
            f"on_gpu.TITLES = {{'gpu-kernels': ''}}\n"
            f"on_gpu.run_gpu_checks(Path({str(release)!r}), {{}}, 0, {{}}, [], lambda p: None, limit_s={limit_s})"
        )
        agent = subprocess.Popen([sys.executable, "-c", code])
        try:
            while len(started := numbers(pids)) < 4 and agent.poll() is None:
                time.sleep(0.05)
            if how == "killed":
                assert all(map(alive, started))
                agent.kill()
            assert agent.wait(60) == (0 if how == "hang" else -9)
            wait_until(lambda: not any(map(alive, started)), "the processes to end", 20)
        finally:
            agent.kill()
            agent.wait()
        if len(started) == 4:
            return
    raise AssertionError("the engines never started")


def numbers(pids: Path) -> list[int]:
    return [int(pid) for pid in pids.read_text().split()] if pids.exists() else []


class Host:
    """A root with a release of stand-ins, an inventory with it, and a double of nvidia-smi."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inventory = str(write_inventory(folder, "sglang-0.5.11-cu130"))
        self.root = folder / "root" / "one"
        self.release = make_venv(self.root / "releases" / "r1")
        (self.root / "current").symlink_to("releases/r1")

    def verify(self, *words: str):
        return run("verify", "one", "--gpu", *words, "--inventory", self.inventory)


@pytest.fixture
def host(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("scenario", "record", "id"),
    [
        ("none", GPU_RECORD, "no-gpus"),
        ("eight", {"abi_tag": "cpu"}, "no-gpu-to-check"),
        ("mig", GPU_RECORD, "gpu-split"),
    ],
)
def test_a_host_without_a_gpu_for_it(host: Host, scenario: str, record: dict[str, object], id: str) -> None:
    install(host.folder / "bin", scenario)
    fill(host.release, record=record)
    ran = host.verify()
    assert ran.code == 3, ran.err
    assert f"error: {id}\n" in ran.err
    assert not (host.root / "cache").exists()  # nothing was sent


def test_a_root_without_a_release(tmp_path: Path, host: Host) -> None:
    (host.root / "current").unlink()
    ran = host.verify()
    assert ran.code == 3 and "error: no-current-release\n" in ran.err


def test_static_and_gpu_are_two_runs(host: Host) -> None:
    ran = host.verify("--static")
    assert ran.code == 3 and "error: static-and-gpu\n" in ran.err


def test_failed_smoke_checks_leave_the_gpu_alone(host: Host) -> None:
    install(host.folder / "bin", "eight")
    fill(host.release, {"sglang/srt/managers/scheduler.py": "import pybase64"}, GPU_RECORD)
    ran = host.verify("--json")
    assert ran.code == 1
    (document,) = ran.json["hosts"]
    found = {check["id"]: check for check in document["checks"]}
    assert list(found) == [*checks.TITLES, *TITLES]
    assert {found[name]["status"] for name in TITLES} == {"skipped"}
    assert found["gpu-greedy"]["summary"] == "server failed"


def test_table_json_and_junit_have_the_checks(host: Host) -> None:
    install(host.folder / "bin", "eight")
    fill(host.release, record=GPU_RECORD)
    junit = host.folder / "verify.xml"
    ran = host.verify("--json", "--junit", str(junit))
    assert ran.code == 1
    (document,) = ran.json["hosts"]
    found = {check["id"]: check for check in document["checks"]}
    assert not document["ok"] and list(found) == [*checks.TITLES, *TITLES]
    assert {found[name]["status"] for name in checks.TITLES} == {"ok"}
    assert found["gpu-engine"]["cause"] == "engine-failed" and found["gpu-engine"]["hint"]
    assert "No module named sglang.launch_server" in found["gpu-engine"]["detail"]
    cases = {case.get("name"): case for case in ElementTree.parse(junit).iter("testcase")}
    assert list(cases) == list(found)
    assert cases["gpu-engine"].find("failure") is not None and cases["gpu-pool"].find("skipped") is not None
    sent = {path.name for path in (host.root / "cache" / "blobs").iterdir()}
    assert len(sent) == len(set(pair_files().values()))
    table = host.verify()
    assert "engines start and answer" in table.out and "hint: the end of the engine's log" in table.out
    assert {path.name for path in (host.root / "cache" / "blobs").iterdir()} == sent


def test_the_operation_names_the_gpu(host: Host) -> None:
    install(host.folder / "bin", "eight")
    fill(host.release, record=GPU_RECORD)
    chosen = op_gpu({"root": str(host.root), "release": None, "gpus": [5, 6], "engine_arguments": []}, silent)
    assert ChosenGpu(**chosen) == ChosenGpu(
        5, "GPU-00000005-9f4c-1372-9e39-58a1962e166c", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 97883
    )
