"""A release for tests: a real venv of this Python whose packages are small stand-ins (test doubles) of the real ones.

They prove how results are told apart, nothing about torch or SGLang.
"""

from __future__ import annotations

import json
import sys
import venv
from pathlib import Path

GOOD = {
    "torch/__init__.py": """
        from torch import version
        __version__ = "2.11.0+cu130"
        class cuda:
            device_count = staticmethod(lambda: 0)
        tensor = list
        """,
    "torch/version.py": "cuda: str = '13.0'\n",
    "torchvision/__init__.py": """
        __version__ = "0.26.0"
        class Kept(list):
            tolist = lambda self: list(self)
        class ops:
            nms = staticmethod(lambda boxes, scores, limit: Kept([0, 2]))
        """,
    "sglang/__init__.py": "",
    "sglang/srt/__init__.py": "",
    "sglang/srt/speculative/__init__.py": "",
    "sglang/srt/speculative/spec_info.py": """
        class Algorithm:
            is_dflash = is_ddtree = lambda self: True
        class SpeculativeAlgorithm:
            @staticmethod
            def from_string(name):
                if name != "DDTREE":
                    raise ValueError(f"Unknown speculative algorithm name: {name}")
                return Algorithm()
        """,
    "sglang/srt/speculative/dflash_worker.py": "raise ImportError('only found, never imported')",
    "sglang/srt/speculative/ddtree_utils.py": "raise ImportError('only found, never imported')",
    "sglang/srt/entrypoints/__init__.py": "",
    "sglang/srt/entrypoints/http_server.py": "",
    "sglang/srt/managers/__init__.py": "",
    "sglang/srt/managers/scheduler.py": "",
    "sgl_kernel/__init__.py": "__version__ = '0.4.2'\nfrom sgl_kernel.sm100 import common_ops\n",
    "sgl_kernel/sm100/__init__.py": "",
    "sgl_kernel/sm100/common_ops.py": "",
}


def make_venv(path: Path) -> Path:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(path)
    return path


def site_packages(release: Path) -> Path:
    return release / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def fill(release: Path, changes: dict[str, str | None] | None = None, record: dict[str, object] | None = None) -> Path:
    """Put the stand-ins into the venv, with ``changes`` (None: leave out)."""
    import textwrap

    for name, text in {**GOOD, **(changes or {})}.items():
        target = site_packages(release) / name
        if text is None:
            target.unlink(missing_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(textwrap.dedent(text))
    (release / ".ddtree").mkdir(exist_ok=True)
    (release / ".ddtree" / "release.json").write_text(json.dumps({"id": release.name, **(record or {})}))
    return release
