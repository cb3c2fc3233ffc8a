"""Torch versions of the engine's norms, rope and activations, whose kernels on a GPU know half precision only.

`acceptance.py` loads it into the processes of float32 servers through PYTHONPATH. Attention, tree, walk and commit
stay as they are.
"""

import importlib.abc
import importlib.util
import sys

TARGET = "sglang.srt.layers.utils.multi_platform"


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            module.MultiPlatformOp.dispatch_forward = lambda self: self.forward_native
            print("native_ops: torch versions of the model's operators", flush=True)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, _Finder())
