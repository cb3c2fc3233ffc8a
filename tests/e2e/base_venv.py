"""A base venv as people have them: packages, editable installs, scripts and path files that name the venv's place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from e2e.program import environment

PYTHON = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
UV = Path(sys.executable).with_name("uv")
PACKAGES = ("packaging==23.2", "tabulate==0.9.0", "cowsay==6.1")  # two that the overlay replaces, one that stays

PYPROJECT = """\
[build-system]
requires = ["setuptools==80.9.0"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "1.0"

[project.scripts]
{name} = "{name}:main"

[tool.setuptools]
packages = ["{name}"]

[tool.setuptools.package-dir]
{place}
"""
MODULE = """\
import sys


def main() -> None:
    print("{name}", __file__, sys.prefix)
"""
# Installers write this form where the path of the interpreter is long or has blanks.
EXEC_SCRIPT = """\
#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys
print("script", sys.prefix)
"""


def make_base_venv(path: Path, outside: Path) -> Path:
    """A venv at ``path``; one of its editable installs has its sources in it, the other's are in ``outside``."""
    subprocess.run([str(PYTHON), "-m", "venv", str(path)], check=True)
    inside = _project(path / "src" / "inner", "inner", "sources", 'inner = "sources"')  # gets a finder module
    _project(outside, "outer", "src/outer", '"" = "src"')  # gets a path file
    _install(path, *PACKAGES, "--editable", str(inside), "--editable", str(outside))
    extra = path / "extra"
    extra.mkdir()
    (extra / "from_path_file.py").write_text("PLACE = __file__\n", "utf-8")
    (site_packages(path) / "extra.pth").write_text(f"{extra}\n", "utf-8")
    script = path / "bin" / "exec-form"
    script.write_text(EXEC_SCRIPT.format(python=path / "bin" / "python"), "utf-8")
    script.chmod(0o755)
    return path


def make_plain_venv(path: Path, *packages: str, python: Path = PYTHON) -> Path:
    """A small venv with ``packages``."""
    subprocess.run([str(python), "-m", "venv", "--without-pip", str(path)], check=True)
    if packages:
        _install(path, "--no-deps", *packages)
    return path


def site_packages(venv: Path) -> Path:
    return venv / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"


def _install(venv: Path, *words: str) -> None:
    """Copies: link counts of files that uv's cache shares change with every other venv on the machine."""
    command = [str(UV), "pip", "install", "--quiet", "--link-mode", "copy", "--python", str(venv / "bin" / "python")]
    subprocess.run([*command, *words], check=True, env=environment())


def _project(folder: Path, name: str, modules: str, place: str) -> Path:
    """A project ``name`` with its modules in ``folder/modules``; ``place`` is how its pyproject.toml says so."""
    (folder / modules).mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PYPROJECT.format(name=name, place=place), "utf-8")
    (folder / modules / "__init__.py").write_text(MODULE.format(name=name), "utf-8")
    return folder
