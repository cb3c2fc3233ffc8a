"""Changes the engine on purpose, for the negative controls of the acceptance tests.

Loaded through PYTHONPATH into the server's processes. DDTREE_BREAK names a file, read at every step, that names the
change; in an empty one, none:
  causal-mask     nodes see all earlier nodes instead of their ancestors
  prefix-kv       the first nodes' KV is kept instead of the path's
  prefix-hidden   the first nodes' features feed the next draft instead of the path's
"""

import importlib.abc
import os
import sys

TARGET = "sglang.srt.speculative.ddtree_utils"


def _defect():
    with open(os.environ["DDTREE_BREAK"]) as file:  # noqa: PTH123
        return file.read()


def _break(module):
    import torch

    # The walk needs the real mask: only the attention gets the wrong one.
    real_mask, real_slots, real_path = module.build_verify_mask, module.ddtree_commit_slots, module.gather_path

    def build_verify_mask(tree_mask, prefix_lens):
        if _defect() == "causal-mask":
            num_nodes = tree_mask.shape[1]
            ones = torch.ones(num_nodes, num_nodes, dtype=torch.bool, device=tree_mask.device)
            tree_mask = ones.tril().expand(tree_mask.shape[0], -1, -1).clone()
        return real_mask(tree_mask, prefix_lens)

    def ddtree_commit_slots(path, commit_lens, slots):
        source, target, draft_target = real_slots(path, commit_lens, slots)
        return target if _defect() == "prefix-kv" else source, target, draft_target

    def gather_path(nodes, path):
        if _defect() == "prefix-hidden":
            return nodes[:, : path.shape[1]].contiguous()
        return real_path(nodes, path)

    module.build_verify_mask = build_verify_mask
    module.ddtree_commit_slots = ddtree_commit_slots
    module.gather_path = gather_path


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
