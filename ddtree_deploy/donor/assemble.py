"""From a donor's files to a tree that the overlay takes packages from, as from any staging venv. Agent-safe.

Every file is hashed once more where that was not done since it was written; then it is linked into
``cache/staging/<digest>``, or copied where it cannot be linked or has another mode there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from dataclasses import replace
from typing import Any, Dict, List, Set

from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.donor.model import DonorPackage, Manifest
from ddtree_deploy.donor.store import Store, Wish, is_whole
from ddtree_deploy.errors import StepError
from ddtree_deploy.release.clone import Copier
from ddtree_deploy.release.donor import new_metadata
from ddtree_deploy.release.files import (
    make_folders,
    record_hash,
    recorded_form,
    remove_tree,
    replace_file,
    shown,
    sync_folder,
)
from ddtree_deploy.release.finish import sync_file_system
from ddtree_deploy.release.hashes import HashCache
from ddtree_deploy.release.layout import STAGING_DONE, Layout
from ddtree_deploy.release.record import Row, format_record

_EVERY = 512


def assemble(layout: Layout, wish: Wish, hashes: HashCache, progress: ProgressSink) -> Dict[str, Any]:
    """Put the tree of ``wish`` together, all of whose files are on this host. The lock is held.

    Returns {staging: its digest, site, names}. Raises StepError ``file-changed`` for a file that is no longer what it
    was when it was found, OSError.
    """
    manifest = _as_it_is(wish)
    digest = manifest.digest()
    final = layout.staging(digest)
    if not is_whole(layout, manifest, hashes, progress):
        building = str(layout.stagings / f"{digest}.partial")
        remove_tree(building)
        os.makedirs(f"{building}/{manifest.site}")
        try:
            _place_files(building, wish, Store(layout), hashes, progress)
            for path, target in manifest.links.items():
                make_folders(os.path.dirname(f"{building}/{path}"))
                os.symlink(target, f"{building}/{path}")
            for number, package in enumerate(manifest.packages):
                if not package.record:
                    _describe(building, wish, number, package)
            replace_file(f"{building}/pyvenv.cfg", b"# packages of a donor, see .ddtree-staging.json\n")
            document = {"kind": "donor", "packages": {one.name: one.version for one in manifest.packages}}
            replace_file(
                f"{building}/{STAGING_DONE}", json.dumps(document, indent=1, sort_keys=True).encode("utf-8") + b"\n"
            )
            sync_file_system(building)
            remove_tree(final)  # a damaged one, whose good files have just been linked
            os.rename(building, final)
            sync_folder(layout.stagings)
        except BaseException:
            with contextlib.suppress(OSError):  # what fails here, the next run makes good
                remove_tree(building)
            raise
    return {"staging": digest, "site": manifest.site, "names": manifest.names}


def _as_it_is(wish: Wish) -> Manifest:
    """The manifest with the hashes that edited files really have."""
    files = [file._replace(sha256=wish.sha256(number)) for number, file in enumerate(wish.manifest.files)]
    return replace(wish.manifest, files=files)


def _place_files(building: str, wish: Wish, store: Store, hashes: HashCache, progress: ProgressSink) -> None:
    total = wish.manifest.bytes
    copier = Copier("hardlink")
    folders: Set[str] = set()
    done = 0
    for number, file in enumerate(wish.manifest.files):
        source = wish.located.get(wish.sha256(number)) or store.path(wish.sha256(number))
        target = f"{building}/{file.path}"
        folder = os.path.dirname(target)
        if folder not in folders:
            os.makedirs(folder, exist_ok=True)
            folders.add(folder)
        try:
            info = os.lstat(source)
            if hashes.sha256(source) != wish.sha256(number):
                raise FileNotFoundError
        except FileNotFoundError:
            raise StepError(
                "file-changed",
                f"{shown(file.path)} was found at {shown(source)}, which is no longer what it was",
                where=shown(source),
                hint="let no installer run on the host, and provision again",
            ) from None
        if stat.S_IMODE(info.st_mode) == file.mode:
            copier.place(source, target, info)
        else:  # a mode is the inode's: it cannot be linked
            shutil.copyfile(source, target)
            os.chmod(target, file.mode)
        done += file.size
        if number % _EVERY == 0:
            progress(Progress("assemble", file.path, done, total, number + 1, len(wish.manifest.files)))
    count = len(wish.manifest.files)
    progress(Progress("assemble", "", done, total, count, count, finished=True))


def _describe(building: str, wish: Wish, number: int, package: DonorPackage) -> None:
    """Give a package without RECORD one, and metadata where it has none, so that it is one like any other."""
    manifest = wish.manifest
    folder = package.folder or f"{package.name.replace('-', '_')}-{package.version}.dist-info"
    if not folder.endswith(".dist-info"):
        return  # an egg-info has another format
    record = f"{manifest.site}/{folder}/RECORD"  # there may be what is left of one
    rows: List[Row] = []
    for index, file in enumerate(manifest.files):
        if file.owner == number and file.path.startswith(manifest.site + "/") and file.path != record:
            rows.append((file.path[len(manifest.site) + 1 :], recorded_form(wish.sha256(index)), str(file.size)))
    start = f"{building}/{manifest.site}/{folder}"
    if not package.folder:
        os.mkdir(start)
        for name, content in new_metadata(package.name, package.version).items():
            replace_file(f"{start}/{name}", content)
            rows.append((f"{folder}/{name}", record_hash(content), str(len(content))))
    replace_file(f"{start}/RECORD", format_record([*rows, (f"{folder}/RECORD", "", "")]))
