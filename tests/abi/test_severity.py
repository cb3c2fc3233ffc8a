"""An optional part that cannot be loaded is no error: it depends on who loads it, and when."""

from pathlib import Path

import pytest
from abi.fixtures import NO_AS_NEEDED, Venv

from ddtree_deploy.abi.audit import audit_environment

BROKEN = "void absent(void); void run(void) { absent(); }"
TAGS = ["cp310-abi3-manylinux2014_x86_64"]


def package(venv: Venv, sources: dict[str, str], module: str = "pkg/_ops.abi3.so", name: str = "pkg") -> None:
    """A package whose one compiled module cannot be loaded."""
    files = [venv.write(path, text) for path, text in sources.items()]
    venv.install(name, "1.0", [*files, venv.object(module, BROKEN, soname=None)], tags=TAGS)


def severities(venv: Venv) -> list[tuple[str, str]]:
    report = audit_environment(str(venv.root), venv.host)
    return [(finding.id, finding.severity) for finding in report.findings if finding.id != "driver-missing"]


HOW = {
    "imported at the top": ({"pkg/__init__.py": "from pkg import _ops\n"}, "error"),
    "imported relatively": ({"pkg/__init__.py": "from . import _ops\n"}, "error"),
    "names taken from it": ({"pkg/__init__.py": "from pkg._ops import run, stop\n"}, "error"),
    "by a module that the package imports": (
        {"pkg/__init__.py": "from .core import run\n", "pkg/core.py": "import pkg._ops\n"},
        "error",
    ),
    "by a module that users import": (
        {"pkg/__init__.py": "x = 1\n", "pkg/linear.py": "from pkg import _ops\n"},
        "error",
    ),
    "one of two by the platform": (
        {"pkg/__init__.py": "import sys\nif sys.platform == 'linux':\n    from pkg import _ops\n"},
        "error",
    ),
    "loaded by its file name": (
        {"pkg/__init__.py": "import x\n\ntry:\n    x.load_library('_ops.abi3.so')\nexcept OSError:\n    pass\n"},
        "error",
    ),
    "loaded by a function that is called": (
        {
            "pkg/__init__.py": "from pkg.load import load\n\nops = load()\n",
            "pkg/load.py": "def load():\n    return find('_ops.abi3.so')\n",
        },
        "error",
    ),
    "nothing but the module": ({}, "error"),
    "an empty package": ({"pkg/__init__.py": ""}, "error"),
    "a package that does not name it": ({"pkg/__init__.py": "x = 1\n"}, "error"),
    "guarded": (
        {"pkg/__init__.py": "try:\n    from pkg import _ops\nexcept ImportError:\n    _ops = None\n"},
        "warning",
    ),
    "suppressed": (
        {"pkg/__init__.py": "from contextlib import *\nwith suppress(ImportError):\n    from pkg import _ops\n"},
        "warning",
    ),
    "guarded, and raised again": (
        {"pkg/__init__.py": "try:\n    from pkg import _ops\nexcept ImportError:\n    raise RuntimeError\n"},
        "error",
    ),
    "in a function": ({"pkg/__init__.py": "def run():\n    from pkg import _ops\n    return _ops\n"}, "warning"),
    "for type checkers": (
        {"pkg/__init__.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pkg import _ops\n"},
        "warning",
    ),
    "by an optional module": (
        {"pkg/__init__.py": "def gpu():\n    from pkg import gpu\n", "pkg/gpu.py": "from pkg import _ops\n"},
        "warning",
    ),
    "by a pattern": ({"pkg/__init__.py": "import glob\nfound = glob.glob('_*.abi3.so')\n"}, "warning"),
}


@pytest.mark.parametrize("how", HOW)
def test_by_how_the_package_loads_it(how: str, venv: Venv) -> None:
    sources, severity = HOW[how]
    package(venv, sources)
    assert severities(venv) == [("undefined-symbol", severity)]


def engine(venv: Venv, imports: str, requires: list[str]) -> None:
    files = [venv.write("sglang/__init__.py"), venv.write("sglang/launch_server.py", imports)]
    venv.install("sglang", "0.5.11", files, requires=requires)


@pytest.mark.parametrize(
    ("imports", "requires", "severity"),
    [
        ("import pkg\n", ["pkg"], "error"),
        ("def decode():\n    import pkg\n", ["pkg"], "warning"),
        ("try:\n    import pkg\nexcept ImportError:\n    pkg = None\n", [], "warning"),
        ("import json\n", [], "warning"),  # a package that nobody imports or requires
        ("import json\n", ["pkg"], "error"),  # required, and no source says that it is optional
    ],
)
def test_by_how_the_engine_uses_the_package(venv: Venv, imports: str, requires: list[str], severity: str) -> None:
    engine(venv, imports, requires)
    package(venv, {"pkg/__init__.py": "from pkg import _ops\n"})
    assert severities(venv) == [("undefined-symbol", severity)]


def test_a_package_that_a_needed_package_needs_is_needed(venv: Venv) -> None:
    engine(venv, "import middle\n", ["middle"])
    venv.install("middle", "1.0", [venv.write("middle/__init__.py", "import pkg\n")], requires=["pkg"])
    package(venv, {"pkg/__init__.py": "from pkg import _ops\n"})
    assert severities(venv) == [("undefined-symbol", "error")]


