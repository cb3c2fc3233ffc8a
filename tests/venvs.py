"""Small real venvs, hand-made wheels and plans for the tests of releases and steps."""

from __future__ import annotations

import base64
import difflib
import functools
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple, Union

from ddtree_deploy.codec import to_dict
from ddtree_deploy.patching.model import FilePatch, NewFile, PatchSet
from ddtree_deploy.plan.model import Action, Plan, Precondition

UV = shutil.which("uv") or str(Path(sys.executable).parent / "uv")
SITE = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"

ENGINE = "VERSION = '1.0'\n\ndef main():\n    print('engine', VERSION, __file__)\n"
PATCHED = ENGINE.replace("'1.0'", "'1.0-tree'")

State = Dict[str, Tuple[str, int, int, Optional[str], str]]


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    files: Dict[str, str],
    scripts: Optional[Dict[str, str]] = None,
    data: Optional[Dict[str, str]] = None,
    tag: str = "py3-none-any",
) -> Path:
    """A wheel: ``files`` (path in site-packages -> text), console ``scripts`` (name -> module:function) and ``data``
    (path below ``.data/data`` -> text)."""
    folder.mkdir(parents=True, exist_ok=True)
    escaped = name.replace("-", "_")
    info = f"{escaped}-{version}.dist-info"
    members = {path: text.encode() for path, text in files.items()}
    members.update({f"{escaped}-{version}.data/data/{path}": text.encode() for path, text in (data or {}).items()})
    members[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode()
    members[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    if scripts:
        lines = "".join(f"{script} = {target}\n" for script, target in scripts.items())
        members[f"{info}/entry_points.txt"] = f"[console_scripts]\n{lines}".encode()
    rows = [f"{path},{record_hash(content)},{len(content)}\n" for path, content in members.items()]
    members[f"{info}/RECORD"] = ("".join(rows) + f"{info}/RECORD,,\n").encode()
    path = folder / f"{escaped}-{version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            archive.writestr(member, content)
    return path


def record_hash(content: bytes) -> str:
    digest = hashlib.sha256(content).digest()
    return "sha256=" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def make_venv(path: Path) -> Path:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(path)
    return path


def make_filled_venv(path: Path, *wheels: Path) -> Path:
    """What ``make_venv`` and ``install`` make: made so once, then copied, for uv takes most of a second."""
    template = _filled_venv(path.name, wheels)
    if len(str(path)) > 100 or " " in str(path):  # the first line of scripts is another one there
        install(make_venv(path), *wheels)
        return path
    shutil.copytree(template, path, symlinks=True)
    old, new = str(template).encode(), str(path).encode()
    for file in [path / "pyvenv.cfg", *(path / "bin").iterdir()]:
        if not file.is_symlink():
            file.write_bytes(file.read_bytes().replace(old, new))
    for record in (path / SITE).glob("*.dist-info/RECORD"):
        rows = [row.split(",") for row in record.read_text().splitlines()]
        for row in rows:
            if row[0].startswith("../../../bin/"):
                content = (path / SITE / row[0]).read_bytes()
                row[1:] = [record_hash(content), str(len(content))]
        record.write_text("".join(",".join(row) + "\n" for row in rows))
    return path


@functools.cache
def _filled_venv(name: str, wheels: Tuple[Path, ...]) -> Path:
    path = make_venv(Path(tempfile.mkdtemp(prefix="venv-", dir=os.environ["DDTREE_TESTS_CACHE"])) / name)
    install(path, *wheels)
    return path


def install(path: Path, *wheels: Path) -> None:
    run([UV, "pip", "install", "--quiet", "--no-index", "--no-deps", "--python", str(path / "bin/python"), *wheels])


def run(command: List[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, **options)


def demo_wheels(folder: Path) -> Dict[str, Path]:
    """The packages of the tests: an engine with a console script, and two libraries."""
    return {
        "engine-1": make_wheel(
            folder,
            "engine",
            "1.0",
            {"engine/__init__.py": ENGINE},
            scripts={"engine": "engine:main"},
        ),
        "lib-1": make_wheel(folder, "some-lib", "1.0", {"some_lib/__init__.py": "VALUE = 1\n", "some_lib/old.py": ""}),
        "lib-2": make_wheel(
            folder,
            "some-lib",
            "2.0",
            {"some_lib/__init__.py": "VALUE = 2\n", "some_lib/new.py": ""},
            scripts={"some-lib": "some_lib:__doc__"},
            data={"share/some_lib/data.txt": "data\n"},
        ),
        "extra": make_wheel(folder, "extra", "1.0", {"extra.py": "EXTRA = True\n"}),
    }


def patch_set(before: str = ENGINE) -> PatchSet:
    """Changes one file of the tests' engine and adds one; ``before`` is what it takes the file to be."""
    lines = difflib.unified_diff(
        before.splitlines(True), PATCHED.splitlines(True), "a/engine/__init__.py", "b/engine/__init__.py"
    )
    patch = FilePatch("engine/__init__.py", "".join(lines), digest(before), digest(PATCHED), "0001-engine.patch")
    new = NewFile("engine/tree.py", "TREE = True\n", digest("TREE = True\n"))
    return PatchSet("engine-1.0", "engine", "1.0", [patch], [new], "p" * 64)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def tree_state(folder: Path) -> State:
    """Everything one can see of a tree but link counts and access times: kind, mode, mtime, link target, sha256."""
    state: State = {}
    for path in sorted([folder, *folder.rglob("*")]):
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode):
            kind, target, digest = "link", str(path.readlink()), ""
        elif stat.S_ISREG(info.st_mode):
            kind, target, digest = "file", None, sha256(path)
        else:
            kind, target, digest = "other", None, ""
        state[str(path.relative_to(folder))] = (kind, stat.S_IMODE(info.st_mode), info.st_mtime_ns, target, digest)
    return state


def link_counts(folder: Path) -> Dict[str, int]:
    return {str(path): path.lstat().st_nlink for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def mentions(folder: Path, needle: str) -> List[str]:
    """Files and symlinks below ``folder`` whose bytes hold ``needle``."""
    found = []
    for path in folder.rglob("*"):
        if path.is_symlink():
            if needle in str(path.readlink()):
                found.append(str(path))
        elif path.is_file() and needle.encode() in path.read_bytes():
            found.append(str(path))
    return found


def record(release_id: str, digest: str) -> Dict[str, Any]:
    return {
        "id": release_id,
        "inputs_digest": digest,
        "profile": "test",
        "created": "",
        "site_packages": SITE,
        "environment": {"SHIM": "{release}/lib/shim"},
    }


def clone_action(
    base: Path, release_id: str, digest: str, preconditions: Optional[List[Precondition]] = None
) -> Action:
    return Action(
        id="01-clone",
        step="clone",
        summary="clone",
        params={
            "base": str(base),
            "method": "hardlink",
            "site_packages": SITE,
            "record": record(release_id, digest),
        },
        preconditions=preconditions or [],
    )


def overlay_action(
    install: List[Tuple[str, str, List[str]]],
    remove: List[str],
    source: Dict[str, Any],
    wheels: Optional[List[Path]] = None,
    extra_files: Optional[List[Dict[str, Any]]] = None,
) -> Action:
    return Action(
        id="02-overlay",
        step="overlay",
        summary="overlay",
        params={
            "source": {"host": None, "location": None, **source},
            "site_packages": SITE,
            "install": [{"name": name, "version": version, "hashes": hashes} for name, version, hashes in install],
            "remove": remove,
            "extra_files": extra_files or [],
            "wheels": [{"sha256": sha256(wheel), "name": wheel.name} for wheel in wheels or []],
            "uv": {"path": UV},
            "blobs": [],
        },
    )


def patch_action(patch_set: PatchSet) -> Action:
    params = {"patch_set": to_dict(patch_set), "site_packages": SITE}
    return Action(id="03-patch", step="patch", summary="patch", params=params)


def activate_action(preconditions: Optional[List[Precondition]] = None) -> Action:
    return Action(id="09-activate", step="activate", summary="activate", preconditions=preconditions or [])


def make_plan(root: Path, base: Path, release_id: str, actions: List[Action], digest: str = "d" * 64) -> Dict[str, Any]:
    plan = Plan(
        host="local",
        root=str(root),
        base=str(base),
        profile="test",
        release_id=release_id,
        inputs_digest=digest,
        actions=actions,
    )
    return to_dict(plan)


def edit(path: Path, content: Union[str, bytes]) -> None:
    """Another content, as an editor writes it: a new file. The old one may be uv's cache's, too."""
    path.unlink()
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def remove(folder: Path) -> None:
    shutil.rmtree(folder)
