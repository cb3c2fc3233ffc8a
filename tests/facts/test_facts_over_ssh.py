"""The probe on a host with eight (played) GPUs, over SSH."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from doubles.nvidia_smi_double import install as install_double
from hosts.sshd import Sshd, find_sshd

from ddtree_deploy.codec import from_dict
from ddtree_deploy.facts.model import HostFacts
from ddtree_deploy.transport import ConnectOptions, connect

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.hosts,
    pytest.mark.skipif(find_sshd() is None, reason="openssh-server is not installed"),
]


def test_facts_over_ssh(venv: Path, install, tmp_path: Path) -> None:
    install("torch", "2.9.1+cu128")
    install("sglang", "0.5.11", files={"sglang/__init__.py": b""})
    install_double(tmp_path / "bin", "eight")
    environment = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    params = {"root": "~/ddtree", "base": str(venv), "engine": "sglang", "patch_files": ["sglang/__init__.py"]}
    with (
        Sshd(tmp_path / "host", environment=environment) as host,
        connect(host.settings(), ConnectOptions(known_hosts=host.known_hosts)) as transport,
        transport.agent() as agent,
    ):
        facts = from_dict(HostFacts, agent.call("facts", params))
    assert len(facts.gpus) == 8
    assert facts.driver_cuda == "13.0"
    assert facts.root == str(host.home / "ddtree")
    assert facts.base is not None
    assert {package.name: package.abi_tag for package in facts.base.packages} == {"torch": "cu128", "sglang": None}
    assert facts.engine is not None and facts.engine.sha256["sglang/__init__.py"]
    assert not (host.home / "ddtree").exists()
