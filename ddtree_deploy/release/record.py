"""RECORD files ("Recording installed projects", PEP 376): reading them and keeping them right. Agent-safe."""

from __future__ import annotations

import csv
import io
import os
import re
from typing import Iterator, List, Optional, Tuple

from ddtree_deploy.release.files import record_hash_file, replace_file

Row = Tuple[str, str, str]  # path relative to site-packages, "sha256=..." or "", size or ""


def parse_record(data: bytes) -> List[Row]:
    """The rows of a RECORD; short rows are filled up, empty ones left out."""
    text = data.decode("utf-8", "surrogateescape").replace("\0", "")  # a power cut leaves such, and csv refuses them
    rows = []
    for row in csv.reader(io.StringIO(text, newline="")):
        if row and row[0]:
            path, digest, size = [*row, "", ""][:3]
            rows.append((path, digest, size))
    return rows


def is_whole(data: bytes, folder: str) -> bool:
    """Whether ``data``, the RECORD in the metadata folder ``folder``, says what is installed.

    Every installer lists the folder's own RECORD and METADATA, though some only one of them. A RECORD that names
    neither, or whose last row is torn, was emptied or cut off, by a power cut say: files of its package are not in it.
    """
    own = rb"[^a-z0-9/\\,\n]+".join(part.encode() for part in re.findall("[a-z0-9]+", folder.lower()))
    last = data.rpartition(b"\n")[2]
    torn = bool(last.strip()) and last.count(b",") < 2
    names_own = re.search(rb'^(?:[^\n]*[/\\"])?%s[/\\](?:RECORD|METADATA)"?,' % own, data, re.M | re.I) is not None
    return names_own and not torn


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
