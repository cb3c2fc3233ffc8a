"""Which package brings a library: Debian and Ubuntu packages, and wheels for CUDA's own libraries."""

from __future__ import annotations

import re
from typing import Optional

# Package names of Debian 12 (packages.debian.org); Ubuntu 22.04 and 24.04 use the same ones but for a t64 suffix.
PACKAGES = {
    "libnuma.so.1": "libnuma1",
    "libibverbs.so.1": "libibverbs1",
    "librdmacm.so.1": "librdmacm1",
    "libmlx5.so.1": "ibverbs-providers",
    "libgomp.so.1": "libgomp1",
    "libstdc++.so.6": "libstdc++6",
    "libgcc_s.so.1": "libgcc-s1",
    "libgfortran.so.5": "libgfortran5",
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libgthread-2.0.so.0": "libglib2.0-0",
    "libSM.so.6": "libsm6",
    "libXext.so.6": "libxext6",
    "libXrender.so.1": "libxrender1",
    "libX11.so.6": "libx11-6",
    "libsndfile.so.1": "libsndfile1",
    "libsox.so": "libsox-dev",
    "libz.so.1": "zlib1g",
    "libzstd.so.1": "libzstd1",
    "liblzma.so.5": "liblzma5",
    "libbz2.so.1.0": "libbz2-1.0",
    "libffi.so.8": "libffi8",
    "libssl.so.3": "libssl3",
    "libcrypto.so.3": "libssl3",
    "libssl.so.1.1": "libssl1.1",
    "libcrypto.so.1.1": "libssl1.1",
    "libcurl.so.4": "libcurl4",
    "libsqlite3.so.0": "libsqlite3-0",
    "libopenblas.so.0": "libopenblas0",
    "libblas.so.3": "libblas3",
    "liblapack.so.3": "liblapack3",
    "libtbb.so.12": "libtbb12",
    "libhwloc.so.15": "libhwloc15",
    "libmpi.so.40": "libopenmpi3",
    "liboshmem.so.40": "libopenmpi3",
    "libpmix.so.2": "libpmix2",
    "libfabric.so.1": "libfabric1",
    "libucp.so.0": "libucx0",
    "libucs.so.0": "libucx0",
    "libpciaccess.so.0": "libpciaccess0",
    "libunwind.so.8": "libunwind8",
    "libelf.so.1": "libelf1",
    "libnl-3.so.200": "libnl-3-200",
    "libnl-route-3.so.200": "libnl-route-3-200",
    "libtcmalloc.so.4": "libgoogle-perftools4",
    "libjemalloc.so.2": "libjemalloc2",
    "libxml2.so.2": "libxml2",
    "libuv.so.1": "libuv1",
    "libjpeg.so.62": "libjpeg62-turbo",
    "libpng16.so.16": "libpng16-16",
}
_FFMPEG = re.compile(r"^lib(av(codec|format|util|filter|device)|sw(scale|resample))\.so\.\d+$")

# CUDA library -> distribution of its wheel, by CUDA major ("{major}" stays out of CUDA 13's names).
_WHEELS = {
    "libcudart": "cuda-runtime",
    "libnvrtc": "cuda-nvrtc",
    "libnvrtc-builtins": "cuda-nvrtc",
    "libcupti": "cuda-cupti",
    "libcublas": "cublas",
    "libcublasLt": "cublas",
    "libnvJitLink": "nvjitlink",
}
_COUNTED = {
    "libcudnn.so.9": "nvidia-cudnn-cu{major}",
    "libnccl.so.2": "nvidia-nccl-cu{major}",
    "libcusparseLt.so.0": "nvidia-cusparselt-cu{major}",
    "libnvshmem_host.so.3": "nvidia-nvshmem-cu{major}",
    "libcufft.so.11": "nvidia-cufft-cu12",
    "libcufft.so.12": "nvidia-cufft",
    "libcurand.so.10": "nvidia-curand-cu{major}",
    "libcusolver.so.11": "nvidia-cusolver-cu12",
    "libcusolver.so.12": "nvidia-cusolver",
    "libcusparse.so.12": "nvidia-cusparse-cu{major}",
    "libcufile.so.0": "nvidia-cufile-cu{major}",
    "libnvToolsExt.so.1": "nvidia-nvtx-cu12",
}


def package_for(library: str) -> Optional[str]:
    """The Debian package with this library, None where the table does not know."""
    return "ffmpeg" if _FFMPEG.match(library) else PACKAGES.get(library)


def wheel_for(library: str, cuda_major: Optional[int] = None) -> Optional[str]:
    """The wheel with this CUDA library: ``libcudart.so.12`` -> ``nvidia-cuda-runtime-cu12``."""
    match = re.match(r"^(lib[\w-]+)\.so\.(\d+)", library)
    if match and match.group(1) in _WHEELS:
        suffix = "" if int(match.group(2)) >= 13 else f"-cu{match.group(2)}"
        return f"nvidia-{_WHEELS[match.group(1)]}{suffix}"
    name = _COUNTED.get(library)
    if name is None or ("{major}" in name and cuda_major is None):
        return None
    if (
        cuda_major
        and cuda_major >= 13
        and name.split("-cu{")[0] in ("nvidia-curand", "nvidia-cusparse", "nvidia-cufile")
    ):
        return name.split("-cu{")[0]
    return name.format(major=cuda_major)
