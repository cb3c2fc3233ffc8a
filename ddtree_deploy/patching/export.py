"""Write a patch set from an edited engine: what differs from the released wheel becomes patches and new files.

The result depends on the wheel, the tree and the names that the folder already has: a file that is in its series keeps
its patch's name, place and introduction, so that a patch set under version control shows only what was worked on.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import Dict, List

import yaml

from ddtree_deploy.errors import InputError
from ddtree_deploy.patching.apply_diff import apply_diff, parse_diff
from ddtree_deploy.patching.make_diff import make_diff
from ddtree_deploy.patching.model import FilePatch, NewFile, PatchSet
from ddtree_deploy.patching.series import SERIES, check_unlisted, is_plain, named_patch_set, patch_set_digest
from ddtree_deploy.patching.wheel import Wheel
from ddtree_deploy.release.files import replace_file, shown
from ddtree_deploy.versions import equal_versions

_STEM = 100  # characters of a file's path in its patch's name
_JUNK_FOLDERS = {"__pycache__", "build", ".git", ".idea", ".vscode", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
_JUNK_SUFFIXES = (".pyc", ".pyo", ".so", ".o", ".orig", ".rej", ".swp", ".egg-info", "~", ".ddtree-new", ".ddtree-old")


def export(pristine_wheel: Path, edited_tree: Path, out: Path) -> PatchSet:
    """Compare ``edited_tree`` with the wheel and write the patch set to ``out``.

    ``edited_tree`` is a folder that holds the engine's package. Only the engine's own
    package counts; byte code, hidden files and build leftovers do not. Raises InputError:
    ``export-deleted``, ``export-binary``, ``export-link``, ``export-mode``, ``export-name``, ``export-nothing``,
    ``export-no-package``, ``export-version``, ``bad-wheel``, all before anything is written; ``series-unlisted`` for
    patches in ``out`` that nobody names; ``export-inside``, ``export-not-written`` for ``out`` itself.
    """
    with Wheel(pristine_wheel) as wheel:
        package = wheel.distribution.replace("-", "_")
        _check_tree(wheel, edited_tree, package)
        _check_place(out, edited_tree / package)
        old = named_patch_set(out) if (out / SERIES).is_file() else None
        introductions = {patch.path: _introduction(patch.diff) for patch in old.patches} if old else {}
        sources = _sources(old)
        diffs: Dict[str, FilePatch] = {}
        new: List[NewFile] = []
        released = wheel.files(package)
        _check_deleted(released, edited_tree)
        for path in released:
            before, after = wheel.read(path) or b"", (edited_tree / path).read_bytes()
            if before != after:
                diffs[path] = _patch(path, before, after, introductions.get(path, ""))
        added = _new_paths(edited_tree, package, set(released))
        _check_names([*diffs, *added])
        _check_modes(wheel, edited_tree, released, [*diffs, *added])
        for path in added:
            text = _utf8(path, (edited_tree / path).read_bytes())
            new.append(NewFile(path, text, _sha256(text.encode("utf-8")), sources.get(path, f"files/{path}")))
        if not diffs and not new:
            message = "the text of no file differs from the wheel's"
            raise InputError("export-nothing", message, where=str(edited_tree))
        patches = _named(diffs, old, package)
        digest = patch_set_digest(wheel.distribution, wheel.version, patches, new)
        result = PatchSet(out.resolve().name, wheel.distribution, wheel.version, patches, new, digest)
    _write(result, out, old)
    return result


def _check_tree(wheel: Wheel, tree: Path, package: str) -> None:
    if not (tree / package).is_dir():
        raise InputError(
            "export-no-package",
            f"no folder {package!r} here",
            where=str(tree),
            hint="give the site-packages folder (or venv) whose engine you edited",
        )
    for folder in tree.glob(f"{package}-*.dist-info"):
        version = folder.name[len(package) + 1 : -len(".dist-info")]
        if not equal_versions(version, wheel.version):
            raise InputError(
                "export-version",
                f"the tree holds {wheel.distribution} {version}, the wheel is {wheel.version}",
                where=str(tree),
                hint=f"give the wheel of {wheel.distribution} {version}",
            )


def _check_place(out: Path, package: Path) -> None:
    real = out.resolve()
    if package.resolve() in (real, *real.parents):
        raise InputError(
            "export-inside",
            "the patch set would be written into the engine, and be a part of the next export",
            where=str(out),
            hint="give a folder outside of it with --out",
        )


def _check_names(paths: List[str]) -> None:
    odd = next((path for path in paths if not is_plain(path)), None)
    if odd is not None:
        raise InputError(
            "export-name",
            f"a patch set cannot name {shown(odd)}",
            where=shown(odd),
            hint="rename it: no backslash, no control character, UTF-8, of a usual length",
        )


def _check_modes(wheel: Wheel, tree: Path, released: List[str], paths: List[str]) -> None:
    """A patch set says nothing about modes. Where all files are executable, the file system keeps none."""

    def executable(path: str) -> bool:
        return bool((tree / path).stat().st_mode & stat.S_IXUSR)

    became = [path for path in dict.fromkeys([*released, *paths]) if executable(path) and not wheel.executable(path)]
    if became and not all(map(executable, released)):
        raise InputError(
            "export-mode",
            f"{became[0]} is executable, which a patch set cannot say",
            where=became[0],
            hint="chmod -x it, and let what runs it name its interpreter",
            details={"executable": became},
        )


def _check_deleted(released: List[str], tree: Path) -> None:
    deleted = [path for path in released if not (tree / path).is_file()]
    if deleted:
        more = f" and {len(deleted) - 1} more" if len(deleted) > 1 else ""
        raise InputError(
            "export-deleted",
            f"released files are missing from the tree: {deleted[0]}{more}",
            where=str(tree),
            hint="a patch set cannot delete files: restore them, or empty them of what you do not want",
            details={"deleted": deleted},
        )


def _patch(path: str, before: bytes, after: bytes, introduction: str) -> FilePatch:
    _utf8(path, before)
    _utf8(path, after)
    text = introduction + make_diff(path, before, after)
    if apply_diff(parse_diff(text), before) != after:
        raise AssertionError(f"the diff of {path} does not give back the edited file")
    return FilePatch(path, text, _sha256(before), _sha256(after))


def _named(diffs: Dict[str, FilePatch], old: PatchSet | None, package: str) -> List[FilePatch]:
    """Known files in their old order under their old names, then the others by path with the next numbers."""
    once = {patch.name: patch.path for patch in reversed(old.patches)} if old else {}
    names = {p.path: p.name for p in old.patches if p.path in diffs and once[p.name] == p.path} if old else {}
    number = max((int(n[:4]) for n in (p.name for p in old.patches) if n[:4].isdigit()), default=0) if old else 0
    for path in sorted(set(diffs) - set(names)):
        number += 1
        names[path] = f"{number:04d}-{_stem(path, package)}.patch"
    return [FilePatch(p, diffs[p].diff, diffs[p].sha256_before, diffs[p].sha256_after, n) for p, n in names.items()]


def _sources(old: PatchSet | None) -> Dict[str, str]:
    """Where the folder has the new files that it knows. A source that two of them share is the first one's."""
    once = {new.source: new.path for new in reversed(old.new_files)} if old else {}
    return {path: source for source, path in once.items()}


