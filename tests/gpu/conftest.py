"""GPU tests run with the python of a release on a host with an NVIDIA GPU.

DDTREE_GPU_PAIR names a folder with target/ and draft/; DDTREE_GPU_PROMPTS a JSON file of
token-id lists. Without a GPU, or without torch, they are left out.
"""

import importlib.util

import pytest

HAS_TORCH = all(importlib.util.find_spec(name) for name in ("torch", "triton", "sglang"))
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not HAS_TORCH:
        return
    import torch

    for item in items:
        if item.path.parent.name == "gpu":
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))
