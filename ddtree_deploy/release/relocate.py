"""Making a cloned venv live at its new path: nothing in it may mention the old one. Agent-safe."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.release.clone import Cloned
from ddtree_deploy.release.files import remove_file, replace_file, shown
from ddtree_deploy.release.notes import Notes
from ddtree_deploy.release.paths import PathMentions, is_text
from ddtree_deploy.release.record import refresh_records
from ddtree_deploy.release.scripts import rewrite_activate, rewrite_shebang

_SCRIPT_LIMIT = 1 << 20
_EVERY = 1024


@dataclass
class Relocated(Notes):
    """``rewritten``: files changed, relative to the release; ``binary``: compiled files that still mention the old
    path, which cannot be rewritten; ``symlinks``: those pointed anew; ``notes``: {severity, id, message}."""

    rewritten: List[str] = field(default_factory=list)
    binary: List[str] = field(default_factory=list)
    symlinks: List[str] = field(default_factory=list)
    notes: List[Dict[str, Any]] = field(default_factory=list)


def old_paths(venv: str) -> List[str]:
    """All the paths under which ``venv`` may be mentioned in its own files: as given, resolved, and as it calls
    itself in ``bin/activate`` and shebangs where that is the same folder (another symlink to it, say)."""
    given = os.path.normpath(os.path.abspath(venv))
    real = os.path.realpath(venv)
    found = [given, real]
    for alias in _own_names(venv):
        if alias not in found and os.path.realpath(alias) == real:
            found.append(alias)
    return found


def relocate(tree: str, site: str, cloned: Cloned, mentions: PathMentions, progress: ProgressSink) -> Relocated:
    """Rewrite the clone at ``tree`` so that it works from ``mentions.new``; ``site``: site-packages relative to it.

    Every regular file is looked through once. Text is rewritten (each file as a new one, see files.replace_file),
    RECORDs are corrected, absolute symlinks into the old venv are pointed into the new one.
    """
    done = Relocated()
    total = sum(size for _, size in cloned.files)
    seen = 0
    for index, (path, size) in enumerate(cloned.files):
        full = f"{tree}/{path}"
        if mentions.may_be_in_file(full, size) or (path.startswith("bin/") and 0 < size <= _SCRIPT_LIMIT):
            _relocate_file(full, path, mentions, done)
        seen += size
        if index % _EVERY == 0:
            progress(Progress("rewrite", "looking for the base's path", seen, total, index, len(cloned.files)))
    _relocate_symlinks(tree, cloned, mentions, done)
    done.rewritten += refresh_records(tree, site, done.rewritten)
    if done.binary:
        message = f"{len(done.binary)} compiled files hold the base venv's path and cannot be rewritten: "
        message += ", ".join(shown(path) for path in done.binary[:5]) + (" ..." if len(done.binary) > 5 else "")
        done.note("warning", "binary-mentions-base", message)
    return done


def _relocate_file(full: str, path: str, mentions: PathMentions, done: Relocated) -> None:
    with open(full, "rb") as stream:
        before = stream.read()
    data = before
    if path.startswith("bin/"):
        data = rewrite_shebang(data, mentions)
        if re.match(r"bin/activate", path, re.IGNORECASE):
            data = rewrite_activate(data, mentions)
    if is_text(data):
        data = mentions.replace(data)
    elif mentions.count(data):
        done.binary.append(path)
    if data != before:
        replace_file(full, data)
        done.rewritten.append(path)


def _relocate_symlinks(tree: str, cloned: Cloned, mentions: PathMentions, done: Relocated) -> None:
    source = mentions.old[0]
    for path, target in cloned.outward:
        if os.path.isabs(target):
            moved = mentions.moved(os.path.normpath(target))
            if moved == os.path.normpath(target):
                continue  # to the interpreter, or to somewhere else of the host's: stays
        else:
            # Leads out of the venv by a relative way, which would lead elsewhere from the release.
            moved = os.path.normpath(os.path.join(os.path.realpath(os.path.dirname(f"{source}/{path}")), target))
            moved = mentions.moved(moved)
        full = f"{tree}/{path}"
        remove_file(full)
        os.symlink(moved, full)
        done.symlinks.append(path)


def _own_names(venv: str) -> List[str]:
    found: List[str] = []
    folder = os.path.join(venv, "bin")
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return found
    for name in names:
        match = _head_match(os.path.join(folder, name), name)
        if match and match not in found:
            found.append(match)
    return found


def _head_match(path: str, name: str) -> Optional[str]:
    try:
        with open(path, "rb") as stream:
            head = stream.read(8192 if name == "activate" else 512)
    except OSError:
        return None
    patterns: Tuple[re.Pattern[bytes], ...] = (
        re.compile(rb"""^VIRTUAL_ENV=["']?(/[^"'\n]+?)["']?$""", re.MULTILINE)
        if name == "activate"
        else re.compile(rb"\A#!\s*(/\S+)/bin/python"),
        re.compile(rb"\A#![^\n]*\n'''exec' [\"']?(/[^\"'\n]+)/bin/python"),
    )
    for pattern in patterns:
        match = pattern.search(head)
        if match:
            return os.path.normpath(os.fsdecode(match.group(1)))
    return None
