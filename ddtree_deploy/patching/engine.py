"""Check, apply and reverse a patch set on an installed engine. Standard library only (agent-safe).

A file is as released, as patched, or refused; nothing in between is guessed at. ``apply`` and ``reverse`` compute and
verify every result in memory before the first file changes, and put back what they changed if they cannot finish.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.patching.apply_diff import DiffError, HunkMismatch, apply_diff, parse_diff
from ddtree_deploy.patching.explain import explain_edited, render_state
from ddtree_deploy.patching.installation import Installation, find_installation
from ddtree_deploy.patching.model import FilePatch, FileState, NewFile, PatchOutcome, PatchSet
from ddtree_deploy.patching.record import Record
from ddtree_deploy.patching.transaction import NotRestored, drop_bytecode, remove_empty, replace_files
from ddtree_deploy.release.files import record_hash
from ddtree_deploy.release.record import is_whole
from ddtree_deploy.versions import same_version

STATE_FILE = "ddtree-patches.json"  # in the engine's dist-info: what is applied, and RECORD's lines from before

Released = Callable[[str], Optional[bytes]]


def check(patch_set: PatchSet, site_packages: Path, released: Optional[Released] = None) -> List[FileState]:
    """The state of every file of the set, in its order. ``released`` gives a released file's content, where known.

    Raises InputError: ``no-engine``, ``engine-twice``, ``engine-editable``, ``engine-version``, ``path-escapes``,
    ``bad-patch-set`` (a patch that does not turn the released file into what ``sha256_after`` says).
    """
    installation = _installation(patch_set, site_packages)
    record = _record_of(installation)
    patches = [_patch_state(patch, installation, record, released) for patch in patch_set.patches]
    return patches + [_new_state(new, installation) for new in patch_set.new_files]


def apply(patch_set: PatchSet, site_packages: Path, released: Optional[Released] = None) -> PatchOutcome:
    """Bring every file of the set to its patched content, or none. Files already there are left alone.

    RECORD gets the new hashes and the new files; byte code of changed modules is dropped. Raises what ``check`` raises,
    and InputError ``file-edited`` with the explanation of every file that stops it.
    """
    installation, states = _ready(patch_set, site_packages, released, "apply")
    record = _record_of(installation)
    saved = _saved_lines(installation)
    wanted: Dict[str, bytes] = {}
    changed: List[str] = []
    for patch in patch_set.patches:
        target = installation.site_packages / patch.path
        content = target.read_bytes()
        if states[patch.path].state == "pristine":
            content = _result(patch, content)
            changed.append(patch.path)
        wanted[patch.path] = content
    for new in patch_set.new_files:
        wanted[new.path] = new.content.encode("utf-8")
        if states[new.path].state == "pristine":
            changed.append(new.path)
    unchanged = [path for path in wanted if path not in changed]
    for path, content in wanted.items():
        if record.hash(path) != record_hash(content):
            saved.setdefault(path, record.line(path))
            record.set_content(path, content)
    contents: Dict[str, Optional[bytes]] = {path: wanted[path] for path in changed}
    state = _state_document(patch_set.name, patch_set.digest, saved)
    _commit(patch_set, installation, contents, record, state)
    return PatchOutcome(changed, unchanged)


def reverse(patch_set: PatchSet, site_packages: Path, released: Optional[Released] = None) -> PatchOutcome:
    """Bring every file of the set back to its released content and RECORD to what it was. Errors as ``apply``."""
    installation, states = _ready(patch_set, site_packages, released, "reverse")
    record = _record_of(installation)
    saved = _saved_lines(installation)
    changes: Dict[str, Optional[bytes]] = {}
    for patch in patch_set.patches:
        content = (installation.site_packages / patch.path).read_bytes()
        if states[patch.path].state == "applied":
            content = _unresult(patch, content)
            changes[patch.path] = content
        _restore_line(record, patch.path, saved, content)
    for new in patch_set.new_files:
        if states[new.path].state == "applied":
            changes[new.path] = None
        _restore_line(record, new.path, saved, None)
    _commit(patch_set, installation, changes, record, _state_of_others(patch_set, installation, saved), undo=True)
    for new in patch_set.new_files:  # a folder that a killed run had made, and not filled
        remove_empty(_target(installation, new.path).parent)
    return PatchOutcome(list(changes), [path for path in _paths(patch_set) if path not in changes])


def applied_patch_set(installation: Installation) -> Optional[Tuple[str, str]]:
    """Name and digest of the patch set that was last applied by us, or None."""
    document = _state(installation)
    return (str(document.get("patch_set")), str(document["digest"])) if document.get("digest") else None


def _installation(patch_set: PatchSet, site_packages: Path) -> Installation:
    installation = find_installation(site_packages, patch_set.distribution)
    if installation.editable is not None:
        raise InputError(
            "engine-editable",
            f"{patch_set.distribution} is an editable install of {installation.editable}",
            where=str(site_packages),
            hint="a patch set fits the released wheel only; install the engine from its wheel",
        )
    if not same_version(installation.version, patch_set.version):
        raise InputError(
            "engine-version",
            f"patch set {patch_set.name} is for {patch_set.distribution} {patch_set.version}, "
            f"installed is {installation.version}",
            where=str(site_packages),
            hint=f"install {patch_set.distribution}=={patch_set.version}, or bring a patch set for that one",
        )
    return installation


def _ready(
    patch_set: PatchSet, site_packages: Path, released: Optional[Released], verb: str
) -> Tuple[Installation, Dict[str, FileState]]:
    states = check(patch_set, site_packages, released)
    installation = _installation(patch_set, site_packages)
    refused = [state for state in states if state.state not in ("pristine", "applied")]
    if refused:
        count = "1 file" if len(refused) == 1 else f"{len(refused)} files"
        raise InputError(
            "file-edited",
            f"cannot {verb} {patch_set.name}: {count} neither as released nor as patched\n"
            + "\n".join(render_state(state) for state in refused),
            where=str(site_packages),
            hint=_hint(installation, patch_set),
            details={"files": [state.path for state in refused]},
        )
    return installation, {state.path: state for state in states}


def _hint(installation: Installation, patch_set: PatchSet) -> str:
    before = applied_patch_set(installation)
    if before is not None and before[1] != patch_set.digest:
        return f"another edition of the patch set ({before[0]}, digest {before[1][:12]}) is applied; reverse it first"
    return (
        "nothing was changed; reinstall the engine to get the released files back, "
        "or keep your edits with 'patches export' as a patch set of your own"
    )


def _target(installation: Installation, path: str) -> Path:
    """The file on disk; InputError where a folder on the way is a link that leads out of site-packages."""
    root = installation.site_packages.resolve()
    target = installation.site_packages / path
    parent = target.parent
    while not parent.exists():
        parent = parent.parent
    resolved = parent.resolve()
    if resolved != root and root not in resolved.parents:
        raise InputError(
            "path-escapes",
            f"{path} leads to {resolved}, outside of the environment",
            where=str(installation.site_packages),
            hint="the engine's folder is a link; give the environment that holds the files",
        )
    return target


def _patch_state(
    patch: FilePatch, installation: Installation, record: Record, released: Optional[Released]
) -> FileState:
    target = _target(installation, patch.path)
    if not target.exists():
        return FileState(patch.path, "patch", "missing", note="The released file is not there.")
    if not target.is_file():
        return FileState(patch.path, "patch", "edited", note="Something that is not a file is in its place.")
    content = target.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    if digest == patch.sha256_before:
        _result(patch, content)
        return FileState(patch.path, "patch", "pristine", digest)
    if digest == patch.sha256_after:
        _unresult(patch, content)
        return FileState(patch.path, "patch", "applied", digest)
    note = f"On disk sha256 {digest[:12]}, released {patch.sha256_before[:12]}, patched {patch.sha256_after[:12]}. "
    note += (
        "RECORD agrees with the file: it was installed like this, from another build than the released wheel."
        if record.hash(patch.path) == record_hash(content)
        else "It was edited after it was installed."
    )
    original = released(patch.path) if released is not None else None
    if original is not None and hashlib.sha256(original).hexdigest() != patch.sha256_before:
        original = None
        note += " The wheel that was given is not the one that the patch set is made for."
    elif original is None:
        note += " The released text is not at hand; '--wheel FILE' shows the edits."
    return explain_edited(patch, content, digest, note, original)


def _new_state(new: NewFile, installation: Installation) -> FileState:
    target = _target(installation, new.path)
    folder = target.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        return FileState(new.path, "new", "edited", note=f"{folder} is in the way: it is no folder.")
    if not target.exists() and not target.is_symlink():
        return FileState(new.path, "new", "pristine")
    if not target.is_file():
        return FileState(new.path, "new", "edited", note="Something that is not a file is in its place.")
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    if digest == new.sha256:
        return FileState(new.path, "new", "applied", digest)
    note = f"A file with other content is there: sha256 {digest[:12]}, ours is {new.sha256[:12]}."
    return FileState(new.path, "new", "edited", digest, note)


def _result(patch: FilePatch, content: bytes) -> bytes:
    return _computed(patch, content, backwards=False, wanted=patch.sha256_after)


def _unresult(patch: FilePatch, content: bytes) -> bytes:
    return _computed(patch, content, backwards=True, wanted=patch.sha256_before)


def _computed(patch: FilePatch, content: bytes, backwards: bool, wanted: str) -> bytes:
    where = patch.name or patch.path
    try:
        diff = parse_diff(patch.diff)
        result = apply_diff(diff.reversed() if backwards else diff, content)
    except (DiffError, HunkMismatch) as error:
        raise InputError("bad-patch-set", f"the patch does not fit the file it names: {error}", where=where) from error
    if hashlib.sha256(result).hexdigest() != wanted:
        raise InputError("bad-patch-set", f"the patch's result has not the sha256 {wanted[:12]}… it names", where=where)
    return result


def _record_of(installation: Installation) -> Record:
    content = None
    with contextlib.suppress(FileNotFoundError):
        content = installation.record.read_bytes()
    if content is None or not is_whole(content, installation.dist_info.name):
        raise InputError(
            "no-record",
            f"{installation.distribution} has no " + ("RECORD" if content is None else "whole RECORD: it was cut off"),
            where=str(installation.dist_info),
            hint="install the engine from its wheel with pip or uv",
        )
    return Record(content, f"{installation.dist_info.name}/RECORD")


def _restore_line(record: Record, path: str, saved: Dict[str, Optional[str]], content: Optional[bytes]) -> None:
    if path in saved:
        line = saved[path]
        if line is None:
            record.remove(path)
        else:
            record.set_line(path, line)
    elif content is None:
        record.remove(path)
    elif record.hash(path) != record_hash(content):
        record.set_content(path, content)


def _state(installation: Installation) -> Dict[str, object]:
    try:
        document = json.loads((installation.dist_info / STATE_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _saved_lines(installation: Installation) -> Dict[str, Optional[str]]:
    """RECORD's lines from before; of a state file that was written into, those that can be such."""
    lines = _state(installation).get("record_lines")
    if not isinstance(lines, dict):
        return {}
    kept = {path: line for path, line in lines.items() if line is None or isinstance(line, str)}
    return {path: line for path, line in kept.items() if line is None or not set("\r\n") & set(line)}


