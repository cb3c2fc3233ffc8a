"""CUDA toolkits on the host. Standard library only (agent-safe)."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import List, Optional

from ddtree_deploy.facts.command import run
from ddtree_deploy.facts.files import exists, read_text
from ddtree_deploy.facts.model import Toolkit

_MARKS = ("version.json", "version.txt", "include/cuda.h")


def find_toolkits() -> List[Toolkit]:
    """Folders of toolkits, each once (``/usr/local/cuda`` is a link to one of them)."""
    nvcc = shutil.which("nvcc")
    places = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), *sorted(map(str, _usual()))]
    places.append(str(Path(os.path.realpath(nvcc)).parent.parent) if nvcc else None)
    found = {}
    for folder in {os.path.realpath(place) for place in places if place}:
        if any(exists(Path(folder, mark)) for mark in _MARKS):  # nvcc on PATH may be a script that is anywhere
            found[folder] = Toolkit(folder, _version(Path(folder)))
    return [found[folder] for folder in sorted(found)]


def _usual() -> List[Path]:
    return [*Path("/usr/local").glob("cuda*"), *Path("/opt").glob("cuda*"), Path("/usr/lib/cuda")]


def _version(folder: Path) -> Optional[str]:
    try:
        return str(json.loads(read_text(folder / "version.json"))["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        match = re.search(r"CUDA Version (\d+[.\d]*)", read_text(folder / "version.txt"))
    if match is None:
        nvcc = folder / "bin" / "nvcc"
        output = run([str(nvcc), "--version"], 10.0).stdout if exists(nvcc) else ""
        match = re.search(r"\bV(\d+\.\d+[.\d]*)", output)
    return match.group(1) if match else None
