"""Builds the agent's zipapp on the controller: our agent-safe modules, pyelftools and packaging.

The bytes depend on the sources alone, so that their sha256 names the cached copy on every host. Building takes well
under a second and is done once a process, so nothing is cached here.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePosixPath

import ddtree_deploy

_PACKAGE = Path(ddtree_deploy.__file__).parent

SAFE_FILES = {
    "__init__.py",
    "children.py",
    "errors.py",
    "codec.py",
    "units.py",
    "versions.py",
    "plan/__init__.py",
    "plan/inputs.py",
    "plan/draft.py",
    "profiles/__init__.py",
}
SAFE_FOLDERS = {"agent", "donor", "facts", "steps", "release", "patching", "abi", "verify", "serve", "survey"}
CONTROLLER_FILES = {
    "agent/bundle.py",
    "donor/transfer.py",
    "patching/commands.py",
    "patching/export.py",
    "patching/series.py",
}
CONTROLLER_NAMES = {"report.py", "render.py"}  # in whatever folder
LIBRARIES = {"elftools": "pyelftools", "packaging": "packaging"}  # import name: distribution
_MAIN = b"from ddtree_deploy.agent.main import run\n\nrun()\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Bundle:
    data: bytes
    sha256: str


def is_agent_safe(path: PurePosixPath) -> bool:
    """Whether the file ``path`` (relative to our package) goes to the host; the rule of docs/architecture.md."""
    if str(path) in CONTROLLER_FILES or path.name in CONTROLLER_NAMES:
        return False
    return str(path) in SAFE_FILES or path.name == "model.py" or path.parts[0] in SAFE_FOLDERS


def agent_files() -> Iterator[tuple[PurePosixPath, Path]]:
    """The files of our package that go to the host, data files included: (path in the package, path on disk)."""
    for path in _files(_PACKAGE):
        relative = PurePosixPath(path.relative_to(_PACKAGE).as_posix())
        if is_agent_safe(relative):
            yield relative, path


@functools.lru_cache(maxsize=1)
def build_bundle() -> Bundle:
    """The zipapp's bytes and their sha256."""
    members: dict[str, bytes] = {"__main__.py": _MAIN}
    for relative, path in agent_files():
        members[f"ddtree_deploy/{relative}"] = path.read_bytes()
    for name, distribution in LIBRARIES.items():
        members.update(_library(name, distribution))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(members):
            info = zipfile.ZipInfo(name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix, also when built elsewhere
            info.external_attr = 0o644 << 16
            archive.writestr(info, members[name])
    data = buffer.getvalue()
    return Bundle(data, hashlib.sha256(data).hexdigest())


def _library(name: str, distribution: str) -> Iterator[tuple[str, bytes]]:
    """A pure Python package and its licence texts."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.origin is not None, f"{distribution} is one of our requirements"
    folder = Path(spec.origin).parent
    for path in _files(folder):
        yield f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()
    for file in metadata.files(distribution) or []:
        if "license" in file.name.lower() and ".dist-info" in str(file):
            yield f"licenses/{distribution}/{file.name}", Path(str(file.locate())).read_bytes()


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in {".pyc", ".pyi"}:
            yield path
