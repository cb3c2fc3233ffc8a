"""What uv's output means when it fails. Patterns are from uv 0.4 to 0.13. Standard library only (agent-safe)."""

from __future__ import annotations

import re
from typing import List, Tuple

from ddtree_deploy.errors import StepError

_CREDENTIALS = re.compile(r"(\w+://)[^/\s]*@")
_FRAME = " \t\u00d7\u2570\u2500\u25b6\u251c\u2502"  # what uv draws in front of its lines
_ERROR = re.compile(r"error: |Failed to |No solution found")
_LABEL = re.compile(r"(?:error|cause|Caused by): ")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

# (pattern, id, message, hint); the first that fits wins.
_KNOWN: List[Tuple[str, str, str, str]] = [
    (
        r"No space left on device|os error 28",
        "no-space",
        "no space left while packages were installed",
        "free some space (`ddtree-deploy prune HOST --keep 1`); uv's cache may be on another disk, see UV_CACHE_DIR",
    ),
    (
        r"Hash mismatch for|hash(?:es)? (?:did not|didn't|do not) match",
        "hash-mismatch",
        "a package is not the one that the profile's lock names",
        "the index or wheelhouse serves another build, or the file is damaged; fetch it again, or lock another profile",
    ),
    (
        r"401 Unauthorized|403 Forbidden|status code 40[13]",
        "index-refused",
        "the package index refused access",
        "check the index's user and password in the inventory",
    ),
    (
        r"error sending request|client error \(Connect\)|dns error|Connection refused|Connection reset|"
        r"failed to lookup address|Could not connect|operation timed out|tcp connect error|Network is unreachable|"
        r"50[0-9] (?:Internal|Bad Gateway|Service|Gateway)|invalid peer certificate",
        "index-unreachable",
        "the package index cannot be reached from the host",
        "check the index's URL and the host's network and proxy (HTTPS_PROXY); or use a wheelhouse or a donor",
    ),
    (
        r"no wheels? with a matching|no matching (?:platform|Python)|has no wheels|not compatible with (?:the )?"
        r"(?:current|this|your)|doesn't have a (?:source distribution or )?wheel for the current platform",
        "no-matching-wheel",
        "a locked package has no wheel for the host's Python or platform",
        "the profile does not fit this host; see `requires_python` and `machine` of the profile",
    ),
    (
        r"no version of|not found in the (?:package registry|provided package locations)|cannot be used, as no|404 Not",
        "package-not-found",
        "the source does not have a locked package",
        "configure an index (or fill the wheelhouse) that has the build which the profile locks; an index that wants a "
        "password may look like this, too",
    ),
    (
        r"[Ff]ailed to (?:unzip|extract|read|parse|install)[^\n]*(?:wheel|archive|metadata|\.whl)|invalid (?:zip|Zip)|"
        r"unable to locate the end of central directory|[Ii]nvalid wheel",
        "corrupt-wheel",
        "a wheel is damaged",
        "fetch the wheel again; its sha256 is in the profile's lock",
    ),
    (
        r"No interpreter found|Failed to inspect Python|Broken (?:virtual|venv)|does not appear to be a Python",
        "python-missing",
        "the base venv's Python cannot be run",
        "the interpreter that the base venv was made with may have been removed",
    ),
]


def masked(text: str) -> str:
    """``text`` without the user and password of URLs, and without colours."""
    return _CREDENTIALS.sub(r"\1***@", _ANSI.sub("", text))


def uv_error(output: str, status: int, log: str, source: str) -> StepError:
    """The StepError for a failed run of uv, its last lines in ``details``. ``source``: where packages come from."""
    lines = [line.lstrip(_FRAME).rstrip() for line in masked(output).splitlines()]
    lines = [line for line in lines if line]
    start = next((number for number, line in enumerate(lines) if _ERROR.match(line)), 0)
    complaint = [_LABEL.sub("", line) for line in lines[start:]]
    said = ": ".join(complaint[:3]) or "it said nothing"
    details = {"output": "\n".join(lines[-20:]), "status": status}
    for pattern, id, message, hint in _KNOWN:
        if re.search(pattern, "\n".join(complaint)):
            return StepError(id, f"{message} ({source}): {said}", where=log, hint=hint, details=details)
    message = f"uv failed with exit status {status} ({source}): {said}"
    return StepError("uv-failed", message, where=log, hint="the log has all that uv said", details=details)
