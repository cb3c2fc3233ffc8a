"""A step's parts, gaps and host calls out of a trace."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import profile_step
import pytest
from benchmarks.traces import FLASH, GEMM, cpu_trace, decode_trace, event


def test_a_step_is_told_apart():
    step = profile_step.summarize(decode_trace(12), 12)
    assert step["steps"] == 11 and step["step_ms"] == 1.0
    assert step["parts_ms"] == {
        "tree, top-k, walk, commit": 0.08,
        "matrix products": 0.4,
        "attention": 0.1,
        "norms, rope, activations, KV": 0.02,
        "copies": 0.015,
    }
    # The copy beside the products is not counted twice.
    assert step["busy_ms"] == pytest.approx(0.605) and step["idle_ms"] == pytest.approx(0.395)
    assert step["host_calls"] == {"graph_launches": 2.0, "kernel_launches": 2.0, "copies": 1.0, "waits": 1.0}
    assert step["device_copies"] == {"DtoD": 1.0, "DtoH": 1.0}
    assert step["kernels"][0] == [GEMM, 2.0, 0.4]


@pytest.mark.parametrize("asked", [11, 13])
def test_one_step_more_or_less_than_asked_for(asked):
    assert profile_step.summarize(decode_trace(12), asked)["step_ms"] == 1.0


def test_a_trace_without_steps_is_refused():
    with pytest.raises(ValueError, match="about 40 times"):
        profile_step.summarize(decode_trace(12), 40)


def test_a_trace_of_a_cpu_counts_outermost_operators():
    step = profile_step.summarize(cpu_trace(10), 10)
    assert step["parts_ms"] == {
        "matrix products": 0.05,
        "attention": 0.02,
        "norms, rope, activations, KV": 0.005,
    }
    assert step["idle_ms"] == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (FLASH, "attention"),
        ("void flashinfer::BatchPrefillWithPagedKVCacheKernel<...>", "attention"),
        ("_merge_splits_kernel", "attention"),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn>", "matrix products"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16, ...>", "matrix products"),
        ("void at::native::mbtopk::radixFindKthValues<float, ...>", "tree, top-k, walk, commit"),
        ("void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>", "tree, top-k, walk, commit"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float, ArgMaxOps<float>> >", "tree, top-k, walk, commit"),
        ("_move_path_kernel", "tree, top-k, walk, commit"),
        ("void activation::act_and_mul_kernel<__nv_bfloat16, silu>", "norms, rope, activations, KV"),
    ],
)  # fmt: skip
def test_kinds_of_kernels(name, kind):
    assert profile_step.kind_of(name) == kind


def test_busy_time_joins_what_overlaps():
    events = [event("a", 0, 10), event("b", 5, 10), event("c", 6, 2), event("d", 20, 5)]
    assert profile_step.busy_time(events) == 20


def test_traces_may_be_packed(tmp_path: Path):
    packed = tmp_path / "x.trace.json.gz"
    packed.write_bytes(gzip.compress(json.dumps(decode_trace(3)).encode()))
    assert profile_step.summarize(profile_step.load(packed), 3)["steps"] == 2
