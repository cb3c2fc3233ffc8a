"""Runs the path of a GPU on a CPU: captured steps and prefills, `auto`, steps ahead of the host.

Loaded through PYTHONPATH into the server's processes. The engine's own code runs, with two doubles:
  - a CUDA graph is a recording of torch's operations, run again on the same tensors without the Python around
    them. Reading a value back to the host while recording is an error, as it is on a GPU;
  - the Triton attention kernel is dense attention in torch (the kernel itself has unit tests).
"""

import contextlib
import importlib.abc
import importlib.util
import sys
import time

SPECULATIVE = "sglang.srt.speculative."


class Recording:
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self):
        self.ops = []

    def replay(self):
        import torch
        from torch.utils._pytree import tree_leaves

        with torch.inference_mode():
            for func, args, kwargs, out in self.ops:
                again = func(*args, **kwargs)
                for old, new in zip(tree_leaves(out), tree_leaves(again), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)  # a view's or an in-place operation's result is there already


# Operations that read a value, or whose result's shape depends on one. `resolve_conj` begins `tolist` and `numpy`.
SYNCS = {"item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "resolve_conj"}


def record(fn, stream):
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    graph = Recording()

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            booleans = [x for x in tree_leaves(args[1:]) if isinstance(x, torch.Tensor) and x.dtype == torch.bool]
            if func.__name__.split(".")[0] in SYNCS or (func.__name__.startswith("index.") and booleans):
                raise RuntimeError(f"{func} waits for the device, which a captured step must not do")
            out = func(*args, **(kwargs or {}))
            graph.ops.append((func, args, kwargs or {}, out))
            return out

    with Recorder():
        out = fn()
    return graph, out


def dense_tree_attention(
    q, k, v, k_cache, v_cache, req_to_token, req_pool_indices, prefix_lens, mask, scale, num_splits, config
):
    """`tree_attention` of fixed shapes: the whole row of `req_to_token`, masked to the prefix."""
    import torch

    bs, width = req_pool_indices.shape[0], req_to_token.shape[1]
    num_q = q.shape[0] // bs
    slots = req_to_token[req_pool_indices.clamp(min=0)].long()

    def keys(cache, own):
        return torch.cat([cache[slots], own.view(bs, num_q, *own.shape[1:])], dim=1).transpose(1, 2)

    own_mask = torch.ones((bs, num_q, num_q), dtype=torch.bool) if mask is None else mask
    prefix = (torch.arange(width) < prefix_lens.unsqueeze(1)).unsqueeze(1).expand(-1, num_q, -1)
    allowed = torch.cat([prefix, own_mask], dim=2).unsqueeze(1)
    out = torch.nn.functional.scaled_dot_product_attention(
        q.view(bs, num_q, *q.shape[1:]).transpose(1, 2), keys(k_cache, k), keys(v_cache, v),
        attn_mask=allowed, scale=scale, enable_gqa=True,
    )  # fmt: skip
    return out.transpose(1, 2).reshape(q.shape[0], -1)


class Event:
    """Stands in for torch.cuda.Event, for measuring the cost of a step."""

    def __init__(self, enable_timing=False):
        pass

    def record(self):
        self.time = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return 1000 * (end.time - self.time)


def patch_args(module):
    real = module.parse_ddtree_budget
    module.parse_ddtree_budget = lambda value, auto_allowed=True: real(value, True)


def patch_worker(module):
    import torch
    from sglang.srt.speculative import ddtree_attention, ddtree_graph_runner

    @contextlib.contextmanager
    def capturing(self):
        with torch.inference_mode():
            yield None

    ddtree_attention.tree_attention = dense_tree_attention
    ddtree_graph_runner.DDTreeCudaGraphRunner.capturing = capturing
    ddtree_graph_runner.DDTreeCudaGraphRunner.record = staticmethod(record)
    ddtree_graph_runner.DDTreeCudaGraphRunner.measure.__defaults__ = (1,)  # repeats
    torch.cuda.Event, torch.cuda.synchronize = Event, lambda: None

    worker, real_init = module.DDTreeWorker, module.DDTreeWorker.__init__

    def init(self, *args, **kwargs):
        real_init(self, *args, **kwargs)
        self._init_cuda_graphs()

    def make_attn_backends(self):
        backends = (self.model_runner, self.draft_model_runner)
        return tuple(map(ddtree_attention.DDTreeAttnBackend, backends))

    worker.__init__, worker._make_attn_backends = init, make_attn_backends


PATCHES = {SPECULATIVE + "ddtree_args": patch_args, SPECULATIVE + "ddtree_worker": patch_worker}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        patch = PATCHES.pop(name, None)
        if patch is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            patch(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
