"""RECORD files ("Recording installed projects", PEP 376): reading them and keeping them right. Agent-safe."""

from __future__ import annotations

import csv
import io
import os
from typing import Iterator, List, Optional, Tuple

from ddtree_deploy.release.files import record_hash_file, replace_file

Row = Tuple[str, str, str]  # path relative to site-packages, "sha256=..." or "", size or ""


def parse_record(data: bytes) -> List[Row]:
    """The rows of a RECORD; short rows are filled up, empty ones left out."""
    text = data.decode("utf-8", "surrogateescape")
    rows = []
    for row in csv.reader(io.StringIO(text, newline="")):
        if row and row[0]:
            path, digest, size = [*row, "", ""][:3]
            rows.append((path, digest, size))
    return rows


def format_record(rows: List[Row]) -> bytes:
    """A RECORD's bytes, one row a line, as installers write it."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "surrogateescape")


def venv_path(site: str, recorded: str) -> Optional[str]:
    """The path relative to the venv of a row's path, or None when it is absolute or leads out of the venv.

    ``site`` is site-packages relative to the venv.
    """
    if os.path.isabs(recorded):
        return None
    path = os.path.normpath(os.path.join(site, recorded))
    return None if path == ".." or path.startswith("../") else path


def record_files(venv: str, site: str) -> Iterator[Tuple[str, str]]:
    """(dist-info folder's name, path of its RECORD) of every distribution in a venv that has one."""
    folder = os.path.join(venv, site)
    for name in sorted(os.listdir(folder)):
        if name.endswith(".dist-info"):
            path = os.path.join(folder, name, "RECORD")
            if os.path.isfile(path):
                yield name, path


def refresh_records(venv: str, site: str, changed: List[str]) -> List[str]:
    """Correct hash and size of the ``changed`` files (relative to the venv) in every RECORD that names them.

    A row without a hash stays without. Returns the RECORDs that were written, relative to the venv.
    """
    wanted = set(changed)
    written = []
    for name, path in record_files(venv, site):
        with open(path, "rb") as stream:
            before = stream.read()
        rows = parse_record(before)
        touched = False
        for index, (recorded, digest, _) in enumerate(rows):
            inside = venv_path(site, recorded)
            if digest and inside in wanted and inside is not None:
                new_digest, size = record_hash_file(os.path.join(venv, inside))
                touched = touched or new_digest != digest
                rows[index] = (recorded, new_digest, str(size))
        if touched:
            replace_file(path, format_record(rows))
            written.append(f"{site}/{name}/RECORD")
    return written
