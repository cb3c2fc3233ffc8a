"""The kernels compile for GPUs that CI does not have: Blackwell workstation cards have the least shared memory."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from engine.support import cpu_env, engine_python

FOLDER = Path(__file__).parent
KERNELS = {
    "_build_tree_kernel",
    "_gather_groups_kernel",
    "_group_tops_kernel",
    "_logsumexp_kernel",
    "_merge_splits_kernel",
    "_move_path_kernel",
    "_tree_attention_kernel",
    "_walk_tree_kernel",
}


def run(scratch: Path, *program: str) -> subprocess.CompletedProcess[str]:
    env = {**cpu_env(scratch), "TRITON_CACHE_DIR": str(scratch / "cache")}
    env.pop("TRITON_INTERPRET", None)
    return subprocess.run([engine_python(), *program], env=env, cwd=FOLDER, capture_output=True, text=True, timeout=280)


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_all_kernels_compile_and_fit_into_shared_memory(tmp_path: Path) -> None:
    done = run(tmp_path, "compile_kernels.py", "120")
    assert done.returncode == 0, done.stderr[-3000:]
    made = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["kernel"] for row in made} == KERNELS
    assert max(row["shared"] for row in made) > 50_000, "large heads are among them"


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.timeout(300)
def test_a_kernel_that_does_not_fit_is_found(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", "import compile_kernels as c; c.SHARED[120] = 1000; c.main([120])")
    assert done.returncode == 1
    assert "_build_tree_kernel" in done.stderr and "1000 there are" in done.stderr
