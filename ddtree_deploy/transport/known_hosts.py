"""Checks host keys against known_hosts, as OpenSSH does.

Paramiko's own reader skips what it does not understand (patterns, ``@revoked``) and rewrites the whole file when it
adds a key; a check that refuses must not, so the format is read here (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"), and keys
are appended. Host certificates (``@cert-authority``) are not supported: their hosts are unknown.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import shlex
import threading
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Optional

import paramiko

from ddtree_deploy.errors import InputError, UnreachableError
from ddtree_deploy.transport.hops import Hop

ENVIRONMENT = "DDTREE_KNOWN_HOSTS"
SYSTEM_FILE = Path("/etc/ssh/ssh_known_hosts")

_appending = threading.Lock()


@dataclass(frozen=True)
class Entry:
    names: str
    kind: str  # "ssh-ed25519"
    key: bytes
    revoked: bool
    where: str  # file:line


class KnownHosts:
    """The keys on record. ``path``: the only file to use, instead of the user's and the system's."""

    def __init__(self, path: Optional[Path], accept_new: bool) -> None:
        path = path or (Path(os.environ[ENVIRONMENT]) if os.environ.get(ENVIRONMENT) else None)
        self._file = path or Path.home() / ".ssh" / "known_hosts"
        self._accept_new = accept_new
        files = [path] if path else [self._file, SYSTEM_FILE]
        self._entries = [entry for file in files for entry in _read(file)]

    def kinds(self, hop: Hop) -> list[str]:
        """The kinds of key known for ``hop``: to be asked for first, since a server has several."""
        return list(dict.fromkeys(entry.kind for entry in self._entries if not entry.revoked and _names(entry, hop)))

    def check(self, hop: Hop, key: paramiko.PKey) -> None:
        """Raises UnreachableError ``host-key-changed``, ``host-key-revoked`` or, unless new ones are accepted,
        ``host-key-unknown``; an accepted new key is appended to the file."""
        fingerprint = f"{key.get_name()} {key.fingerprint}"
        blob = key.asbytes()
        entries = [entry for entry in self._entries if _names(entry, hop)]
        known = [entry for entry in entries if not entry.revoked]
        revoked = next((entry for entry in entries if entry.revoked and entry.key == blob), None)
        if revoked:
            raise UnreachableError(
                "host-key-revoked",
                f"{hop.label} shows a host key that is marked as revoked: {fingerprint}",
                where=revoked.where,
                hint="do not connect; the key may be in wrong hands",
            )
        if any(entry.key == blob for entry in known):
            return
        if known:
            raise UnreachableError(
                "host-key-changed",
                f"the host key of {hop.label} is not the one on record: {fingerprint}",
                where=known[0].where,
                hint="somebody may be listening in. If the host was reinstalled, remove its old key: "
                f"ssh-keygen -f {self._file} -R {shlex.quote(hop.name)}",
            )
        if not self._accept_new:
            raise UnreachableError(
                "host-key-unknown",
                f"the host key of {hop.label} is not known: {fingerprint}",
                where=str(self._file),
                hint="compare it with the host's own and connect once by ssh, or use --accept-new-host-keys",
            )
        self._append(hop, key)

    def _append(self, hop: Hop, key: paramiko.PKey) -> None:
        line = f"{hop.name} {key.get_name()} {key.get_base64()}\n"
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with _appending:
                descriptor = os.open(self._file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
                with os.fdopen(descriptor, "rb+", buffering=0) as file:
                    size = file.seek(0, os.SEEK_END)
                    unfinished = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                    file.write(("\n" if unfinished else "").encode() + line.encode("ascii"))
        except OSError as error:
            message = f"cannot save the host key to {self._file}: {error.strerror}"
            hint = f"make it writable, or name another file: {ENVIRONMENT}=FILE"
            raise InputError("known-hosts", message, where=str(self._file), hint=hint) from error
        self._entries.append(Entry(hop.name, key.get_name(), key.asbytes(), False, str(self._file)))


def _read(path: Path) -> list[Entry]:
    try:
        text = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        hint = f"make it readable, or name another file: {ENVIRONMENT}=FILE"
        raise InputError("known-hosts", f"cannot read {path}: {error.strerror}", where=str(path), hint=hint) from error
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", "@revoked"):
            continue
        try:
            key = base64.b64decode(fields[2], validate=True)
        except binascii.Error:
            continue
        entries.append(Entry(fields[0], fields[1], key, marker == "@revoked", f"{path}:{number}"))
    return entries


def _names(entry: Entry, hop: Hop) -> bool:
    """Whether the entry's host field is about ``hop``: a hash, or patterns of which ``!`` ones exclude."""
    name = hop.name.lower()
    if entry.names.startswith("|1|"):
        try:
            salt, digest = (base64.b64decode(part) for part in entry.names.split("|")[2:4])
        except (binascii.Error, ValueError):
            return False
        return hmac.compare_digest(hmac.new(salt, name.encode(), hashlib.sha1).digest(), digest)
    found = False
    for pattern in entry.names.lower().split(","):
        # fnmatch gives [ a meaning that known_hosts does not know: "[host]:2222" is a literal
        if fnmatchcase(name, pattern.removeprefix("!").replace("[", "[[]")):
            if pattern.startswith("!"):
                return False
            found = True
    return found