def _state_of_others(
    patch_set: PatchSet, installation: Installation, saved: Dict[str, Optional[str]]
) -> Optional[bytes]:
    """What stays of the state file without ``patch_set``: RECORD's lines from before another set, which is applied to
    other files of the engine; None where there is no other."""
    own = set(_paths(patch_set))
    others = {path: line for path, line in saved.items() if path not in own}
    if not others:
        return None
    last = applied_patch_set(installation)
    name, digest = last if last is not None and last[1] != patch_set.digest else ("", "")
    return _state_document(name, digest, others)


def _state_document(name: str, digest: str, saved: Dict[str, Optional[str]]) -> bytes:
    document = {"patch_set": name, "digest": digest, "record_lines": saved}
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode("utf-8")


def _commit(
    patch_set: PatchSet,
    installation: Installation,
    files: Dict[str, Optional[bytes]],
    record: Record,
    state: Optional[bytes],
    undo: bool = False,
) -> None:
    """Replace files, state file and RECORD in one transaction; nothing at all where nothing differs.

    RECORD's earlier lines outlive a kill: the state file gets them before RECORD changes, and loses them (``undo``)
    after it.
    """
    state_path = installation.dist_info / STATE_FILE
    state_name = f"{installation.dist_info.name}/{STATE_FILE}"
    targets = {path: _target(installation, path) for path in _paths(patch_set)}
    changes: Dict[Path, Optional[bytes]] = {targets[path]: content for path, content in files.items()}
    try:
        if state is None:
            record.remove(state_name)
        else:
            record.set_content(state_name, state)  # a killed run may have written the file, and not yet this
        first: Dict[Path, Optional[bytes]] = {}
        second: Dict[Path, Optional[bytes]] = {}
        if (state_path.read_bytes() if state_path.exists() else None) != state:
            first[state_path] = state
        if installation.record.read_bytes() != record.to_bytes():
            second[installation.record] = record.to_bytes()
        changes.update({**second, **first} if undo else {**first, **second})
        for path in files:  # first: byte code that cannot be removed must not be left beside other source
            drop_bytecode(targets[path])
        replace_files(changes, [*targets.values(), state_path, installation.record])
    except OSError as error:
        outcome, hint = "every file is as it was before", "check permissions and free space"
        if isinstance(error, NotRestored):
            outcome = f"and these could not be put back: {', '.join(str(path) for path in error.paths)}"
            hint += "; then 'patches apply' completes it, and 'patches reverse' undoes it"
        raise StepError(
            "patch-write",
            f"cannot write: {error.strerror}; {outcome}",
            where=str(error.filename or installation.site_packages),
            hint=hint,
        ) from error


def _paths(patch_set: PatchSet) -> List[str]:
    return [patch.path for patch in patch_set.patches] + [new.path for new in patch_set.new_files]
