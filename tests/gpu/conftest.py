"""GPU tests run with the python of a release on a host with an NVIDIA GPU: the long version of ``verify --gpu``.

DDTREE_GPU_PAIR names a folder with target/ and draft/; DDTREE_GPU_PROMPTS a JSON file of token-id lists. Without a GPU,
or without torch, they are left out; DDTREE_GPU_DEVICE=cpu rehearses the service tests on a CPU (see service.py).
"""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # ddtree_deploy.verify.gpu, which verify --gpu runs too

HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "triton", "sglang"))
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]
REHEARSED = {"test_ddtree_service.py"} if os.environ.get("DDTREE_GPU_DEVICE") == "cpu" else set()


def pytest_configure(config: pytest.Config) -> None:
    """For runs without the project's configuration."""
    for marker in ("gpu: needs an NVIDIA GPU", "timeout: seconds, with pytest-timeout"):
        config.addinivalue_line("markers", marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_TORCH:
        return
    import torch

    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available() and item.path.name not in REHEARSED:
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
