"""Traces of torch's profiler with kernels of known times."""

from __future__ import annotations

from typing import Any

GEMM = "nvjet_tst_128x64_64x8_1x2_h_bz_coopA_TNT"
FLASH = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<...> > >(...)"


def event(name: str, ts: float, dur: float, cat: str = "kernel") -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 7}


def decode_trace(steps: int, period: float = 1000.0) -> dict[str, Any]:
    """`steps` steps of `period` us: 400 us of products, 100 of attention, 80 of tree, 20 of norms, a copy of 5; the
    second stream copies for 10 us at the same time as the products. The rest is idle."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]
    for step in range(steps):
        t = step * period
        events += [
            event("_build_tree_kernel", t, 80.0),
            event(GEMM, t + 100, 200.0),
            event(GEMM, t + 300, 200.0),
            event("Memcpy DtoD (Device -> Device)", t + 310, 10.0, "gpu_memcpy"),
            event(FLASH, t + 500, 60.0),
            event("_tree_attention_kernel", t + 560, 40.0),
            event("void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>(...)", t + 600, 20.0),
            event("Memcpy DtoH (Device -> Pinned)", t + 700, 5.0, "gpu_memcpy"),
            event("cudaGraphLaunch", t + 2, 9.0, "cuda_runtime"),
            event("cudaGraphLaunch", t + 22, 9.0, "cuda_runtime"),
            event("cudaLaunchKernel", t + 42, 3.0, "cuda_runtime"),
            event("cuLaunchKernelEx", t + 46, 3.0, "cuda_driver"),
            event("cudaMemcpyAsync", t + 52, 3.0, "cuda_runtime"),
            event("cudaEventSynchronize", t + 60, 600.0, "cuda_runtime"),
            event("aten::copy_", t + 52, 4.0, "cpu_op"),
        ]
    events.append(event("cudaDeviceSynchronize", steps * period + 50, 10.0, "cuda_runtime"))
    return {"traceEvents": events}


def cpu_trace(steps: int) -> dict[str, Any]:
    """Steps on a CPU: aten::linear calls aten::addmm, which must not be counted twice."""
    events = []
    for step in range(steps):
        t = step * 100.0
        events += [
            event("aten::embedding", t, 5.0, "cpu_op"),
            event("aten::linear", t + 10, 50.0, "cpu_op"),
            event("aten::addmm", t + 12, 45.0, "cpu_op"),
            event("aten::scaled_dot_product_attention", t + 70, 20.0, "cpu_op"),
        ]
    return {"traceEvents": events}
