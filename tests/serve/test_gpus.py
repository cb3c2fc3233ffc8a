"""Which GPUs; the services' side with nvidia-smi stood in by a script (a test double: there is no GPU here)."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from served_host import Host

from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.facts.gpu import GpuFacts
from ddtree_deploy.facts.model import Gpu
from ddtree_deploy.serve.gpus import current_index, holders, runs_on_cpu, select_gpus

CARDS = [Gpu(0, "GPU-aaa", "RTX 5090"), Gpu(1, "GPU-bbb", "RTX 5090"), Gpu(3, "GPU-ccc", "H200")]
FACTS = GpuFacts(gpus=CARDS)

NVIDIA_SMI_DOUBLE = """#!{python} -IS
# test double of nvidia-smi: prints the cards and processes of the file named below
import json, sys
cards = json.load(open({path!r}))
for question in sys.argv[1:]:
    name, _, fields = question.partition("=")
    if name == "--query-gpu":
        for number, card in enumerate(cards):
            known = {{"index": number, "memory.total": 32000, "memory.used": 1, **card}}
            print(", ".join(str(known.get(field, "[N/A]")) for field in fields.split(",")))
    if name == "--query-compute-apps":
        for card in cards:
            for pid in card.get("pids", []):
                known = {{"gpu_uuid": card["uuid"], "pid": pid, "process_name": "python", "used_memory": 10}}
                print(", ".join(str(known[field]) for field in fields.split(",")))
"""


class Cards:
    """What the double shows; a list of {uuid, name, pids}."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cards.json"
        tool = folder / "nvidia-smi"
        tool.write_text(NVIDIA_SMI_DOUBLE.format(python=sys.executable, path=str(self.path)))
        tool.chmod(0o755)

    def show(self, *uuids: str, pids: list[int] | None = None) -> None:
        self.path.write_text(json.dumps([{"uuid": uuid, "name": "Double", "pids": pids or []} for uuid in uuids]))


@pytest.fixture
def cards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cards:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return Cards(folder)


@pytest.mark.parametrize(
    ("facts", "wanted", "on_cpu", "expected"),
    [
        (FACTS, None, False, [0, 1, 3]),
        (FACTS, [3, 0], False, [3, 0]),
        (FACTS, None, None, [0, 1, 3]),
        (FACTS, None, True, [None]),
        (GpuFacts(), None, None, [None]),
        (GpuFacts(), None, True, [None]),
    ],
)
def test_selection(facts: GpuFacts, wanted: list[int] | None, on_cpu: bool | None, expected: list[int | None]) -> None:
    chosen = select_gpus(facts, wanted, on_cpu)
    assert [gpu and gpu.index for gpu in chosen] == expected


@pytest.mark.parametrize(
    ("facts", "wanted", "on_cpu", "id", "text"),
    [
        (FACTS, [2], False, "gpu-missing", "0 (RTX 5090), 1 (RTX 5090), 3 (H200)"),
        (GpuFacts(), [0], None, "gpu-missing", "none"),
        (GpuFacts(), None, False, "no-gpus", "CPU profile"),
        (GpuFacts(problem="the driver does not answer"), None, False, "no-gpus", "the driver does not answer"),
        (FACTS, [], False, "no-gpus", "leave it out"),
        (FACTS, [0, 0], False, "gpu-twice", "GPU 0"),
        (FACTS, [0], True, "gpus-on-cpu", "CPU"),
        (GpuFacts(gpus=[dataclasses.replace(CARDS[0], mig=True)]), None, False, "gpu-split", "MIG"),
    ],
)
def test_refused_selection(facts: GpuFacts, wanted: list[int] | None, on_cpu: bool | None, id: str, text: str) -> None:
    with pytest.raises(InputError) as caught:
        select_gpus(facts, wanted, on_cpu)
    assert caught.value.id == id
    assert text in f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(
    ("tag", "arguments", "expected"),
    [
        ("cpu", [], True),
        ("cu130", [], False),
        ("cu130", ["--device", "cpu"], True),
        (None, [], None),
    ],
)
def test_what_a_release_runs_on(tmp_path: Path, tag: str | None, arguments: list[str], expected: bool | None) -> None:
    (tmp_path / ".ddtree").mkdir()
    (tmp_path / ".ddtree" / "release.json").write_text(json.dumps({"abi_tag": tag} if tag else {}))
    assert runs_on_cpu(tmp_path, arguments) is expected


def test_a_gpu_is_found_where_it_is_now(cards: Cards) -> None:
    cards.show("GPU-a", "GPU-b", pids=[4, 5])
    assert current_index("GPU-b") == 1
    assert holders("GPU-b") == {4, 5}
    cards.show("GPU-b", "GPU-a")
    assert current_index("GPU-b") == 0
    with pytest.raises(StepError) as caught:
        current_index("GPU-c")
    assert caught.value.id == "gpu-gone"


def test_one_service_a_gpu(host: Host, cards: Cards) -> None:
    record = host.release / ".ddtree" / "release.json"
    record.write_text(json.dumps({"abi_tag": "cu130"}))
    cards.show("GPU-a", "GPU-b")
    say = "sees {CUDA_DEVICE_ORDER} {CUDA_VISIBLE_DEVICES}"
    services = host.launch(environment={"STAND_IN_SAY": say})["services"]
    assert [(service["name"], service["gpu_uuid"]) for service in services] == [("gpu0", "GPU-a"), ("gpu1", "GPU-b")]
    assert len({service["port"] for service in services}) == 2
    assert len({port for name in ("gpu0", "gpu1") for port in _ports(host, name)}) == 4
    assert host.logs("sees PCI_BUS_ID 0", "gpu0")
    assert host.logs("sees PCI_BUS_ID 1", "gpu1")
    with pytest.raises(InputError) as caught:
        host.launch(gpus=[2])
    assert caught.value.id == "gpu-missing"
    # another order after a reboot: the running service of the card is found under its old name
    cards.show("GPU-b", "GPU-a")
    with pytest.raises(InputError) as caught:
        host.launch(environment={"STAND_IN_SAY": say}, gpus=[0])
    assert caught.value.id == "service-running"
    host.stop()
    host.launch(environment={"STAND_IN_SAY": say}, gpus=[0])
    assert host.state("gpu0").state == "ready"


def test_a_process_that_stays_on_the_gpu_is_an_error(host: Host, cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    (host.release / ".ddtree" / "release.json").write_text(json.dumps({"abi_tag": "cu130"}))
    monkeypatch.setattr("ddtree_deploy.serve.stop._DRIVER_GRACE_S", 0.1)
    cards.show("GPU-a")
    (service,) = host.launch(budget="auto")["services"]
    assert (service["state"], service["budget"]) == ("ready", "auto")
    cards.show("GPU-a", pids=[service["pid"]])
    with pytest.raises(StepError) as caught:
        host.stop()
    assert caught.value.id == "gpu-held"
    assert str(service["pid"]) in caught.value.message


def _ports(host: Host, name: str) -> tuple[int, int]:
    spec = host.folder(name).spec()
    assert spec is not None
    return spec.port, spec.nccl_port
