"""Profiles and playbooks are named: shipped ones by name, a user's own by name beside the inventory, or by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from ddtree_deploy.inventory.validation import unknown_name

_SUFFIXES = (".yaml", ".yml")


def find_named(
    kind: str, name_or_path: str | Path, folders: Sequence[Path], belongs: Callable[[Path], bool], here: bool = False
) -> Path:
    """The file of a profile or playbook.

    With a slash or ``.yaml`` it is a path, relative to the first of ``folders`` that has it, else to the working folder
    (the file need not exist: reading says so); ``here``: to the working folder first, as for what a command line says.
    Otherwise ``NAME.yaml`` in the first of ``folders`` that has it.
    Raises InputError ``unknown-<kind>`` with the names of files that ``belongs`` takes.
    """
    text = str(name_or_path)
    if is_path(text):
        path = Path(text).expanduser()
        if here and path.is_file():
            return path
        return next((folder / path for folder in folders if (folder / path).is_file()), path)
    for folder in folders:
        for suffix in _SUFFIXES:
            if (folder / f"{text}{suffix}").is_file():
                return folder / f"{text}{suffix}"
    raise unknown_name(kind, text, known_names(folders, belongs))


def is_path(text: str) -> bool:
    """Whether ``text`` means a path and not a name."""
    return "/" in text or text.endswith(_SUFFIXES)


def known_names(folders: Iterable[Path], belongs: Callable[[Path], bool]) -> list[str]:
    """Stems of the YAML files in ``folders`` that ``belongs`` takes, sorted."""
    files = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return sorted({path.stem for path in files if path.suffix in _SUFFIXES and path.is_file() and belongs(path)})
