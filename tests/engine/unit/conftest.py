"""These tests import the patched engine: run them with a release's python, or let
`tests/engine/test_engine_unit.py` do so. Elsewhere they are left out."""

import importlib.util
import os

# The kernels are checked on the CPU, in Triton's interpreter; set before Triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

HAS_ENGINE = all(importlib.util.find_spec(name) for name in ("torch", "sglang"))
collect_ignore_glob = [] if HAS_ENGINE else ["test_*.py"]
