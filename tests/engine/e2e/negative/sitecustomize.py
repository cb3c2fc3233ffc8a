"""Changes the engine on purpose, for the negative controls of the acceptance tests.

Loaded through PYTHONPATH into the server's processes. DDTREE_BREAK names the change:
  causal-mask     nodes see all earlier nodes instead of their ancestors
  prefix-kv       the first nodes' KV is kept instead of the path's
  prefix-hidden   the first nodes' features feed the next draft instead of the path's
"""

import importlib.abc
import os
import sys

TARGET = "sglang.srt.speculative.ddtree_utils"


def _break(module):
    import torch

    defect = os.environ["DDTREE_BREAK"]
    if defect == "causal-mask":

        def build_ancestor_mask(parents, num_depths):
            num_nodes = parents.shape[1]
            ones = torch.ones(num_nodes, num_nodes, dtype=torch.bool, device=parents.device)
            return ones.tril().expand(parents.shape[0], -1, -1).clone()

        # The walk needs the real mask: only the attention gets the wrong one.
        real = module.build_verify_mask

        def build_verify_mask(tree_mask, prefix_lens):
            parents = torch.zeros(tree_mask.shape[:2], dtype=torch.int64)
            return real(build_ancestor_mask(parents, 1), prefix_lens)

        module.build_verify_mask = build_verify_mask
    elif defect == "prefix-kv":
        real_slots = module.ddtree_commit_slots

        def ddtree_commit_slots(path, commit_lens, slots):
            _, target, draft_target = real_slots(path, commit_lens, slots)
            return target, target, draft_target

        module.ddtree_commit_slots = ddtree_commit_slots
    elif defect == "prefix-hidden":
        module.gather_path = lambda nodes, path: nodes[:, : path.shape[1]].contiguous()
    else:
        raise ValueError(f"unknown DDTREE_BREAK={defect}")


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            _break(module)

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("DDTREE_BREAK"):
    import importlib.util

    sys.meta_path.insert(0, _Finder())
