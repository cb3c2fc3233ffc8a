"""Files of which one is picked at run time: builds of one library for several CUDA, torch or ffmpeg versions."""

from __future__ import annotations

import posixpath
import re
from typing import Callable, Dict, List

_NUMBER = re.compile(r"_?cu\d+|\d+")
_SUFFIX = re.compile(r"\.(cpython-\d+[a-z]*(-[\w-]+)?|abi3)\.so$|\.so(\.\d+)*$")


def key(path: str) -> str:
    """Equal for variants: the folder and the name without numbers. ``smNN`` folders stay apart (the GPU picks them)."""
    folder, name = posixpath.split(path)
    stem = _SUFFIX.sub("", name)
    return f"{folder}/{_NUMBER.sub('', stem)}"


def spare(paths: List[str], everything: List[str], named: Callable[[str], bool]) -> Dict[str, str]:
    """For each broken path that has a whole variant, that variant; ``named`` ones are imported by their exact name."""
    groups: Dict[str, List[str]] = {}
    for path in everything:
        groups.setdefault(key(path), []).append(path)
    broken = set(paths)
    found = {}
    for path in paths:
        good = [other for other in groups.get(key(path), []) if other not in broken]
        if good and not named(path):
            found[path] = good[-1]
    return found
