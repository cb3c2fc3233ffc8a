"""What is made of nvidia-smi's answers, played by a test double, and of its absence."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.nvidia_smi_double import install

from ddtree_deploy.facts import gpu
from ddtree_deploy.facts.gpu import GpuFacts, probe_gpus
from ddtree_deploy.facts.model import Gpu, GpuProcess


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def probe(scenario: str, timeout: float = 30.0) -> GpuFacts:
        install(tmp_path / "bin", scenario)
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
        return probe_gpus(timeout)

    return probe


def test_eight_cards(play) -> None:
    facts = play("eight")
    assert (facts.driver, facts.driver_cuda, facts.problem) == ("580.95.05", "13.0", None)
    assert [card.index for card in facts.gpus] == list(range(8))
    assert facts.gpus[3] == Gpu(
        index=3,
        uuid="GPU-00000003-9f4c-1372-9e39-58a1962e166c",
        name="NVIDIA RTX PRO 6000 Blackwell Server Edition",
        compute_capability="12.0",
        memory_mib=97887,
        memory_used_mib=4,
        pci_bus_id="00000000:40:00.0",
        mig=None,
        processes=[
            GpuProcess(4121, "/opt/train/bin/python3", 61034),
            GpuProcess(4122, "tritonserver, with a comma", 512),
        ],
    )
    assert [card.processes for card in facts.gpus if card.index != 3] == [[]] * 7


def test_mixed_cards(play) -> None:
    facts = play("mixed")
    assert [card.compute_capability for card in facts.gpus] == ["8.9", "9.0", "12.0"]
    assert [card.mig for card in facts.gpus] == [None, False, None]
    assert facts.driver_cuda == "12.8"


def test_mig(play) -> None:
    facts = play("mig")
    assert [(card.mig, card.memory_used_mib) for card in facts.gpus] == [(True, None), (None, 4)]
    assert facts.gpus[1].processes == [GpuProcess(77, "python3", None)]
    assert facts.problem is None


def test_a_driver_that_does_not_know_all_fields(play) -> None:
    facts = play("old")
    assert (facts.driver, facts.driver_cuda, facts.problem) == ("440.33.01", "10.2", None)
    assert [(card.name, card.compute_capability) for card in facts.gpus] == [("Tesla V100-SXM2-32GB", None)]


def test_a_lost_card_beside_good_ones(play) -> None:
    facts = play("lost")
    assert [card.index for card in facts.gpus] == [0, 2]
    assert "Unable to determine the device handle" in facts.problem
    assert "GPU 2: [GPU requires reset]" in facts.problem
    assert "H100" not in facts.problem


def test_a_container_without_the_drivers_libraries(play) -> None:
    facts = play("container")
    assert (len(facts.gpus), facts.driver, facts.driver_cuda) == (1, "580.95.05", None)
    assert "libcuda.so" in facts.problem


@pytest.mark.parametrize(
    ("scenario", "problem"),
    [
        ("none", "No devices were found"),
        ("driver-failure", "couldn't communicate with the NVIDIA driver"),
        ("mismatch", "Driver/library version mismatch"),
    ],
)
def test_no_cards(play, scenario: str, problem: str) -> None:
    facts = play(scenario)
    assert facts.gpus == []
    assert problem in facts.problem


def test_a_tool_that_hangs(play) -> None:
    facts = play("hang", timeout=0.5)
    assert facts.gpus == []
    assert "did not answer within 0.5 s" in facts.problem


def test_a_tool_that_cannot_be_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_bytes(b"\x7fELF of another machine")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    facts = probe_gpus(5.0)
    assert facts.gpus == []
    assert "cannot be run" in facts.problem


@pytest.fixture
def no_tool(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu, "_ELSEWHERE", [str(tmp_path)])


def test_a_host_without_cards_has_no_problem(no_tool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_pci_cards", list)
    monkeypatch.setattr(gpu, "_loaded_driver", lambda: None)
    assert probe_gpus() == GpuFacts()


def test_a_card_without_a_driver(no_tool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_pci_cards", lambda: ["0000:01:00.0"])
    monkeypatch.setattr(gpu, "_loaded_driver", lambda: None)
    assert "no driver is installed" in str(probe_gpus().problem)


def test_a_driver_without_the_tool(no_tool: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_loaded_driver", lambda: "580.95.05")
    facts = probe_gpus()
    assert facts.driver == "580.95.05"
    assert "nvidia-smi is not on PATH" in str(facts.problem)
