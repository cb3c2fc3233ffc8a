"""The zipapp: what is in it, that it is the same each time, and that it runs on Python 3.9 with nothing else."""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from agent_process import AgentProcess

from ddtree_deploy.agent import bundle
from ddtree_deploy.agent.operations import OPERATIONS, STREAMS, find, find_stream

ALLOWED = {"elftools", "packaging"}


def members() -> list[str]:
    return zipfile.ZipFile(io.BytesIO(bundle.build_bundle().data)).namelist()


@functools.cache
def find_python(version: str) -> str | None:
    """``python3.9`` and the like on PATH, under pyenv, or among those that uv manages."""
    candidates = [shutil.which(f"python{version}")]
    roots = [Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"]
    roots.append(Path.home() / ".local" / "share" / "uv" / "python")
    for root in roots:
        with contextlib.suppress(PermissionError):
            candidates += [str(path) for path in sorted(root.glob(f"*{version}.*/bin/python{version}"))]
    return next((candidate for candidate in candidates if candidate and runs(candidate)), None)


def runs(python: str) -> bool:
    try:
        return subprocess.run([python, "-c", "import zlib"], capture_output=True).returncode == 0
    except OSError:
        return False


def test_same_sources_give_the_same_bytes() -> None:
    first = bundle.build_bundle()
    bundle.build_bundle.cache_clear()
    assert bundle.build_bundle() == first
    assert len(first.data) < 2_000_000


def test_only_agent_safe_files_are_in_it() -> None:
    ours = [PurePosixPath(name).relative_to("ddtree_deploy") for name in members() if name.startswith("ddtree_deploy/")]
    assert all(bundle.is_agent_safe(path) for path in ours)
    assert not [
        path for path in ours if path.parts[0] in {"cli", "transport"} or path.name in {"bundle.py", "report.py"}
    ]
    assert {PurePosixPath("agent/main.py"), PurePosixPath("facts/model.py"), PurePosixPath("plan/model.py")} <= set(
        ours
    )
    assert not [name for name in members() if name.endswith(".pyc")]


def test_licences_travel_with_the_libraries() -> None:
    assert {name.split("/")[1] for name in members() if name.startswith("licenses/")} == {"packaging", "pyelftools"}


def test_every_operations_module_is_in_it() -> None:
    names = set(members())
    targets = [*OPERATIONS.values(), *STREAMS.values()]
    assert STREAMS and not OPERATIONS.keys() & STREAMS.keys()
    assert [target for target in targets if target.partition(":")[0].replace(".", "/") + ".py" not in names] == []


def test_every_operation_is_there() -> None:
    for op in OPERATIONS:
        assert callable(find(op))
    for op in STREAMS:
        assert callable(find_stream(op))


def imports(tree: ast.AST, step: bool = False) -> list[tuple[int, str]]:
    """Modules that ``tree`` imports at run time on the host, wherever in it. ``if TYPE_CHECKING:`` is not run, and
    a ``step``'s function ``plan`` runs on the controller."""
    found: list[tuple[int, str]] = []

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if step and isinstance(node, ast.FunctionDef) and node.name == "plan":
            return
        if isinstance(node, ast.Import):
            found.extend((node.lineno, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.extend((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(tree)
    return found


@functools.cache
def submodules() -> frozenset[str]:
    return frozenset(str(path) for path, _ in bundle.agent_files())


def is_allowed(name: str) -> bool:
    parts = name.split(".")
    if parts[0] in ALLOWED or parts[0] in sys.stdlib_module_names:
        return True
    if parts[0] != "ddtree_deploy":
        return False
    inside = PurePosixPath(*parts[1:]) if len(parts) > 1 else PurePosixPath("__init__")
    # ``from module import name``: name is a module, or something that is in the module
    options = {f"{place}{end}" for place in (inside, inside.parent) for end in (".py", "/__init__.py")}
    options = {str(PurePosixPath(option)) for option in options}
    package = Path(bundle.__file__).parent.parent
    if (package / inside).with_suffix(".py").exists() or (package / inside).is_dir():
        options = {f"{inside}.py", f"{inside}/__init__.py"}
    return bool(options & submodules())


def test_agent_safe_modules_import_only_what_the_host_has() -> None:
    broken = []
    for relative, path in bundle.agent_files():
        if path.suffix == ".py":
            step = relative.parts[0] == "steps"
            for line, name in imports(ast.parse(path.read_text("utf-8")), step):
                if not is_allowed(name):
                    broken.append(f"ddtree_deploy/{relative}:{line} imports {name}")
    assert broken == []


@pytest.mark.parametrize(
    "source", ["import yaml", "from ddtree_deploy.transport import base", "from ddtree_deploy import cli"]
)
def test_the_import_rule_can_fail(source: str) -> None:
    assert not all(is_allowed(name) for _, name in imports(ast.parse(f"def f():\n    {source}\n")))


def newer_than_3_9(source: str) -> list[str]:
    """What in ``source`` Python 3.9 cannot parse or cannot run, as far as it can be told without Python 3.9."""
    try:
        tree = ast.parse(source, feature_version=(3, 9))
    except SyntaxError as error:
        return [f"{error.lineno}: {error.msg}"]
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Match):  # feature_version lets some of it through
            found.append(f"{node.lineno}: match")
        if isinstance(node, ast.ClassDef):  # annotations of fields are evaluated by the codec
            fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
            found += [f"{part.lineno}: X | None" for part in fields if is_union(part.annotation)]
        if isinstance(node, ast.Call):
            name, given = ast.unparse(node.func), {keyword.arg for keyword in node.keywords}
            if name == "zip" and "strict" in given:
                found.append(f"{node.lineno}: zip(strict=)")
            if name.split(".")[-1] == "dataclass" and given & {"slots", "kw_only"}:
                found.append(f"{node.lineno}: dataclass(slots=, kw_only=)")
    return found + [
        f"{line}: {name}" for line, name in imports(tree) if name.split(".")[0] == "tomllib" or name in NEWER_NAMES
    ]


NEWER_NAMES = {
    "datetime.UTC",
    "enum.StrEnum",
    "itertools.pairwise",
    *(f"typing.{name}" for name in ("Self", "ParamSpec", "TypeAlias", "assert_never", "NotRequired", "override")),
}


def is_union(annotation: ast.AST) -> bool:
    """Whether ``X | Y`` is in it, quoted parts too."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return True
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "|" in node.value:
            return True
    return False


def test_agent_safe_modules_are_python_3_9() -> None:
    """Where there is a Python 3.9, the tests below run them in it."""
    broken = []
    for relative, path in bundle.agent_files():
        if path.suffix == ".py":
            broken += [f"ddtree_deploy/{relative}:{what}" for what in newer_than_3_9(path.read_text("utf-8"))]
    assert broken == []


@pytest.mark.parametrize(
    "source",
    [
        "match x:\n    case 1: pass",
        "try: pass\nexcept* OSError: pass",
        "def f[T](x: T) -> T: return x",
        "class A:\n    x: int | None = None",
        "class A:\n    x: 'list[int | None]'",
        "for a, b in zip(x, y, strict=True): pass",
        "@dataclass(slots=True)\nclass A: pass",
        "import tomllib",
        "from typing import Self",
    ],
)
def test_the_rule_of_python_3_9_can_fail(source: str) -> None:
    assert newer_than_3_9(source) != []


IMPORT_ALL = """
import importlib, sys, zipfile
archive = sys.argv[1]
sys.path.insert(0, archive)
for name in sorted(zipfile.ZipFile(archive).namelist()):
    if name.startswith("ddtree_deploy/") and name.endswith(".py"):
        module = name[:-3].replace("/", ".")
        module = module[: -len(".__init__")] if module.endswith(".__init__") else module
        loaded = importlib.import_module(module)
        assert loaded.__file__.startswith(archive), loaded.__file__
print("imported all", sys.version_info[:2])
"""


@pytest.fixture(params=["3.9", "this"])
def python(request: pytest.FixtureRequest) -> str:
    if request.param == "this":
        return sys.executable
    found = find_python(request.param)
    if found is None:
        pytest.skip(f"no Python {request.param} on PATH, under pyenv or uv")
    return found


def test_all_modules_import_from_the_zipapp_alone(python: str, tmp_path: Path) -> None:
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(bundle.build_bundle().data)
    result = subprocess.run([python, "-I", "-S", "-c", IMPORT_ALL, str(archive)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "imported all" in result.stdout


def test_the_zipapp_serves(python: str, tmp_path: Path) -> None:
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(bundle.build_bundle().data)
    with AgentProcess([python, "-I", "-S", str(archive)]) as agent:
        assert agent.ask("hello")["result"]["executable"] == python
        facts = agent.ask("facts", {"root": str(tmp_path / "root")})
        while "progress" in facts:
            facts = agent.receive()
        assert facts["result"]["root"] == str(tmp_path / "root")


def test_unknown_arguments_are_refused(tmp_path: Path) -> None:
    archive = tmp_path / "agent.pyz"
    archive.write_bytes(bundle.build_bundle().data)
    result = subprocess.run([sys.executable, str(archive), "nonsense"], capture_output=True, text=True)
    assert result.returncode == 3
    assert "nonsense" in result.stderr
