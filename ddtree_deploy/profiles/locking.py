"""Making a lock from the user's own indexes, for profiles whose packages no public index has together."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Iterable, Optional, Sequence
from urllib.parse import urlsplit, urlunsplit

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.secrets import MASK
from ddtree_deploy.inventory.settings import HostSettings
from ddtree_deploy.inventory.validation import Finding
from ddtree_deploy.inventory.yaml_lines import read_text
from ddtree_deploy.named_files import is_path
from ddtree_deploy.profiles.loader import find_profile, load_profile, recipe_line, with_lock
from ddtree_deploy.profiles.model import Profile, Source
from ddtree_deploy.resources import data_dir

DEFAULT_INDEX = "default"
_TIMEOUT = 900  # seconds; a slow mirror takes minutes, a dead one fails by its own timeouts long before
_HINTS = {
    "index-unreachable": "check the URL, the network and the proxy of this machine, then try again",
    "index-refused": "give the URL with its credentials by reference: extra_index: [env:NAME]",
    "no-such-package": "is it the right index, and are its credentials right? See `source` (index, extra_index)",
    "no-such-version": "does the index carry this build? Name the right one in `source` (index, extra_index)",
    "lock-failed": "the resolver's own words are above; loosen the profile's requirements or add overrides",
}


def profile_for(host: HostSettings, name: Optional[str] = None, source: Optional[Source] = None) -> Profile:
    """The profile of a host with its packages, whichever way it has its lock.

    ``name`` (a path in it is relative to the working folder first) and ``source`` go before the inventory's. Looks
    beside the inventory too (``./``, ``overlays/``); a lock that must be made is kept there in ``locks/``.

    Raises InputError: those of ``load_profile``, ``profile-needs-index``, and those of ``make_lock``.
    """
    source = source or host.plan_source()
    locks = locks_folder(host)
    if name and is_path(name) and Path(name).expanduser().is_file():
        name = str(Path(name).expanduser().absolute())
    profile = load_profile(name, _search(host), locks) if name else profile_of(host)
    own_index = source.kind == "index" and (source.location is not None or bool(source.extra))
    if profile.needs_index and source.kind == "index" and not own_index:
        raise _needs_index(profile, host)
    if not profile.packages:
        if source.kind == "donor":
            raise _needs_index(profile, host)
        profile = _make(profile, host, source, locks)
    return replace(profile, needs_index=None)  # it has been seen to; the digest stays that of the file


def profile_of(host: HostSettings) -> Profile:
    """The inventory's profile of ``host`` as it is: where a lock is still to be made, it has no packages."""
    name = host.require("profile")
    try:
        return load_profile(name, _search(host), locks_folder(host))
    except InputError as error:
        error.where = error.where or host.origin("profile").where
        raise


def missing_profiles(hosts: Iterable[HostSettings]) -> list[Finding]:
    """A finding for each place of an inventory that names a profile which is not there."""
    findings: dict[Optional[str], Finding] = {}
    for host in hosts:
        where = host.origin("profile").where
        if host.profile is None or where in findings:
            continue
        try:
            read_text(find_profile(host.profile, _search(host)), "profile")
        except InputError as error:
            message = error.message if error.where is None else f"{error.message}: {error.where}"
            findings[where] = Finding(error.id, message, ("hosts", host.name), error.hint, where=where)
    return list(findings.values())


def _search(host: HostSettings) -> list[Path]:
    return [host.folder, host.folder / "overlays"]


def locks_folder(host: HostSettings) -> Path:
    """Where locks made for ``host`` are kept: ``locks/`` beside its inventory, or the user's data folder where that is
    the shipped one."""
    if host.folder == data_dir("inventory"):
        return Path(os.environ.get("XDG_DATA_HOME") or Path("~/.local/share").expanduser()) / "ddtree-deploy" / "locks"
    return host.folder / "locks"


def _needs_index(profile: Profile, host: HostSettings) -> InputError:
    return InputError(
        "profile-needs-index",
        f"profile {profile.name} needs a package index that you configure: {profile.needs_index or 'it has no lock'}",
        where=host.origin("source").where or host.where,
        hint="set source: {extra_index: [URL]} for this host, or {wheelhouse: FOLDER} with all its wheels",
    )


def _make(profile: Profile, host: HostSettings, source: Source, locks: Path) -> Profile:
    urls = host.index_urls(source)
    text = recipe_line(profile) + make_lock(
        profile.requirements,
        [url.reveal() for url in urls],
        _python_version(profile),
        machine=profile.machine[0],
        constraints=profile.constraints,
        overrides=profile.overrides,
        wheelhouse=Path(source.location) if source.kind == "wheelhouse" and source.location else None,
    )
    path = locks / f"{profile.name}.lock"
    locked = with_lock(profile, text, path)
    try:
        locks.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(text, "utf-8")
        partial.replace(path)
    except OSError as error:
        raise InputError("lock-not-kept", f"the lock cannot be kept: {error.strerror}", where=str(path)) from error
    return locked


