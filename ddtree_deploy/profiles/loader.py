"""Reading profiles: YAML and lock to :class:`Profile`, with file:line for everything that is wrong."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Optional, Sequence

from packaging.utils import canonicalize_name

from ddtree_deploy.codec import dumps
from ddtree_deploy.errors import InputError
from ddtree_deploy.inventory import arguments
from ddtree_deploy.inventory.validation import Finding, report, validate
from ddtree_deploy.inventory.yaml_lines import Document, KeyPath, read_text, read_yaml
from ddtree_deploy.named_files import find_named
from ddtree_deploy.profiles.file import VERBATIM, ExtraFileEntry, ProfileFile
from ddtree_deploy.profiles.lock import parse_lock
from ddtree_deploy.profiles.model import ExtraFile, Profile
from ddtree_deploy.resources import data_dir
from ddtree_deploy.versions import equal_versions


def load_profile(name_or_path: str | Path, search: Sequence[Path] = (), locks: Optional[Path] = None) -> Profile:
    """A shipped profile, or a user's own.

    A name is looked for as ``NAME.yaml`` in the ``search`` folders and then among the shipped ones; a path (with a
    slash or ``.yaml``) is relative to the ``search`` folders, else to the working folder. A profile without a lock of
    its own takes ``<locks>/<name>.lock`` if it was made from the same requirements (``locking.py``); otherwise it has
    no packages. Raises InputError: ``unknown-profile``, ``profile-*``, ``lock-*``, and those of YAML files.
    """
    path = find_profile(name_or_path, search)
    document = read_yaml(path, "profile", VERBATIM)
    file = validate(ProfileFile, document)
    findings = _check(file, path)
    if findings:
        raise report(findings, document)
    profile = Profile(
        name=file.name,
        description=file.description or "",
        engine=canonicalize_name(file.engine),
        engine_version=file.engine_version,
        abi_tag=file.abi_tag,
        requires_python=file.requires_python,
        machine=file.machine,
        patch_set=file.patch_set,
        packages=[],
        lock_sha256="",
        min_driver_cuda=file.min_driver_cuda,
        min_glibc=file.min_glibc,
        system_libraries=file.system_libraries,
        extra_files=_extra_files(file.extra_files, document),
        environment=file.environment,
        engine_arguments=arguments.to_list(file.engine_arguments),
        needs_index=file.needs_index,
        gpu=file.gpu,
        requirements=file.requirements,
        overrides=file.overrides,
        constraints=_constraints(file, document),
        path=str(path),
    )
    if file.lock is not None:
        lock = _beside(document, file.lock, ("lock",), "lock")
        return with_lock(profile, _lock_text(lock), lock, file.abi)
    made = locks / f"{file.name}.lock" if locks is not None else None
    if made is not None and made.exists():
        text = _lock_text(made)
        if text.startswith(recipe_line(profile)):
            return with_lock(profile, text, made, file.abi)
    return _digested(profile)


def _lock_text(path: Path) -> str:
    """With the line ends that it was made with: git and editors may turn them into CRLF, and it is the same lock."""
    return read_text(path, "lock").replace("\r\n", "\n")


def with_lock(profile: Profile, text: str, path: Path, abi: Optional[dict[str, str]] = None) -> Profile:
    """``profile`` with the packages of the lock ``text`` that was read from ``path``."""
    tags = abi if abi is not None else _abi_of(profile)
    packages = parse_lock(text, path, tags)
    engine = [package for package in packages if package.name == profile.engine]
    if not any(equal_versions(package.version, profile.engine_version) for package in engine):
        found = engine[0].version if engine else "none"
        message = f"profile {profile.name} is for {profile.engine} {profile.engine_version}, the lock has {found}"
        raise InputError("profile-engine-version", message, where=str(path))
    return _digested(replace(profile, packages=packages, lock_sha256=hashlib.sha256(text.encode()).hexdigest()))


def recipe_line(profile: Profile) -> str:
    """First line of a lock that was made for ``profile``: tells whether its requirements have changed since."""
    recipe = dumps([profile.requirements, profile.overrides, profile.constraints, profile.requires_python])
    return f"# recipe sha256:{hashlib.sha256(recipe.encode()).hexdigest()}\n"


def find_profile(name_or_path: str | Path, search: Sequence[Path] = ()) -> Path:
    """The file of a profile. Raises InputError ``unknown-profile`` with the names that are known."""
    return find_named("profile", name_or_path, [*search, data_dir("overlays")], _is_profile)


def _is_profile(path: Path) -> bool:
    try:
        return any(line.startswith("engine_version:") for line in read_text(path, "profile").splitlines())
    except InputError:
        return False


def _check(file: ProfileFile, path: Path) -> list[Finding]:
    findings = []
    if file.name != path.stem:
        message = f"expected {path.stem!r}, the name of its file, found {file.name!r}"
        findings.append(Finding("profile-name", message, ("name",)))
    if file.lock is None and not file.requirements:
        message = "neither a lock nor requirements to make one from"
        findings.append(Finding("profile-no-packages", message, ("lock",), "name a lock file, or list requirements"))
    if file.lock is not None and file.requirements:
        message = "both a lock and requirements"
        findings.append(Finding("profile-two-sources", message, ("requirements",), "keep one; lock: null uses these"))
    if file.gpu == (file.abi_tag == "cpu"):
        message = f"abi_tag {file.abi_tag} does not go with gpu: {str(file.gpu).lower()}"
        findings.append(Finding("bad-abi-tag", message, ("abi_tag",)))
    return findings


def _beside(document: Document, name: str, key: KeyPath, what: str) -> Path:
    """A file or folder that the profile names: beside it, or a shipped one."""
    for folder in (document.path.parent, data_dir("overlays")):
        path = folder / Path(name).expanduser()
        if path.exists():
            return path
    raise report([Finding("profile-file-missing", f"the {what} {name!r} does not exist", key)], document)


def _constraints(file: ProfileFile, document: Document) -> list[str]:
    if file.constraints is None:
        return []
    path = _beside(document, file.constraints, ("constraints",), "lock")
    return [
        f"{package.name}=={package.version}" + (f" ; {package.marker}" if package.marker else "")
        for package in parse_lock(read_text(path, "lock"), path)
        if not any(fnmatchcase(package.name, canonicalize_name(pattern)) for pattern in file.unconstrained)
    ]


def _extra_files(entries: list[ExtraFileEntry], document: Document) -> list[ExtraFile]:
    files: dict[str, ExtraFile] = {}
    for index, entry in enumerate(entries):
        at: KeyPath = ("extra_files", index)
        source = _beside(document, entry.source, (*at, "source"), "file").resolve()
        found = {entry.path: source}
        if source.is_dir():
            paths = sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
            found = {f"{entry.path}/{path.relative_to(source).as_posix()}": path for path in paths}
        if not found:
            raise report([Finding("profile-file-missing", "the folder is empty", (*at, "source"))], document)
        for path, place in found.items():
            if path in files:
                raise report([Finding("bad-value", f"{path} is there twice", (*at, "path"))], document)
            try:
                digest = hashlib.sha256(place.read_bytes()).hexdigest()
            except OSError as error:
                finding = Finding("profile-file-missing", f"{place} cannot be read: {error.strerror}", (*at, "source"))
                raise report([finding], document) from None
            files[path] = ExtraFile(path, str(place), digest, entry.mode if entry.mode is not None else 0o644)
    return list(files.values())


def _abi_of(profile: Profile) -> dict[str, str]:
    assert profile.path is not None
    return validate(ProfileFile, read_yaml(Path(profile.path), "profile", VERBATIM)).abi


def _digested(profile: Profile) -> Profile:
    """Places on this machine do not count: the same contents are the same profile everywhere."""
    plain = replace(
        profile,
        digest="",
        description="",
        path=None,
        extra_files=[replace(extra, source="") for extra in profile.extra_files],
    )
    return replace(profile, digest=hashlib.sha256(dumps(plain).encode()).hexdigest())
