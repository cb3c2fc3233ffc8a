"""Compiles the kernels as they are launched, for GPUs that are not here: python compile_kernels.py ARCHITECTURE...

The launches are recorded on CPU tensors and compiled ahead of time, with the specialisation that a launch would have.
A kernel that does not compile, or wants more shared memory than the architecture has, ends the program with an error.
Prints one JSON line a kernel: how it was compiled and what it needs.
"""

import functools
import json
import sys

import torch
import triton
from sglang.srt.speculative import ddtree_attention, ddtree_kernels, ddtree_top_scores
from sglang.srt.speculative import ddtree_utils as utils
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

# Shared memory that a program may have, in bytes: CUDA C++ Programming Guide, compute capabilities.
SHARED = {80: 163 << 10, 86: 99 << 10, 89: 99 << 10, 90: 227 << 10, 100: 227 << 10, 120: 99 << 10}
TYPES = {
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float32: "fp32",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.uint8: "u8",
    torch.uint64: "u64",
}
ALIGNED = [["tt.divisibility", 16]]
COMPILED = set()


class Recorder:
    """Stands where a kernel does and compiles what it is launched with."""

    def __init__(self, kernel, architectures):
        self.kernel, self.architectures = kernel, architectures

    def __getitem__(self, grid):
        return functools.partial(self.launch, grid)

    def launch(self, grid, *args, **named):
        options = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
        signature, attrs, constants = {}, {}, {}
        for number, (name, value) in enumerate(zip(self.kernel.arg_names, args)):
            if isinstance(value, torch.Tensor):
                signature[name], aligned = f"*{TYPES[value.dtype]}", value.data_ptr() % 16 == 0
            elif isinstance(value, float):
                signature[name], aligned = "fp32", False
            elif value == 1:  # as at a launch, a constant
                signature[name], constants[name], aligned = "constexpr", 1, False
            else:
                signature[name], aligned = "i32", value % 16 == 0
            if aligned:
                attrs[number,] = ALIGNED
        constants.update(named)
        signature.update(dict.fromkeys(named, "constexpr"))
        for architecture in self.architectures:
            self.compile(architecture, signature, constants, attrs, options)

    def compile(self, architecture, signature, constants, attrs, options):
        key = str((architecture, self.kernel.__name__, signature, constants, attrs, options))
        if key in COMPILED:
            return
        COMPILED.add(key)
        source = ASTSource(fn=self.kernel, signature=signature, constexprs=constants, attrs=attrs)
        made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
        named = {name: value for name, value in constants.items() if name != "PRECISION"}
        said = {"kernel": self.kernel.__name__, "architecture": architecture, "shared": made.metadata.shared}
        print(json.dumps({**said, "constants": named, **options}), flush=True)
        if self.kernel.__name__ == "_build_tree_kernel":  # what a start is refused by
            known = ddtree_kernels.build_ddtree_shared_bytes(constants["L"], constants["B"])
            assert made.metadata.shared == known or known < 1024, (key, known)
        if made.metadata.shared > SHARED[architecture]:
            raise SystemExit(f"{key}: {made.metadata.shared} bytes of shared memory, {SHARED[architecture]} there are")


def record(architectures):
    for module in (ddtree_top_scores, ddtree_kernels, ddtree_attention):
        for name, value in list(vars(module).items()):
            if isinstance(value, triton.JITFunction) and name.endswith("_kernel"):
                setattr(module, name, Recorder(value, architectures))


def build_walk_and_move(budget, dtype=torch.bfloat16, bs=2, num_depths=15, vocab=4096):
    logits = torch.randn(bs * num_depths, vocab).to(dtype)
    scores, token_ids, lse = ddtree_top_scores.ddtree_top_scores_triton(logits, budget)
    shape = (bs, num_depths, -1)
    arguments = {
        "log_probs": (scores - lse).view(shape),
        "token_ids": token_ids.view(shape),
        "root_tokens": torch.zeros(bs, dtype=torch.int64),
        "budget": budget,
    }
    ddtree_kernels.build_ddtree_triton(**arguments)
    tree = utils.build_ddtree(**arguments)
    target = torch.zeros(bs, budget + 1, dtype=torch.int64)
    path, *_ = ddtree_kernels.walk_ddtree_triton(tree, target, utils.ddtree_path_len(num_depths, budget))
    pointers, sizes = torch.zeros(8, dtype=torch.uint64), torch.full((8,), 2048)
    ddtree_kernels.move_path_kv_triton(pointers, sizes, 2048, torch.zeros_like(path), torch.zeros_like(path))


def attend(num_q, heads, kv_heads, dim, dtype=torch.bfloat16, masked=True):
    def empty(*shape):
        return torch.empty(shape, dtype=dtype)

    for num_splits in (1, 8):
        ddtree_attention.tree_attention(
            q=empty(num_q, heads, dim),
            k=empty(num_q, kv_heads, dim),
            v=empty(num_q, kv_heads, dim),
            k_cache=empty(64, kv_heads, dim),
            v_cache=empty(64, kv_heads, dim),
            req_to_token=torch.zeros((2, 64), dtype=torch.int32),
            req_pool_indices=torch.zeros(1, dtype=torch.int64),
            prefix_lens=torch.zeros(1, dtype=torch.int64),
            mask=torch.ones((1, num_q, num_q), dtype=torch.bool) if masked else None,
            scale=dim**-0.5,
            num_splits=num_splits,
        )


def main(architectures):
    record(architectures)
    for budget in (1, 7, 15, 31, 63):
        build_walk_and_move(budget)
    build_walk_and_move(63, num_depths=2)
    build_walk_and_move(31, vocab=151936)
    for heads, kv_heads, dim in ((32, 8, 128), (64, 16, 64), (16, 2, 256)):
        for num_q in (1, 8, 16, 64):
            attend(num_q, heads, kv_heads, dim)
        attend(16, heads, kv_heads, dim, masked=False)
    attend(32, 32, 8, 128, torch.float16)
    attend(32, 32, 8, 128, torch.float32)
    attend(32, 16, 2, 256, torch.float32)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
