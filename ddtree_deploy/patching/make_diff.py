"""Write the unified diff that ``apply_diff`` reads: deterministic, three lines of context."""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import List, Optional

from ddtree_deploy.patching.apply_diff import split_lines

CONTEXT = 3
_FUNCTION = re.compile(r"^\s*(?:class|(?:async\s+)?def)\s")


def make_diff(path: str, old: bytes, new: bytes) -> str:
    """The diff from ``old`` to ``new`` as text, empty where they are equal. Raises UnicodeDecodeError unless UTF-8."""
    a, b = split_lines(old), split_lines(new)
    out: List[str] = []
    for group in SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(CONTEXT):
        _, i1, _, j1, _ = group[0]
        _, _, i2, _, j2 = group[-1]
        out.append(f"@@ -{_range(i1, i2)} +{_range(j1, j2)} @@{_section(a, i1)}\n")
        for tag, a1, a2, b1, b2 in group:
            if tag == "equal":
                out.extend(_line(" ", line) for line in a[a1:a2])
            else:
                out.extend(_line("-", line) for line in a[a1:a2])
                out.extend(_line("+", line) for line in b[b1:b2])
    return f"--- a/{path}\n+++ b/{path}\n" + "".join(out) if out else ""


def _range(start: int, stop: int) -> str:
    count = stop - start
    if count == 1:
        return str(start + 1)
    return f"{start + 1 if count else start},{count}"


def _line(tag: str, line: bytes) -> str:
    text = tag + line.decode("utf-8")
    return text if text.endswith("\n") else f"{text}\n\\ No newline at end of file\n"


def _section(lines: List[bytes], before: int) -> str:
    """The nearest ``def`` or ``class`` line above, as git prints it."""
    name: Optional[str] = next(
        (text for line in reversed(lines[:before]) if _FUNCTION.match(text := line.decode("utf-8", "replace"))), None
    )
    return f" {name.strip()[:80]}" if name else ""
