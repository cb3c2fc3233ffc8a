"""Breaks the engine on purpose, for the negative control of ``verify --gpu``. Loaded through PYTHONPATH.

Every change is one that only one check may notice:
  kernels     the walk stops a node early
  greedy      the first nodes' features feed the next draft instead of the path's: the text stays right
  sampling    nodes of a tree are sampled at another temperature
  stops       a path is appended whole, a stop token inside is overlooked
  penalties   tokens on the way to a node are not counted
  pool        slots past the committed length are not given back when a request is aborted
"""

import importlib.abc
import importlib.util
import sys


def break_kernels(module):
    real = module.walk_ddtree_triton

    def walk_ddtree_triton(tree, target_tokens, path_len):
        path, commit_lens, tokens = real(tree, target_tokens, path_len)
        return path, (commit_lens - 1).clamp(min=1), tokens

    module.walk_ddtree_triton = walk_ddtree_triton


def break_features(module):
    module.gather_path = lambda nodes, path: nodes[:, : path.shape[1]].contiguous()


def break_sampling(module):
    real_repeat, real_penalties = module._repeat_sampling_info, module._apply_tree_penalties

    def _repeat_sampling_info(sampling_info, repeats):
        info = real_repeat(sampling_info, repeats)
        info.temperatures = info.temperatures * 1.5
        return info

    def _apply_tree_penalties(reqs, sampling_info, tree, logits):
        return real_penalties(reqs, sampling_info, tree._replace(mask=tree.mask & False), logits)

    module._repeat_sampling_info = _repeat_sampling_info
    module._apply_tree_penalties = _apply_tree_penalties


def break_stops(module):
    real = module.append_committed_tokens

    def append_committed_tokens(reqs, commits):
        accepted = []
        for req, (commit_len, _, *tokens) in zip(reqs, commits):
            sampling = req.sampling_params
            if sampling.stop_token_ids and not sampling.min_new_tokens and commit_len:
                req.output_ids.extend(tokens[:commit_len])
                req.check_finished()
                req.kv_committed_len += commit_len
                req.spec_verify_ct += 1
                accepted.append(commit_len - 1)
            else:
                accepted += real([req], [[commit_len, _, *tokens]])
        return accepted

    module.append_committed_tokens = append_committed_tokens


def break_pool(module):
    real = module.Req.pop_overallocated_kv_cache

    def pop_overallocated_kv_cache(self):
        start, end = real(self)
        return (end, end) if isinstance(self.finished_reason, module.FINISH_ABORT) else (start, end)

    module.Req.pop_overallocated_kv_cache = pop_overallocated_kv_cache


DEFECTS = {
    "sglang.srt.speculative.ddtree_kernels": break_kernels,
    "sglang.srt.speculative.ddtree_utils": break_features,
    "sglang.srt.speculative.ddtree_sampling": break_sampling,
    "sglang.srt.speculative.ddtree_info": break_stops,
    "sglang.srt.managers.schedule_batch": break_pool,
}


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        defect = DEFECTS.pop(name, None)
        if defect is None:
            return None
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            defect(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