def test_of_builds_for_several_versions_one_that_works_is_enough(venv: Venv) -> None:
    source = "import torch\n\n\ndef load(cuda):\n    return open(f'_hook_cu{cuda}.abi3.so')\n"
    files = [venv.write("hook/__init__.py", source)]
    files += [
        venv.object("hook/_hook_cu12.abi3.so", BROKEN),
        venv.object("hook/_hook_cu13.abi3.so", "void run(void) {}"),
    ]
    venv.install("hook", "1.0", files, tags=TAGS)
    assert severities(venv) == []


def test_two_numbered_modules_that_are_both_imported_are_no_variants(venv: Venv) -> None:
    files = [venv.write("pair/__init__.py", "from pair import _ext1, _ext2\n")]
    files += [venv.object("pair/_ext1.abi3.so", BROKEN), venv.object("pair/_ext2.abi3.so", "void run(void) {}")]
    venv.install("pair", "1.0", files, tags=TAGS)
    assert severities(venv) == [("undefined-symbol", "error")]


def test_a_plugin_that_nothing_names_is_a_note(venv: Venv) -> None:
    library = venv.foreign("libfabric.so.1", "void fi(void) {}")
    plugin = venv.object(
        "nvidia/nvshmem/lib/nvshmem_transport_x.so.3", "void fi(void); void run(void) { fi(); }", str(library)
    )
    venv.install("nvidia-nvshmem-cu13", "3.4.5", [plugin])
    assert severities(venv) == [("missing-library", "note")]


def test_a_library_without_rpath_counts_as_found_where_its_loader_finds_it(venv: Venv) -> None:
    """auditwheel's libraries find each other by the DT_RPATH of the module that loads them."""
    inner = venv.object("pkg.libs/libinner.so.1", "void inner(void) {}")
    outer = venv.object("pkg.libs/libouter.so.1", "void inner(void); void outer(void) { inner(); }", str(inner))
    rpath = "-Wl,--disable-new-dtags,-rpath,$ORIGIN/../pkg.libs"
    link = [NO_AS_NEEDED, str(outer), rpath, "-Wl,--allow-shlib-undefined"]
    venv.module("pkg", "void outer(void); void run(void) { outer(); }", *link)
    assert severities(venv) == []


def test_the_same_by_runpath_is_not_inherited(venv: Venv) -> None:
    inner = venv.object("pkg.libs/libinner.so.1", "void inner(void) {}")
    outer = venv.object("pkg.libs/libouter.so.1", "void inner(void); void outer(void) { inner(); }", str(inner))
    runpath = "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../pkg.libs"
    link = [NO_AS_NEEDED, str(outer), runpath, "-Wl,--allow-shlib-undefined"]
    venv.module("pkg", "void outer(void); void run(void) { outer(); }", *link)
    assert severities(venv) == [("missing-library", "error")]


def test_libraries_that_need_each_other_are_looked_at(venv: Venv, tmp_path: Path) -> None:
    stub = venv.foreign("libb.so", "void b(void) {}")
    a = venv.object("ring/liba.so", "void b(void); void a(void) { b(); }", str(stub), "-Wl,-rpath,$ORIGIN")
    b = venv.object(
        "ring/libb.so", "void a(void); void absent(void); void b(void) { a(); absent(); }", str(a), "-Wl,-rpath,$ORIGIN"
    )
    text = "import ctypes\nctypes.CDLL('liba.so')\n"
    venv.install("ring", "1.0", [venv.write("ring/__init__.py", text), a, b])
    assert severities(venv) == [("undefined-symbol", "error")]


def test_torchs_names_without_its_libraries_in_dt_needed(venv: Venv) -> None:
    """Their package loads torch's libraries for everybody (RTLD_GLOBAL); what torch lacks is found all the same."""
    venv.torch()
    venv.module(
        "fits", "namespace c10 { int device_count(); } int run() { return c10::device_count(); }", language="c++"
    )
    assert severities(venv) == []
    venv.module("drifted", "namespace c10 { int other(); } int run() { return c10::other(); }", language="c++")
    assert severities(venv) == [("undefined-torch-symbol", "error")]


def test_environments_below_a_folder_called_tests_are_audited_like_others(tmp_path: Path) -> None:
    from abi.fixtures import make_venv

    venv = make_venv(tmp_path / "tests" / "test_venv")
    package(venv, {"pkg/__init__.py": "from pkg import _ops\n"})
    (venv.site / "pkg/__init__.py").unlink()
    assert ("record-missing-file", "error") in severities(venv)


@pytest.mark.parametrize(("imports", "severity"), [("import pkg\n", "error"), ("import json\n", "warning")])
def test_what_is_wrong_with_files_counts_by_the_engines_use_too(venv: Venv, imports: str, severity: str) -> None:
    engine(venv, imports, [])
    path = venv.write("pkg/__init__.py", "x = 1\n")
    venv.install("pkg", "1.0", [path, venv.write("pkg/gone.py")])
    (venv.site / "pkg/gone.py").unlink()
    assert severities(venv) == [("record-missing-file", severity)]