def make_lock(
    requirements: Sequence[str],
    index_urls: Sequence[str],
    python_version: str,
    *,
    machine: str = "x86_64",
    constraints: Sequence[str] = (),
    overrides: Sequence[str] = (),
    wheelhouse: Optional[Path] = None,
) -> str:
    """A lock for Linux on ``machine`` with Python ``python_version`` and later, resolved by uv among wheels only.

    ``index_urls``: the main index, or ``default`` for uv's own, and then more; empty: uv's own alone. With
    ``wheelhouse`` only that folder is used. URLs reach uv by environment and are masked in messages.
    Raises InputError: ``index-unreachable``, ``index-refused``, ``no-such-package``, ``no-such-version``,
    ``lock-failed``, ``uv-missing``.
    """
    here = f"sys_platform == 'linux' and platform_machine == '{machine}'"
    command = [str(find_uv()), "pip", "compile", "--universal", "--generate-hashes", "--only-binary", ":all:"]
    # Nothing is built, so uv may run any interpreter: ours, instead of looking for one of that version, or fetching it.
    command += ["--python-version", python_version, "--python", sys.executable]
    command += ["--index-strategy", "unsafe-best-match"]
    command += ["--no-header", "--no-annotate", "--no-progress", "--color", "never"]
    if wheelhouse is not None:
        command += ["--no-index", "--find-links", str(wheelhouse)]
    with tempfile.TemporaryDirectory(prefix="ddtree-lock-") as folder:
        files = {"requirements.in": requirements, "constraints.txt": constraints, "overrides.txt": overrides}
        for name, lines in files.items():
            if not lines:
                continue
            limited = [_limited(line, here) for line in lines] if name != "constraints.txt" else lines
            (Path(folder) / name).write_text("".join(f"{line}\n" for line in limited), "utf-8")
        command += ["--constraints", "constraints.txt"] if constraints else []
        command += ["--overrides", "overrides.txt"] if overrides else []
        command += ["requirements.in"]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=_environment(index_urls),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            message = f"the index did not answer in {_TIMEOUT} s"
            raise InputError("index-unreachable", message, hint=_HINTS["index-unreachable"]) from None
    if done.returncode != 0:
        raise _failure(done.stderr, [url for url in index_urls if url != DEFAULT_INDEX])
    return done.stdout


def find_uv() -> Path:
    """The uv that was installed with us, else one on PATH. Raises InputError ``uv-missing``."""
    with contextlib.suppress(ImportError, FileNotFoundError):
        from uv import find_uv_bin

        return Path(find_uv_bin())
    found = shutil.which("uv")
    if found is None:
        raise InputError("uv-missing", "uv is not installed beside ddtree-deploy", hint="python -m pip install uv")
    return Path(found)


def _python_version(profile: Profile) -> str:
    """The oldest minor that the profile takes."""
    match = re.search(r">=\s*(\d+\.\d+)|==\s*(\d+\.\d+)", profile.requires_python)
    return (match[1] or match[2]) if match else "3.11"


def _limited(requirement: str, marker: str) -> str:
    text, _, own = requirement.partition(";")
    return f"{text.strip()} ; ({own.strip()}) and {marker}" if own.strip() else f"{text.strip()} ; {marker}"


def _environment(index_urls: Sequence[str]) -> dict[str, str]:
    environment = dict(os.environ)
    environment["UV_PYTHON_DOWNLOADS"] = "never"
    if index_urls:
        main, *extra = index_urls
        if main != DEFAULT_INDEX:
            environment["UV_DEFAULT_INDEX"] = main
        if extra:
            environment["UV_INDEX"] = " ".join(extra)
    return environment


def _failure(stderr: str, urls: Sequence[str]) -> InputError:
    text = mask_urls(stderr, urls)
    details = {"resolver": text.strip()}
    error = re.search(r"^\s*(?:error: |\u00d7 )", text, re.M)
    text = text[error.start() :] if error else text  # what comes before are warnings, which may be about something else
    lines = _unwrapped(text)
    causes = [line.removeprefix("cause: ") for line in lines if line.startswith("cause: ")]
    if re.search(r"valid authentication credentials|40[13] (Unauthorized|Forbidden)", text):
        id, message = "index-refused", next(line for line in lines if re.search(r"authentication|40[13]", line))
    elif "Failed to fetch" in text or "error sending request" in text:
        fetched = next((line for line in lines if "Failed to fetch" in line), lines[0])
        id, message = "index-unreachable", f"{fetched.removeprefix('error: ')}: {causes[-1] if causes else 'no answer'}"
    elif match := re.search(r"there (?:is|are) no versions? of ([\w.-]+)(?:\{[^}]*\})?(==\S+)?", text):
        version = (match[2] or "").rstrip(",.")
        id, message = "no-such-version" if version else "no-such-package", f"no index has {match[1]}{version}"
    elif match := re.search(r"([\w.-]+) was not found in the", text):
        id, message = "no-such-package", f"no index has {match[1]}"
    else:
        id, message = "lock-failed", "; ".join([*causes, *lines][:2])[:500] or "uv said nothing"
    message = message.removeprefix("hint: ")
    return InputError(id, f"no lock could be made: {message}", hint=_HINTS[id], details=details)


def _unwrapped(text: str) -> list[str]:
    """The lines of uv's message; it wraps long ones, where depends on the terminal's width."""
    lines: list[str] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        if lines and not re.match(r"(cause|error|hint|warning): ", line):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return lines


def mask_urls(text: str, urls: Sequence[str]) -> str:
    """``text`` without user, password and query of ``urls``, which may hold secrets."""
    for url in urls:
        parts = urlsplit(url)
        for secret in (parts.query, parts.password, parts.username):
            if secret:
                text = text.replace(secret, MASK)
        if parts.username or parts.password:
            netloc = f"{MASK}@{parts.hostname or ''}" + (f":{parts.port}" if parts.port else "")
            text = text.replace(url, urlunsplit(parts._replace(netloc=netloc)))
    return text
