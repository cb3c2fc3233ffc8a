"""Read a patch set from its folder: ``series.yaml``, the patches and new files it names. Errors have file:line."""

from __future__ import annotations

import contextlib
import hashlib
import re
import stat
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, List, Optional, Set

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory.yaml_lines import Document, KeyPath, read_yaml
from ddtree_deploy.patching.apply_diff import DiffError, parse_diff
from ddtree_deploy.patching.model import FilePatch, NewFile, PatchSet
from ddtree_deploy.patching.transaction import NEW_SUFFIX, OLD_SUFFIX
from ddtree_deploy.resources import data_dir

SERIES = "series.yaml"
_MAX_BYTES = 16 << 20  # of a patch or a new file
_NAME_BYTES, _PATH_BYTES = 240, 1024  # a name gets a suffix while its file is replaced
_EDITOR_LEFTOVERS = (".orig", ".rej", ".pyc", ".swp", "~")

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Engine(_Strict):
    distribution: str = Field(min_length=1)
    version: str = Field(min_length=1)


class _Patch(_Strict):
    path: str
    patch: str
    sha256_before: Sha256
    sha256_after: Sha256


class _New(_Strict):
    path: str
    source: str
    sha256: Sha256


class _Series(_Strict):
    engine: _Engine
    patches: List[_Patch] = []
    new_files: List[_New] = []


def patch_sets() -> List[str]:
    """Names of the patch sets that come with the project."""
    return sorted(path.parent.name for path in data_dir("patches").glob(f"*/{SERIES}"))


def load_patch_set(path_or_name: str) -> PatchSet:
    """The patch set of that name (see ``patch_sets``), or in that folder. Raises InputError (exit 3)."""
    folder = _folder(path_or_name)
    document = read_yaml(folder / SERIES, "patch series", verbatim=frozenset({"version"}))
    series = _validated(document)
    if not series.patches and not series.new_files:
        raise InputError("series-empty", "the patch series names no patch and no new file", where=document.where())
    _check_paths(series, document)
    patches = [_load_patch(folder, item, document, ("patches", i)) for i, item in enumerate(series.patches)]
    new_files = [_load_new(folder, item, document, ("new_files", i)) for i, item in enumerate(series.new_files)]
    check_unlisted(folder, {p.patch for p in series.patches} | {n.source for n in series.new_files})
    name = folder.resolve().name
    return PatchSet(
        name=name,
        distribution=series.engine.distribution,
        version=series.engine.version,
        patches=patches,
        new_files=new_files,
        digest=patch_set_digest(series.engine.distribution, series.engine.version, patches, new_files),
    )


def named_patch_set(folder: Path) -> PatchSet:
    """What the series in ``folder`` names, whatever became of the files, for ``export``, which writes them anew: diffs
    that cannot be read are empty, as are all contents. Raises InputError for a series that cannot be read."""
    document = read_yaml(folder / SERIES, "patch series", verbatim=frozenset({"version"}))
    series = _validated(document)
    _check_paths(series, document)
    patches, new_files = [], []
    for index, patch in enumerate(series.patches):
        _check_relative(patch.patch, document.where(("patches", index, "patch")))
        diff = ""
        with contextlib.suppress(InputError):
            diff, _ = _text(folder, patch.patch, "")
        patches.append(FilePatch(patch.path, diff, patch.sha256_before, patch.sha256_after, patch.patch))
    for index, new in enumerate(series.new_files):
        _check_relative(new.source, document.where(("new_files", index, "source")))
        new_files.append(NewFile(new.path, "", new.sha256, new.source))
    engine = series.engine
    return PatchSet(folder.resolve().name, engine.distribution, engine.version, patches, new_files)


def patch_set_digest(distribution: str, version: str, patches: List[FilePatch], new_files: List[NewFile]) -> str:
    """sha256 (hex) of the engine, and of every path with the hashes of what it was and becomes, in order."""
    lines = [f"{distribution} {version}"]
    lines += [f"patch {p.path} {p.sha256_before} {p.sha256_after}" for p in patches]
    lines += [f"new {n.path} {n.sha256}" for n in new_files]
    return hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()


def _folder(path_or_name: str) -> Path:
    """A name without a slash is first one of ours, then a folder here."""
    shipped = data_dir("patches") / path_or_name
    if "/" not in path_or_name and (shipped / SERIES).is_file():
        return shipped
    path = Path(path_or_name).expanduser()
    if path.is_file() and path.name == SERIES:
        return path.parent
    if (path / SERIES).is_file():
        return path
    names = ", ".join(patch_sets()) or "none"
    if path.is_dir():
        raise InputError("no-patch-set", f"no {SERIES} in this folder", where=path_or_name, hint=f"shipped: {names}")
    raise InputError(
        "no-patch-set",
        f"no patch set {path_or_name!r}",
        where=path_or_name,
        hint=f"give a folder with a {SERIES}, or one of those that come with the project: {names}",
    )


def _validated(document: Document) -> _Series:
    try:
        return _Series.model_validate(document.value)
    except ValidationError as failure:
        errors = [_error(document, item) for item in sorted(failure.errors(), key=_unknown_first)]
        errors[0].details["errors"] = [error.to_dict() for error in errors[1:]]
        raise errors[0] from None


def _unknown_first(item: Any) -> bool:
    """A misspelt key is also a missing one; the misspelling is what to report."""
    return bool(item["type"] != "extra_forbidden")


