"""Installed sizes of a profile's packages, to say before the work whether the disk will do. A lock has no sizes.

Measured on the released wheels of SGLang 0.5.11's set (torch 2.11.0, CUDA 13): the files of each RECORD, in MiB.
"""

from __future__ import annotations

from collections.abc import Iterable

from ddtree_deploy.plan.bound import stem

MIB = 1024 * 1024

# The other 130 packages of that set together have 680 MiB.
_DEFAULT_MIB = 5

_MEASURED_MIB = {
    "flashinfer-cubin": 1172,
    "flashinfer-python": 51,
    "llguidance": 53,
    "numpy": 56,
    "nvidia-cublas": 569,
    "nvidia-cuda-cupti": 43,
    "nvidia-cuda-nvrtc": 217,
    "nvidia-cudnn": 471,
    "nvidia-cufft": 274,
    "nvidia-curand": 129,
    "nvidia-cusolver": 234,
    "nvidia-cusparse": 155,
    "nvidia-cusparselt": 223,
    "nvidia-cutlass-dsl-libs-base": 177,
    "nvidia-nccl": 208,
    "nvidia-nvjitlink": 94,
    "nvidia-nvshmem": 77,
    "pandas": 38,
    "pyarrow": 147,
    "scipy": 109,
    "sgl-kernel": 1140,
    "sglang": 28,
    "sglang-kernel": 1140,
    "torch": 1084,
    "transformers": 40,
    "triton": 638,
    "xgrammar": 89,
}

# Nearly all of these is in a few files that are too large for a release to get copies of (see ``release.own``): told by
# what is in them, a tenth being left for the rest.
_LARGE_FILES = ("nvidia-", "torch", "triton", "sgl-kernel", "sglang-kernel")
_REST_OF_LARGE = 10


def installed_bytes(names: Iterable[str]) -> int:
    """Estimated bytes on disk of the packages ``names`` once installed."""
    return sum(_MEASURED_MIB.get(stem(name), _DEFAULT_MIB) for name in names) * MIB


def small_bytes(names: Iterable[str]) -> int:
    """Of these, estimated, the bytes in files that a release gets its own copies of where a command runs in it."""
    total = 0
    for name in names:
        size = installed_bytes([name])
        total += size // _REST_OF_LARGE if stem(name) in _MEASURED_MIB and name.startswith(_LARGE_FILES) else size
    return total
