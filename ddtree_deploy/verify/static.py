"""``verify --static``, which reads files only: the audit of the binaries, and whether files are as provisioned."""

from __future__ import annotations

import base64
import hashlib
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple

from ddtree_deploy import codec
from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.release.files import sha256_file
from ddtree_deploy.release.record import parse_record
from ddtree_deploy.serve.environment import profile_environment, release_record
from ddtree_deploy.verify.model import CheckResult


def static_checks(release: Path, progress: ProgressSink, cache: Optional[Path] = None) -> List[CheckResult]:
    """``audit`` and ``files`` of the release at ``release``; the audit keeps what it read in the folder ``cache``."""
    return [_audit(release, progress, cache), changed_files(release, progress)]


def _audit(release: Path, progress: ProgressSink, cache: Optional[Path]) -> CheckResult:
    from ddtree_deploy.abi.audit import audit_environment  # reads and keeps a lot: only when asked for
    from ddtree_deploy.abi.host import probe_host

    began = time.monotonic()
    limits = probe_host(profile_environment(release).get("LD_LIBRARY_PATH", ""))
    report = audit_environment(str(release), limits, progress, str(cache) if cache else None)
    counts = {severity: report.counts.get(severity, 0) for severity in ("error", "warning", "note")}
    serious = [finding for finding in report.findings if finding.severity in ("error", "warning")]
    lines = [f"{finding.severity}: {finding.id}: {finding.message}" for finding in serious]
    return CheckResult(
        id="audit",
        title="binaries fit together",
        status="failed" if counts["error"] else "warning" if counts["warning"] else "ok",
        summary=", ".join(f"{count} {severity}s" for severity, count in counts.items()) + f" in {report.files} files",
        seconds=round(time.monotonic() - began, 3),
        cause="audit" if counts["error"] else None,
        hint="`ddtree-deploy abi` shows each finding with its fix" if lines else None,
        detail="\n".join(lines) or None,
        data=codec.to_dict(report),
    )


def changed_files(release: Path, progress: ProgressSink) -> CheckResult:
    """Whether patched and added files, and the engine's others, are as they were when the release was made.

    Patched and new files and shims are compared with the release's record, all other files of the engine with its
    RECORD. A release without a record of ours cannot be judged: ``skipped``.
    """
    began = time.monotonic()
    title = "files are as provisioned"
    record = release_record(release)
    if not record:
        return CheckResult("files", title, "skipped", "this environment has no record of ours to compare with")
    site = release / str(record.get("site_packages") or "")
    expected = _recorded(release, site, record)
    if not expected:
        return CheckResult("files", title, "skipped", "the release's record names no files to compare with")
    expected_count = len(expected)
    problems: List[str] = []
    for number, (path, digest) in enumerate(sorted(expected.items())):
        if number % 200 == 0:
            progress(Progress("hash", str(path), done_files=number, total_files=expected_count))
        shown = path.relative_to(release)
        try:
            now = sha256_file(path)
        except FileNotFoundError:
            problems.append(f"missing: {shown}")
            continue
        except OSError as error:
            problems.append(f"unreadable: {shown}: {error.strerror}")
            continue
        if now != digest:
            problems.append(f"changed: {shown}")
    progress(Progress("hash", "done", done_files=expected_count, total_files=expected_count, finished=True))
    return CheckResult(
        id="files",
        title=title,
        status="failed" if problems else "ok",
        summary=_summary(problems, expected_count),
        seconds=round(time.monotonic() - began, 3),
        cause="changed-files" if problems else None,
        hint="a release is never edited: change the patch set or the profile and provision again" if problems else None,
        detail="\n".join(problems) or None,
        data={"files": expected_count, "problems": problems},
    )


def _summary(problems: List[str], count: int) -> str:
    if not problems:
        return f"{count} files have the recorded sha256"
    more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
    return f"{problems[0]}{more}"


def _recorded(release: Path, site: Path, record: Dict[str, object]) -> Dict[Path, str]:
    """Absolute path -> hex sha256, the release's record over the engine's RECORD."""
    expected = dict(_engine_record(site, str(record.get("engine") or "")))
    files = record.get("files")
    for change in files if isinstance(files, list) else []:
        if not isinstance(change, dict) or not change.get("sha256_after"):
            continue
        base = release if change.get("change") == "shim" else site
        expected[base / str(change["path"])] = str(change["sha256_after"])
    return expected


def _engine_record(site: Path, engine: str) -> List[Tuple[Path, str]]:
    """The engine's files with a sha256 in its RECORD."""
    found: List[Tuple[Path, str]] = []
    for path in site.glob(f"{engine.replace('-', '_')}-*.dist-info/RECORD") if engine else []:
        for name, digest, _ in parse_record(path.read_bytes()):
            decoded = _hex(digest)
            target = site / name
            if decoded is not None and ".." not in target.parts and not name.startswith("/"):
                found.append((target, decoded))
    return found


def _hex(digest: str) -> Optional[str]:
    algorithm, _, value = digest.partition("=")
    if algorithm != "sha256" or not value:
        return None
    raw = base64.urlsafe_b64decode(value + "=" * (-len(value) % 4))
    return raw.hex() if len(raw) == hashlib.sha256().digest_size else None