def _stem(path: str, package: str) -> str:
    """``sglang/srt/speculative/spec_info.py`` -> ``speculative-spec_info``."""
    short = path.removeprefix(f"{package}/").removeprefix("srt/").removesuffix(".py")
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in short)[-_STEM:]


def _introduction(diff: str) -> str:
    """What stands before the diff's header: free text about the patch."""
    end = 0 if diff.startswith("--- ") else diff.find("\n--- ") + 1
    return diff[:end]


def _new_paths(tree: Path, package: str, released: set[str]) -> List[str]:
    found = []
    for path in sorted((tree / package).rglob("*")):
        relative = path.relative_to(tree)
        hidden = any(part in _JUNK_FOLDERS or part.startswith(".") for part in relative.parts)
        if path.is_symlink() and not hidden and not path.is_file():
            raise InputError(
                "export-link",
                f"{shown(relative)} is a link to a folder, or to nothing: what is behind it would be left out",
                where=shown(path),
                hint="put files in its place, or take it away",
            )
        if path.is_file() and not hidden and not path.name.endswith(_JUNK_SUFFIXES):
            found.append(relative.as_posix())
    return [path for path in found if path not in released]


def _utf8(path: str, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            "export-binary", f"{path} is not UTF-8 text; a patch set holds text only", where=path
        ) from None


def _write(result: PatchSet, out: Path, old: PatchSet | None) -> None:
    """Each file whole, the series last: after a kill another export goes on from what there is."""
    files = {patch.name: patch.diff for patch in result.patches}
    files.update({new.source: new.content for new in result.new_files})
    files[SERIES] = _series_text(result)
    known = {patch.name for patch in old.patches} | {new.source for new in old.new_files} if old is not None else set()
    check_unlisted(out, known | set(files))
    try:
        for relative, text in files.items():
            target = out / relative
            _check_folder(target.parent, out)
            target.parent.mkdir(parents=True, exist_ok=True)
            replace_file(target, text.encode("utf-8"))
        for relative in known - set(files):
            if (out / relative).is_file():
                _check_folder((out / relative).parent, out)
                (out / relative).unlink()
    except OSError as error:
        raise InputError(
            "export-not-written",
            f"cannot write the patch set: {error.strerror or error}",
            where=str(error.filename or out),
            hint="give a folder that may be written, with space in it, and export again",
        ) from error


def _check_folder(folder: Path, out: Path) -> None:
    root, real = out.resolve(), folder.resolve()
    if root not in (real, *real.parents):
        raise OSError(errno.EXDEV, "a link leads out of its folder", str(folder))
    if real.is_dir() and not os.access(real, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def _series_text(result: PatchSet) -> str:
    document = {
        "engine": {"distribution": result.distribution, "version": result.version},
        "patches": [
            {"path": p.path, "patch": p.name, "sha256_before": p.sha256_before, "sha256_after": p.sha256_after}
            for p in result.patches
        ],
        "new_files": [{"path": n.path, "source": n.source, "sha256": n.sha256} for n in result.new_files],
    }
    heading = "# Written by 'ddtree-deploy patches export'. Paths are relative to site-packages.\n"
    return heading + yaml.safe_dump(document, sort_keys=False, width=200)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
