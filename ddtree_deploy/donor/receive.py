"""The target's side of a transfer: records become files, each checked, and at the end a tree. Agent-safe."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from typing import Any, BinaryIO, Callable, Dict, List, Optional, Tuple

from ddtree_deploy.abi.elf import SHARED_OBJECT_NAME
from ddtree_deploy.agent.blobs import write_error
from ddtree_deploy.agent.protocol import Progress, ProgressSink
from ddtree_deploy.donor.assemble import assemble
from ddtree_deploy.donor.model import DonorFile
from ddtree_deploy.donor.records import DATA, END, FILE, LAST, PACKED, Readable, next_record
from ddtree_deploy.donor.store import Store, Wish
from ddtree_deploy.errors import DriftError, StepError
from ddtree_deploy.release.files import shown
from ddtree_deploy.release.hashes import CHUNK, HashCache
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.lock import Lock
from ddtree_deploy.units import some


def stream_receive(
    params: Dict[str, Any], requests: BinaryIO, emit: Callable[[bytes], None], progress: ProgressSink
) -> Dict[str, Any]:
    """Op ``donor.receive``. params: ``root``, ``digest`` (of ``donor.want``); then records up to the last.

    Returns {again: number of files to ask for anew} or, when all is there, {staging, site, names}.
    Raises LockedError, DriftError ``donor-changed``, StepError ``donor-damaged``, ``transfer-interrupted``,
    ``no-space``. What has arrived by then stays for the next run.
    """
    layout = Layout(str(params["root"]))
    with Lock(layout.lock, "bring packages of a donor"):
        return receive(layout, str(params["digest"]), requests, progress)


def receive(
    layout: Layout, digest: str, stream: Readable, progress: ProgressSink, expected: Tuple[int, int] = (0, 0)
) -> Dict[str, Any]:
    """As the op; the lock is held. ``expected``: files and bytes to come, where nobody else tells of their progress."""
    store = Store(layout)
    wish = store.load(digest)
    hashes = HashCache(str(layout.hashes))
    try:
        receiver = Receiver(store, wish, hashes, progress, *expected)
        receiver.run(stream)
        receiver.finish()
        store.save(digest, wish)
        if receiver.again:
            return {"again": len(receiver.again)}
        done = assemble(layout, wish, hashes, progress)
        store.clear(digest, wish)
        return done
    except OSError as error:
        raise write_error(error, str(layout.root)) from error
    finally:
        hashes.save()


class Receiver:
    """Puts the files of a stream into the store. ``again``: files that arrived otherwise than they were sent, or of
    which an earlier part was of another content."""

    def __init__(
        self, store: Store, wish: Wish, hashes: HashCache, progress: ProgressSink, files: int = 0, size: int = 0
    ) -> None:
        self.again: List[str] = []
        self._changed: List[str] = []
        self._damaged: List[str] = []
        self._progress = progress
        self._files, self._bytes = files, size  # to come; 0: another tells of them
        self._done_files = self._done_bytes = 0
        self._store = store
        self._wish = wish
        self._hashes = hashes
        os.makedirs(store.folder, exist_ok=True)

    def run(self, stream: Readable) -> None:
        """Read records up to the last one. Raises StepError ``transfer-interrupted`` where they end before it."""
        try:
            while True:
                kind, payload = next_record(stream)
                if kind == LAST:
                    problem = json.loads(payload)["problem"]
                    if problem:
                        raise _interrupted(str(problem))
                    return
                if kind == FILE:
                    head = json.loads(payload)
                    self._file(stream, int(head["file"]), int(head["offset"]))
        except EOFError:
            raise _interrupted("the other side went away") from None

    def finish(self) -> None:
        """Raises DriftError ``donor-changed`` or StepError ``donor-damaged``, naming the files."""
        if self._changed:
            raise DriftError(
                "donor-changed",
                f"files of the donor changed while they were copied: {some(self._changed)}",
                where=self._wish.manifest.venv,
                hint="let no installer run there, and provision again: what has arrived is kept",
            )
        if self._damaged:
            raise StepError(
                "donor-damaged",
                f"compiled files of the donor are not what their RECORD says: {some(self._damaged)}",
                where=self._wish.manifest.venv,
                hint="reinstall those packages there; if the change was meant, take it with --take-edited",
            )

    def _file(self, stream: Readable, number: int, offset: int) -> None:
        if not 0 <= number < len(self._wish.manifest.files):
            raise StepError("transfer-garbled", f"the donor sent file {number}, which nobody asked for")
        file = self._wish.manifest.files[number]
        partial = self._store.partial(file.sha256)
        digest, kept = _resume(partial, offset)
        with open(partial, "ab", buffering=0) as target:
            os.ftruncate(target.fileno(), kept)
            while True:
                kind, payload = next_record(stream)
                if kind == PACKED:
                    payload, kind = zlib.decompress(payload), DATA
                if kind != DATA:
                    break
                digest.update(payload)
                _write(target, payload)
                self._done_bytes += len(payload)
                self._tell(file.path)
            if kind != END:
                raise StepError("transfer-garbled", f"{shown(file.path)}: a file ends with a record of kind {kind!r}")
        end = json.loads(payload)
        self._done_files += 1
        self._tell(file.path, self._done_files == self._files)
        self._ended(number, file, partial, digest.hexdigest(), end["sha256"], end["problem"], kept == offset)

    def _tell(self, path: str, finished: bool = False) -> None:
        if self._files:
            done = Progress("transfer", path, self._done_bytes, self._bytes, self._done_files, self._files, finished)
            self._progress(done)

    def _ended(
        self, number: int, file: DonorFile, partial: str, here: str, there: str, problem: Optional[str], whole: bool
    ) -> None:
        """``here``: the hash of what arrived, ``there``: of what the donor read."""
        name = f"{shown(file.path)} of {self._wish.manifest.packages[file.owner].name}"
        if problem is None and here == there and here != file.sha256:
            if not file.recorded:
                problem = "it is another one than a moment before"
            elif SHARED_OBJECT_NAME.search(file.path) and not self._wish.manifest.take_edited:
                os.unlink(partial)
                self._damaged.append(f"{name} (another sha256)")
                return
            else:  # the overlay says so, which compares with RECORD again
                self._wish.edited[number] = here
        if problem is not None:
            os.unlink(partial)
            self._changed.append(f"{name} ({problem})")
            return
        if here != there or not whole:
            os.unlink(partial)
            self.again.append(name)
            return
        os.chmod(partial, file.mode | 0o400)
        os.rename(partial, self._store.path(here))
        self._hashes.remember(os.lstat(self._store.path(here)), here)
        self._wish.located[here] = self._store.path(here)


def _resume(partial: str, offset: int) -> Tuple[Any, int]:
    """The hash of the first ``offset`` bytes that are there already, and how many these really are."""
    digest, left = hashlib.sha256(), offset
    if offset:
        with open(partial, "rb") as stream:
            while left:
                chunk = stream.read(min(CHUNK, left))
                if not chunk:
                    break
                digest.update(chunk)
                left -= len(chunk)
    return digest, offset - left


def _write(target: Any, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        view = view[target.write(view) :]


def _interrupted(why: str) -> StepError:
    return StepError(
        "transfer-interrupted",
        f"the donor's files did not all arrive: {why}",
        hint="provision again: what has arrived is kept, and only the rest is sent",
    )
