"""What a donor has of the packages that are wanted: op ``donor.inventory``. Reads, and changes nothing. Agent-safe.

The hash of a file is its RECORD's where size and owner agree; otherwise the file is read (and its hash kept, see
``release.hashes``). A wrong byte in a file of the right size shows when the file is sent.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import Any, Dict, List, Optional, Set, Tuple

from ddtree_deploy.agent.archive import archive_path
from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.donor.model import DonorFile, DonorPackage, Manifest
from ddtree_deploy.errors import DriftError, InputError, StepError
from ddtree_deploy.facts.system import boot_id
from ddtree_deploy.release.distributions import Distribution, find_distributions, find_site, is_bytecode
from ddtree_deploy.release.donor import pick, require_undamaged
from ddtree_deploy.release.files import leads_out, recorded_form, shown
from ddtree_deploy.release.hashes import HashCache, user_cache
from ddtree_deploy.release.relocate import old_paths
from ddtree_deploy.units import some

_EVERY = 1024
Note = Dict[str, Any]


def op_inventory(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``donor.inventory``. params: ``path``, ``packages`` {name: version}, ``take_edited``, ``fingerprint`` (of the
    venv when the plan was made; null: any).

    Returns {manifest, notes, boot_id, python, archive}: the last three say how to start the agent here again.
    Raises InputError ``donor-missing``; DriftError ``donor-changed``; StepError ``source-lacks``,
    ``source-incomplete``, ``donor-damaged``.
    """
    path = str(params["path"])
    if params.get("fingerprint"):
        _require_unchanged(path, str(params["fingerprint"]))
    hashes = HashCache(user_cache())
    try:
        manifest, notes = take_inventory(path, params["packages"], hashes, progress, bool(params.get("take_edited")))
    finally:
        hashes.save()
    archive = archive_path()
    return {
        "manifest": manifest.to_dict(),
        "notes": notes,
        "boot_id": boot_id(),
        "python": sys.executable,
        "archive": str(archive) if archive else None,
    }


def take_inventory(
    path: str,
    packages: Dict[str, str],
    hashes: HashCache,
    progress: ProgressSink,
    take_edited: bool = False,
    read_all: bool = False,
) -> Tuple[Manifest, List[Note]]:
    """The files of ``packages`` (name -> version) in the venv at ``path``, and notes {severity, id, message}. What was
    edited is for the overlay to say, which compares with RECORD once more. ``read_all``: hash every file instead of
    taking RECORD's word."""
    venv = os.path.realpath(os.path.expanduser(path))
    if not os.path.isfile(os.path.join(venv, "pyvenv.cfg")):
        raise InputError("donor-missing", f"the donor {path} is not a venv: it has no pyvenv.cfg", where=path)
    site = find_site(venv, "donor-missing")
    available = find_distributions(venv, site)
    chosen = [pick(available, name, version, path) for name, version in sorted(packages.items())]
    looker = _Looker(venv, site, available, hashes, progress, sum(len(one.files) for one in chosen), read_all)
    for distribution in chosen:
        looker.look(distribution)
        if looker.missing:
            raise StepError(
                "source-incomplete",
                f"{distribution.name} in {path} lacks files that its RECORD names: {some(looker.missing)}",
                where=path,
                hint=f"reinstall {distribution.name} {distribution.version} there",
            )
        if looker.differing:
            require_undamaged(path, distribution.name, distribution.version, looker.differing, take_edited)
        if not distribution.record:
            what = "RECORD: its files are told by its top-level names" if distribution.folder else "metadata"
            message = f"{distribution.name} {distribution.version} in {path} has no {what}"
            looker.notes.append({"severity": "warning", "id": "no-record", "message": message})
    described = [DonorPackage(one.name, one.version, one.folder, int(one.record)) for one in chosen]
    names = list(dict.fromkeys([*old_paths(venv), os.path.normpath(os.path.expanduser(path))]))
    manifest = Manifest(venv, names, site, described, looker.files, looker.links, take_edited)
    return manifest, looker.notes