def _error(document: Document, item: Any) -> InputError:
    path: KeyPath = tuple(item["loc"])
    name = ".".join(str(part) for part in path) or "the file"
    if item["type"] == "extra_forbidden":
        return InputError("series-unknown-key", f"unknown key {name!r}", where=document.where(path, key=True))
    if item["type"] == "missing":
        return InputError("series-missing-key", f"{name!r} is missing", where=document.where(path))
    message = item["msg"]
    if item["type"] == "string_pattern_mismatch":
        message = f"expected a sha256 (64 lower-case hex digits), found {item['input']!r}"
    return InputError("series-value", f"{name}: {message}", where=document.where(path))


def _check_paths(series: _Series, document: Document) -> None:
    seen: dict[str, str] = {}
    entries: list[tuple[str, KeyPath]] = [(p.path, ("patches", i, "path")) for i, p in enumerate(series.patches)]
    entries += [(n.path, ("new_files", i, "path")) for i, n in enumerate(series.new_files)]
    for path, at in entries:
        _check_relative(path, document.where(at))
        if path.split("/")[0].endswith(".dist-info") or path.endswith((NEW_SUFFIX, OLD_SUFFIX)):
            raise InputError(
                "series-path",
                f"{path} is not the engine's: metadata and temporary files are the installer's and ours",
                where=document.where(at),
            )
        if path in seen:
            raise InputError(
                "series-duplicate", f"{path} is named twice, first at {seen[path]}", where=document.where(at)
            )
        seen[path] = document.where(at)
    for path, where in seen.items():
        inside = next((other for other in seen if other.startswith(path + "/")), None)
        if inside:
            raise InputError("series-duplicate", f"{path} is a file here and the folder of {inside}", where=where)


def _check_relative(path: str, where: str) -> None:
    """A POSIX path below its root, in its one normal spelling."""
    if not is_plain(path):
        raise InputError(
            "series-path",
            f"{path!r} is not a plain relative path",
            where=where,
            hint="write it with forward slashes, relative to site-packages (sources: to the patch set's folder), "
            f"without '..', '.' or '//', in names of at most {_NAME_BYTES} bytes",
        )


def is_plain(path: str) -> bool:
    """Whether a patch set may name ``path``: relative, in its normal spelling, in characters that can be printed."""
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or re.match(r"^[A-Za-z]:", path):
        return False
    if any(part in ("", ".", "..") or len(part.encode("utf-8")) > _NAME_BYTES for part in parts):
        return False
    return len(path.encode("utf-8")) <= _PATH_BYTES


def _load_patch(folder: Path, item: _Patch, document: Document, at: KeyPath) -> FilePatch:
    text, file = _text(folder, item.patch, document.where((*at, "patch")))
    try:
        diff = parse_diff(text)
    except DiffError as error:
        raise InputError("bad-diff", error.message, where=f"{file}:{error.line}") from None
    for found in (diff.old_path, diff.new_path):
        if found != item.path:
            raise InputError(
                "series-path",
                f"the series says {item.path}, but {item.patch} is a diff of {found}",
                where=document.where((*at, "path")),
            )
    if item.sha256_before == item.sha256_after:
        raise InputError(
            "series-value",
            "sha256_before and sha256_after are the same: the patch would change nothing",
            where=document.where((*at, "sha256_after")),
        )
    return FilePatch(item.path, text, item.sha256_before, item.sha256_after, PurePosixPath(item.patch).name)


def _load_new(folder: Path, item: _New, document: Document, at: KeyPath) -> NewFile:
    text, file = _text(folder, item.source, document.where((*at, "source")))
    found = hashlib.sha256(text.encode("utf-8")).hexdigest()
    if found != item.sha256:
        raise InputError(
            "series-hash",
            f"{file} has sha256 {found}, the series says {item.sha256}",
            where=document.where((*at, "sha256")),
            hint="the file was changed after the export: run 'patches export' again, or restore it",
        )
    return NewFile(item.path, text, item.sha256, item.source)


def _text(folder: Path, relative: str, where: str) -> tuple[str, Path]:
    _check_relative(relative, where)
    file = folder / relative
    try:
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _MAX_BYTES:
            content = file.read_bytes()
        else:
            odd = f"over {_MAX_BYTES >> 20} MiB" if stat.S_ISREG(status.st_mode) else "not a file"
            raise InputError("series-file", f"{file} is {odd}", where=where, hint="is it the file that you meant?")
    except OSError as error:
        raise InputError("series-file", f"cannot read {file}: {error.strerror}", where=where) from None
    if folder.resolve() not in file.resolve().parents:
        raise InputError("series-path", f"{relative} leads out of the patch set's folder", where=where)
    try:
        return content.decode("utf-8"), file
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError("not-utf8", "the file is not UTF-8", where=f"{file}:{line}") from None


def check_unlisted(folder: Path, names: Set[str]) -> None:
    """A patch or a new file that the series does not name would be left out silently. Raises ``series-unlisted``."""
    listed = {folder / name for name in names}
    present = list(folder.glob("*.patch")) + [p for p in (folder / "files").rglob("*") if p.is_file()]
    stray: Optional[Path] = next((p for p in sorted(present) if p not in listed and not _junk(p)), None)
    if stray is not None:
        raise InputError(
            "series-unlisted",
            f"{stray.relative_to(folder)} is in the folder but not in {SERIES}",
            where=str(folder / SERIES),
            hint="list it or delete it; 'patches export' writes folder and series together",
        )


def _junk(path: Path) -> bool:
    return path.name.startswith(".") or "__pycache__" in path.parts or path.name.endswith(_EDITOR_LEFTOVERS)
