"""What of a donor's files the target has already, and where the rest arrives: ``cache/donor``. Agent-safe.

A file that has arrived is ``cache/donor/<sha256>``, one that is arriving ``<sha256>.partial``: an interrupted transfer
goes on where it was. The manifest is kept beside them while it is needed, so that it crosses the wire once.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Tuple

from ddtree_deploy.agent.blobs import write_error
from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.donor.model import Manifest, parse_manifest
from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.release.distributions import find_site
from ddtree_deploy.release.files import recorded_form, replace_file
from ddtree_deploy.release.hashes import HashCache
from ddtree_deploy.release.layout import STAGING_DONE, Layout
from ddtree_deploy.release.record import parse_record, record_files, venv_path
from ddtree_deploy.release.space import require_space

_SPARE = 64 << 20  # bytes left free for everything else


@dataclass
class Wish:
    """A manifest, and where its files are: ``located`` sha256 -> path on this host, ``edited`` number of the file ->
    the hash that it has instead of its RECORD's. Kept in ``cache/donor`` between the operations."""

    manifest: Manifest
    located: Dict[str, str] = field(default_factory=dict)
    edited: Dict[int, str] = field(default_factory=dict)

    def sha256(self, number: int) -> str:
        return self.edited.get(number, self.manifest.files[number].sha256)


class Store:
    """The folder ``cache/donor`` of a root."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.folder = str(layout.donor)

    def path(self, sha256: str) -> str:
        return os.path.join(self.folder, sha256)

    def partial(self, sha256: str) -> str:
        return os.path.join(self.folder, sha256 + ".partial")

    def arrived(self, sha256: str) -> int:
        """Bytes of the file that an interrupted transfer has left."""
        try:
            return os.stat(self.partial(sha256)).st_size
        except OSError:
            return 0

    def save(self, digest: str, wish: Wish) -> None:
        edited = {str(number): sha256 for number, sha256 in wish.edited.items()}
        document = {"manifest": wish.manifest.to_dict(), "located": wish.located, "edited": edited}
        os.makedirs(self.folder, exist_ok=True)
        replace_file(os.path.join(self.folder, f"{digest}.json"), json.dumps(document).encode("ascii"))

    def load(self, digest: str) -> Wish:
        """Raises StepError ``donor-not-wanted``."""
        try:
            with open(os.path.join(self.folder, f"{digest}.json"), encoding="ascii") as stream:
                document = json.load(stream)
        except (OSError, ValueError) as error:
            raise StepError("donor-not-wanted", f"nothing is known of the donor's files {digest[:12]}") from error
        edited = {int(number): sha256 for number, sha256 in document["edited"].items()}
        return Wish(parse_manifest(document["manifest"]), document["located"], edited)

    def clear(self, digest: str, wish: Wish) -> None:
        """Forget what was put into a tree: its files live on there."""
        for number in range(len(wish.manifest.files)):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(wish.sha256(number)))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.folder, f"{digest}.json"))


def op_want(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``donor.want``. params: ``root``, ``base``, ``manifest``.

    Returns {digest, ready, files [[number, path, size, offset]], bytes, present_files, present_bytes}: what must be
    sent, from which offset. ``ready``: the tree is there, nothing is to be sent. Raises StepError ``bad-manifest``,
    ``no-space``, ``root-not-writable``.
    """
    layout = Layout(str(params["root"]))
    manifest = parse_manifest(params["manifest"])
    hashes = HashCache(str(layout.hashes))
    try:
        return want(layout, str(params["base"]), manifest, hashes, progress)
    except OSError as error:
        raise write_error(error, str(layout.root)) from error
    finally:
        hashes.save()


def want(layout: Layout, base: str, manifest: Manifest, hashes: HashCache, progress: ProgressSink) -> Dict[str, Any]:
    """As the op. Files of the same content are sent once."""
    store = Store(layout)
    digest = manifest.digest()
    answer: Dict[str, Any] = {"digest": digest, "ready": False, "files": [], "bytes": 0}
    answer.update(present_files=len(manifest.files), present_bytes=manifest.bytes)
    if is_whole(layout, manifest, hashes, progress):
        return {**answer, "ready": True}
    wish = Wish(manifest)
    sizes = {file.sha256: file.size for file in manifest.files}
    for sha256, path in _present(layout, base, sizes, store):
        if sha256 in wish.located or not _holds(path, sha256, sizes[sha256], hashes, progress):
            continue
        wish.located[sha256] = path
    asked = set()
    for number, file in enumerate(manifest.files):
        if file.sha256 in wish.located or file.sha256 in asked:
            continue
        asked.add(file.sha256)
        offset = min(store.arrived(file.sha256), file.size)
        answer["files"].append([number, file.path, file.size, offset])
        answer["bytes"] += file.size - offset
    missing = [file for file in manifest.files if file.sha256 in asked]
    answer["present_files"] -= len(missing)
    answer["present_bytes"] -= sum(file.size for file in missing)
    require_space(layout.root, answer["bytes"], "the donor's files need", _SPARE)
    store.save(digest, wish)
    return answer


def is_whole(layout: Layout, manifest: Manifest, hashes: HashCache, progress: ProgressSink) -> bool:
    """Whether the tree of ``manifest`` is there, with all its files as they are to be. What was read before and has not
    changed is not read again."""
    tree = layout.staging(manifest.digest())
    if not (tree / STAGING_DONE).is_file():
        return False
    return all(_holds(f"{tree}/{file.path}", file.sha256, file.size, hashes, progress) for file in manifest.files)


def _present(layout: Layout, base: str, sizes: Dict[str, int], store: Store) -> Iterator[Tuple[str, str]]:
    """(sha256, path) of files on this host that should be of one of the hashes, the surest places first."""
    recorded = {recorded_form(sha256): sha256 for sha256 in sizes}
    for sha256 in sizes:
        for path in (store.path(sha256), str(layout.blob(sha256))):
            if os.path.isfile(path):
                yield sha256, path
    for venv in _venvs(layout, base):
        try:
            site = find_site(venv)
            records = list(record_files(venv, site))
        except (InputError, OSError):
            continue
        for _, record in records:
            for sha256, path in _recorded(venv, site, record, recorded):
                yield sha256, path


def _venvs(layout: Layout, base: str) -> List[str]:
    found = [os.path.realpath(base)]
    for folder in (layout.stagings, layout.releases):
        with contextlib.suppress(OSError):
            found += [entry.path for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
    return found


def _recorded(venv: str, site: str, record: str, wanted: Dict[str, str]) -> Iterator[Tuple[str, str]]:
    try:
        with open(record, "rb") as stream:
            rows = parse_record(stream.read())
    except FileNotFoundError:  # a release that is pruned meanwhile: what is looked for here takes no lock
        return
    for path, digest, _ in rows:
        sha256 = wanted.get(digest)
        inside = venv_path(site, path) if sha256 is not None else None
        if sha256 is not None and inside is not None:
            yield sha256, f"{venv}/{inside}"


def _holds(path: str, sha256: str, size: int, hashes: HashCache, progress: ProgressSink) -> bool:
    """Whether the file really is of this hash."""
    read = 0

    def count(more: int) -> None:
        nonlocal read
        read += more
        progress(Progress("look", f"checking {os.path.basename(path)}", read, size))

    try:
        info = os.lstat(path)
        return os.path.isfile(path) and info.st_size == size and hashes.sha256(path, count) == sha256
    except OSError:
        return False