class _Looker:
    """Looks at the files of one distribution after the other. ``missing``, ``differing`` are of the last one."""

    def __init__(
        self,
        venv: str,
        site: str,
        available: Dict[str, List[Distribution]],
        hashes: HashCache,
        progress: ProgressSink,
        total: int,
        read_all: bool,
    ) -> None:
        self.files: List[DonorFile] = []
        self.links: Dict[str, str] = {}
        self.notes: List[Note] = []
        self.missing: List[str] = []
        self.differing: List[str] = []
        self._venv = venv
        self._site = site
        self._hashes = hashes
        self._progress = progress
        self._total = total
        self._read_all = read_all
        self._seen: Set[str] = set()
        self._number = -1
        self._rows: Dict[str, Set[Tuple[int, str]]] = {}  # path -> (size, recorded hash) of all its owners
        for same in available.values():
            for distribution in same:
                for path, digest in distribution.hashes.items():
                    if digest.startswith("sha256=") and path in distribution.sizes:
                        self._rows.setdefault(path, set()).add((distribution.sizes[path], digest))

    def look(self, distribution: Distribution) -> None:
        self.missing, self.differing = [], []
        self._number += 1
        for path in distribution.files:
            if path in self._seen or is_bytecode(path):
                continue
            self._seen.add(path)
            try:
                info = os.lstat(f"{self._venv}/{path}")
                if stat.S_ISLNK(info.st_mode) and leads_out(f"{self._venv}/{path}", self._venv):
                    info = os.stat(f"{self._venv}/{path}")  # the file itself: other hosts do not have it there
            except OSError:
                self.missing.append(shown(path))
                continue
            if stat.S_ISLNK(info.st_mode):
                self.links[path] = os.readlink(f"{self._venv}/{path}")
            elif stat.S_ISREG(info.st_mode):
                sha256, recorded = self._hash(path, info)
                mode = stat.S_IMODE(info.st_mode) & 0o777
                self.files.append(DonorFile(path, info.st_size, mode, sha256, int(recorded), self._number))
            if len(self._seen) % _EVERY == 0:
                self._tell(distribution.name)

    def _hash(self, path: str, info: os.stat_result) -> Tuple[str, bool]:
        """(hex sha256, whether it is only RECORD's word). Notes what differs from RECORD."""
        rows = self._rows.get(path, set())
        digest = _hexadecimal(rows)
        trusted = not self._read_all and {size for size, _ in rows} == {info.st_size}
        if digest is not None and trusted and path.startswith(self._site + "/"):
            return digest, True
        read = 0

        def count(size: int) -> None:
            nonlocal read
            read += size
            self._tell(path, read, info.st_size)

        found = self._hashes.sha256(f"{self._venv}/{path}", count)
        if not path.startswith(self._site + "/") or not rows:
            return found, False  # installers write the interpreter's path into scripts after RECORD's row is made
        if (info.st_size, recorded_form(found)) not in rows:
            sizes = sorted(size for size, _ in rows)
            how = "another sha256" if info.st_size in sizes else f"{info.st_size:,} bytes instead of {sizes[0]:,}"
            self.differing.append(f"{shown(path)} ({how})")
        return found, False

    def _tell(self, name: str, read: int = 0, size: Optional[int] = None) -> None:
        self._progress(Progress("look", name, read, size, len(self._seen), self._total))


def _hexadecimal(rows: Set[Tuple[int, str]]) -> Optional[str]:
    """The one hash that all owners agree on, as hex digits."""
    if len(rows) != 1:
        return None
    import base64  # here, since most of the agent's life passes without
    import binascii

    ((_, digest),) = rows
    text = digest[len("sha256=") :]
    try:
        data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        return None
    return data.hex() if len(data) == 32 else None


def _require_unchanged(path: str, fingerprint: str) -> None:
    from ddtree_deploy.facts.venv import probe_venv

    venv = probe_venv(path)
    if venv.fingerprint != fingerprint:
        what = venv.problem or "other packages or files, another Python or another configuration"
        raise DriftError(
            "donor-changed",
            f"the donor {path} changed since the plan was made: {what}",
            where=path,
            hint="let no installer run there, and provision again",
        )
