"""Say why an edited file cannot be patched: the released file, what the patch wants, what is on disk.

The released text is not on the host; where it is given (``--wheel``) the edits are shown against it, otherwise each
hunk is looked for in the file on disk by the lines it names. Standard library only (agent-safe).
"""

from __future__ import annotations

from difflib import SequenceMatcher, unified_diff
from typing import List, Optional, Sequence, Tuple

from ddtree_deploy.patching.apply_diff import Hunk, parse_diff, split_lines
from ddtree_deploy.patching.model import FilePatch, FileState, HunkReport

_MAX_DIFF_LINES = 40


def explain_edited(patch: FilePatch, disk: bytes, sha256: str, note: str, released: Optional[bytes]) -> FileState:
    """The state of a file that is neither as released nor as patched, with one report a hunk."""
    lines = split_lines(disk)
    base = split_lines(released) if released is not None else None
    opcodes = SequenceMatcher(None, base, lines, autojunk=False).get_opcodes() if base is not None else None
    reports = []
    shift = 0
    for number, hunk in enumerate(parse_diff(patch.diff).hunks, start=1):
        at = _place_by_release(hunk, opcodes) if opcodes is not None else hunk.old_start + shift
        report = _report(number, hunk, lines, at)
        if report.status != "conflict":
            shift = report.line - 1 - hunk.old_start
        reports.append(report)
    edits = _short_diff(base, lines, "released", "on disk") if base is not None else ""
    return FileState(patch.path, "patch", "edited", sha256, note, reports, edits)


def render_state(state: FileState) -> str:
    """A few lines of plain text about a file that stops a patch set."""
    out = [f"{state.path}: {state.state}. {state.note}".rstrip()]
    fitting = [str(r.number) for r in state.hunks if r.status in ("fits", "moved")]
    applied = [str(r.number) for r in state.hunks if r.status == "applied"]
    if fitting:
        out.append(f"  hunks whose lines are still there: {', '.join(fitting)}")
    if applied:
        out.append(f"  hunks already in the file: {', '.join(applied)}")
    for report in state.hunks:
        if report.status == "conflict":
            out.append(f"  hunk {report.number} conflicts near line {report.line}:")
            out.extend(f"    {line}" for line in report.diff.splitlines())
    if state.edits:
        out.append("  edits against the released file:")
        out.extend(f"    {line}" for line in state.edits.splitlines())
    return "\n".join(out)


def _report(number: int, hunk: Hunk, lines: Sequence[bytes], at: int) -> HunkReport:
    for status, wanted in (("fits", hunk.old_lines), ("applied", hunk.new_lines)):
        place = _find(wanted, lines, at)
        if place is not None:
            moved = status == "fits" and place != hunk.old_start
            return HunkReport(number, "moved" if moved else status, place + 1)
    start, stop = _nearest(hunk.old_lines, lines, at)
    diff = _short_diff(list(hunk.old_lines), lines[start:stop], "the hunk expects", "on disk")
    return HunkReport(number, "conflict", start + 1, diff)


def _find(wanted: Sequence[bytes], lines: Sequence[bytes], near: int) -> Optional[int]:
    """The place nearest to ``near`` where ``wanted`` is, or None."""
    size = len(wanted)
    places = [i for i in range(len(lines) - size + 1) if lines[i] == wanted[0] and tuple(lines[i : i + size]) == wanted]
    return min(places, key=lambda i: abs(i - near), default=None) if size else None


def _place_by_release(hunk: Hunk, opcodes: Sequence[Tuple[str, int, int, int, int]]) -> int:
    """Where the line that the hunk begins at in the released file has gone on disk."""
    shift = 0
    for tag, i1, i2, j1, j2 in opcodes:
        if i1 > hunk.old_start:
            break
        shift = j1 - i1 if tag == "equal" else j2 - i2
    return max(0, hunk.old_start + shift)


def _nearest(wanted: Sequence[bytes], lines: Sequence[bytes], near: int) -> Tuple[int, int]:
    """The stretch of ``lines`` that is most like ``wanted``, looked for within 200 lines of ``near``."""
    low, high = max(0, near - 200), min(len(lines), near + len(wanted) + 200)
    window = lines[low:high]
    match = SequenceMatcher(None, wanted, window, autojunk=False).find_longest_match(0, len(wanted), 0, len(window))
    if match.size == 0:
        start = min(max(0, near), len(lines))
        return start, min(start + len(wanted), len(lines))
    start = max(0, low + match.b - match.a)
    return start, min(start + len(wanted), len(lines))


def _short_diff(old: Sequence[bytes], new: Sequence[bytes], old_name: str, new_name: str) -> str:
    shown: List[str] = list(unified_diff(_text(old), _text(new), old_name, new_name, n=2, lineterm=""))
    if len(shown) > _MAX_DIFF_LINES:
        shown = [*shown[:_MAX_DIFF_LINES], f"… {len(shown) - _MAX_DIFF_LINES} more lines"]
    return "\n".join(shown)


def _text(lines: Sequence[bytes]) -> List[str]:
    """Printable lines; a CR and a missing line end, which a reader could not see, are spelled out."""
    out = []
    for line in lines:
        text = line.decode("utf-8", "backslashreplace")
        body = text[:-1] if text.endswith("\n") else text + "\\ (no newline at end of file)"
        out.append(body.replace("\r", "\\r"))
    return out
