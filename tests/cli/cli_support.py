"""Running the command line: in this process, and as users do, in one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddtree_deploy.cli.main import main

INVENTORY = """\
defaults:
  connection: local
  profile: {profile}
groups:
  training: {{}}
hosts:
  one: {{root: {root}/one, base: {base}, groups: [training]}}
  two: {{root: {root}/two, base: {base}, groups: [training]}}
"""


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout, which must be one JSON document and nothing else."""
        return json.loads(self.out)


def run(*words: str) -> Ran:
    """``main`` in this process."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(list(words))
    return Ran(code, out.getvalue(), err.getvalue())


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "ddtree_deploy.cli.main", *words]


def spawn(*words: str, **environment: str) -> Ran:
    """The program in a process of its own."""
    env = {**os.environ, **environment}
    done = subprocess.run(command(*words), capture_output=True, text=True, env=env, timeout=60)
    return Ran(done.returncode, done.stdout, done.stderr)


def write_inventory(folder: Path, profile: str = "sglang-0.5.11-cpu", base: str = "/nonexistent/venv") -> Path:
    path = folder / "hosts.yaml"
    path.write_text(INVENTORY.format(root=folder / "root", base=base, profile=profile), "utf-8")
    return path


def write_venv(root: Path, version: str, requires: str = "") -> Path:
    """A folder laid out as a venv with one package, ``plain``."""
    info = root / f"lib/python3.11/site-packages/plain-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Name: plain\nVersion: {version}\n{requires}\n")
    (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
    (root / "pyvenv.cfg").write_text("home = /nonexistent\nversion = 3.11.2\n")
    return root
