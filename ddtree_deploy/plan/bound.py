"""Which packages move together, and why. Names are normalized (PEP 503).

Extensions that link to torch's C++ libraries fail at import ("undefined symbol") beside another torch; CUDA's own
libraries must be of the major that torch was built for.
"""

from __future__ import annotations

import re

from ddtree_deploy.facts.model import Package
from ddtree_deploy.release.bare import NVIDIA

TORCH = "torch"


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Linked to libtorch or libc10, or released by torch's project for one exact torch.
_TORCH_BOUND = _names(
    """
    torch triton pytorch-triton torchvision torchaudio torchcodec torchtext torchao torch-memory-saver
    torch-c-dlpack-ext sgl-kernel sglang-kernel flashinfer flashinfer-python flashinfer-cubin flashinfer-jit-cache
    flash-attn flash-attn-3 flash-mla xformers vllm vllm-flash-attn apex causal-conv1d mamba-ssm deep-gemm deep-ep
    transformer-engine-torch fbgemm-gpu fbgemm-gpu-genai grouped-gemm natten detectron2 exllamav2
    torch-scatter torch-sparse torch-cluster torch-spline-conv pyg-lib
    """
)

# NVIDIA's wheels of the CUDA toolkit's libraries carry the major in their name up to CUDA 12 (nvidia-cublas-cu12);
# since CUDA 13 these do not.
_TOOLKIT_LIBRARIES = _names(
    """
    nvidia-cublas nvidia-cuda-cccl nvidia-cuda-crt nvidia-cuda-cupti nvidia-cuda-nvcc nvidia-cuda-nvrtc
    nvidia-cuda-runtime nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-npp
    nvidia-nvfatbin nvidia-nvjitlink nvidia-nvjpeg nvidia-nvtx nvidia-nvvm
    """
)

# Distributions that own the same import name: only one of each set may be installed.
ALIASES = (
    frozenset({"sgl-kernel", "sglang-kernel"}),
    frozenset({"flashinfer", "flashinfer-python"}),
    frozenset({"triton", "pytorch-triton", "triton-nightly"}),
    frozenset({"decord", "decord2"}),
    frozenset(
        {"opencv-python", "opencv-python-headless", "opencv-contrib-python", "opencv-contrib-python-headless"},
    ),
)

_CUDA_SUFFIX = re.compile(r"-cu(\d{2})\d?$")
_CUDA_TAG = re.compile(r"cu(\d{2})\d?$")


def torch_bound(name: str) -> bool:
    """True for packages that break beside another torch than the one they were built for."""
    return name in _TORCH_BOUND


def links_torch(package: Package) -> bool:
    """True for packages whose shared objects want torch's C++ libraries, whatever their name."""
    return TORCH in package.links


def linked_majors(package: Package) -> set[int]:
    """The CUDA majors whose libraries the package's shared objects want from outside."""
    return {int(link[4:]) for link in package.links if link.startswith("cuda")}


def cuda_major(tag: str | None) -> int | None:
    """The CUDA major of an ABI tag: ``cu128`` -> 12, ``cu13`` -> 13; None for ``cpu`` or no tag."""
    match = _CUDA_TAG.fullmatch(tag or "")
    return int(match.group(1)) if match else None


def cuda_library(name: str) -> bool:
    """True for NVIDIA's wheels of CUDA libraries (cublas, cudnn, nccl ...)."""
    return (
        name in _TOOLKIT_LIBRARIES
        or name == NVIDIA
        or (name.startswith("nvidia-") and _CUDA_SUFFIX.search(name) is not None)
    )


def library_major(name: str, tag: str | None) -> int | None:
    """The CUDA major that a package is for, by its name or its ABI tag; None when neither tells."""
    match = _CUDA_SUFFIX.search(name)
    if match:
        return int(match.group(1))
    return cuda_major(tag) or (13 if name in _TOOLKIT_LIBRARIES else None)


def stem(name: str) -> str:
    """A CUDA library's name without its CUDA suffix: ``nvidia-nccl-cu12`` -> ``nvidia-nccl``."""
    return _CUDA_SUFFIX.sub("", name)


def aliases(name: str) -> frozenset[str]:
    """Other distributions that own the same import name as ``name``."""
    return frozenset().union(*(group for group in ALIASES if name in group)) - {name}
