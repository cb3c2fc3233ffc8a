"""These tests import the patched engine: run them with a release's python, or let
`tests/engine/test_engine_unit.py` do so. Elsewhere they are left out."""

import importlib.util
import os

# The kernels are checked on the CPU, in Triton's interpreter; set before Triton is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")
# The engine's penalties are compiled with torch.compile, which takes a C++ compiler and half of the time of all
# these tests together, and more on a busy machine. What they compute is the same without.
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")

HAS_ENGINE = all(importlib.util.find_spec(name) for name in ("torch", "sglang"))
collect_ignore_glob = [] if HAS_ENGINE else ["test_*.py"]

if HAS_ENGINE:
    from hypothesis import HealthCheck, settings

    # Examples are made with torch: on a busy machine that looks too slow to hypothesis.
    settings.register_profile("engine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("engine")
