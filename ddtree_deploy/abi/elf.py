"""Reads what the dynamic linker reads of an ELF file, and nothing else, fast enough for a 1 GiB shared object.

Only headers, the dynamic section, ``.dynsym``/``.dynstr`` and the version tables are read, with ``pread``; nothing is
executed. Layouts follow the System V gABI and the GNU extensions (``.gnu.hash``, ``.gnu.version_r``/``_d``).
Little-endian 64-bit files only (every platform that CUDA wheels exist for); others are told apart, not read.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import Dict, FrozenSet, List, Optional, Tuple

MACHINES = {62: "x86_64", 183: "aarch64", 3: "i386", 40: "arm", 243: "riscv64", 21: "ppc64le", 22: "s390x"}

SHARED_OBJECT_NAME = re.compile(r"\.so(\.[0-9][0-9A-Za-z_]*)*$")

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_HASH, _DT_STRTAB, _DT_SYMTAB, _DT_STRSZ = 1, 4, 5, 6, 10
_DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_GNU_HASH = 14, 15, 29, 0x6FFFFEF5
_DT_VERDEF, _DT_VERDEFNUM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
_GLOBAL, _WEAK, _UNIQUE = 1, 2, 10
_SYMBOL = struct.Struct("<IBBHQQ")
_VERSION_LIMIT = 4096  # more entries than this in a version table means that the table is damaged


class ElfError(Exception):
    """Why a file could not be read.

    ``kind`` is not-elf | linker-script | truncated | corrupt | other-class | empty | special.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


@dataclass(frozen=True)
class Section:
    offset: int
    size: int


@dataclass(frozen=True)
class ElfInfo:
    """``verneed`` maps a library to the symbol versions wanted from it; weak ones may be absent and are left out."""

    machine: str
    soname: Optional[str] = None
    needed: List[str] = field(default_factory=list)
    rpath: List[str] = field(default_factory=list)
    runpath: List[str] = field(default_factory=list)
    verneed: Dict[str, List[str]] = field(default_factory=dict)
    verdef: List[str] = field(default_factory=list)
    fatbins: List[Section] = field(default_factory=list)
    symbols: int = 0


class ElfFile:
    """An open ELF file. A context manager; raises :class:`ElfError` for anything that is not a usable one."""

    def __init__(self, path: str) -> None:
        self.path = path
        if not S_ISREG(Path(path).stat().st_mode):  # opening a pipe waits for its writer
            raise ElfError("special", "a pipe, socket or device, which the audit does not open")
        self._fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            self.size = os.fstat(self._fd).st_size
            self._read_header()
            self._read_segments()
            self._sections = self._read_sections()
            self._read_dynamic()
        except struct.error as error:
            self.close()
            raise ElfError("corrupt", f"a header points outside the file ({error})") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ElfFile:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._fd)

    def read(self, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes at ``offset``; raises ElfError ``truncated`` where the file ends before."""
        if offset < 0 or size < 0 or offset + size > self.size:
            raise ElfError("truncated", f"needs bytes up to {offset + size}, the file has {self.size}")
        return os.pread(self._fd, size, offset)

    def info(self) -> ElfInfo:
        tags = self._tags
        strings = [self._string(value) for value in tags.get(_DT_NEEDED, [])]
        return ElfInfo(
            machine=self.machine,
            soname=self._string(tags[_DT_SONAME][0]) if _DT_SONAME in tags else None,
            needed=strings,
            rpath=self._path(_DT_RPATH),
            runpath=self._path(_DT_RUNPATH),
            verneed=self._verneed(),
            verdef=self._verdef(),
            fatbins=[self._sections[name] for name in (b".nv_fatbin", b"__nv_relfatbin") if name in self._sections],
            symbols=self._symbol_count() if _DT_SYMTAB in tags else 0,
        )

    def undefined(self) -> List[bytes]:
        """Names that must be found at load time: undefined, global and not weak."""
        _, hashed = self._hashed_from()
        data = self._symbol_bytes(0, hashed)
        strtab = self._strtab
        names = []
        for name, info, _, section, _, _ in _SYMBOL.iter_unpack(data):
            if section == 0 and info >> 4 == _GLOBAL and name:
                names.append(_cut(strtab, name))
        return names

    def defined(self) -> FrozenSet[bytes]:
        """Names that other objects can bind to: defined, global, weak or unique, and not hidden."""
        first, _ = self._hashed_from()
        data = self._symbol_bytes(first, self._symbol_count())
        strtab = self._strtab
        return frozenset(
            _cut(strtab, name)
            for name, info, other, section, _, _ in _SYMBOL.iter_unpack(data)
            if section and info >> 4 in (_GLOBAL, _WEAK, _UNIQUE) and other & 3 not in (1, 2)
        )

    def constant(self, name: bytes, size: int) -> Optional[bytes]:
        """The first ``size`` bytes of a defined data symbol, None where the file does not define it."""
        data = self._symbol_bytes(0, self._symbol_count())
        for at, _, _, section, value, _ in _SYMBOL.iter_unpack(data):
            if section and at and self._strtab.startswith(name + b"\0", at):
                return self.read(self._offset(value), size)
        return None

    def find(self, pattern: re.Pattern[bytes]) -> Optional[bytes]:
        """The first match of ``pattern`` in the read-only data, without copying it."""
        section = self._sections.get(b".rodata")
        if section is None or section.size == 0:
            return None
        start = section.offset - section.offset % mmap.ALLOCATIONGRANULARITY
        length = section.offset + section.size - start
        with mmap.mmap(self._fd, length, access=mmap.ACCESS_READ, offset=start) as view:
            match = pattern.search(view)
            return match.group() if match else None

    # headers ---------------------------------------------------------------------------------------------------

    def _read_header(self) -> None:
        if self.size == 0:
            raise ElfError("empty", "the file is empty")
        head = os.pread(self._fd, 64, 0)
        if head[:4] != b"\x7fELF":
            raise _not_elf(os.pread(self._fd, 200, 0))
        if len(head) < 64:
            raise ElfError("truncated", f"an ELF header needs 64 bytes, the file has {self.size}")
        machine = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)[0]
        self.machine = MACHINES.get(machine, f"machine {machine}")
        if head[4] != 2 or head[5] != 1:
            bits = {1: "32-bit", 2: "64-bit"}.get(head[4], "unknown class")
            order = {1: "little-endian", 2: "big-endian"}.get(head[5], "unknown order")
            raise ElfError("other-class", f"{bits} {order} file for {self.machine}")
        fields = struct.unpack_from("<QQIHHHHHH", head, 32)
        self._phoff, self._shoff = fields[0], fields[1]
        self._phentsize, self._phnum, self._shentsize, self._shnum, self._shstrndx = fields[4:9]
        if self._shoff and self._shoff + self._shentsize * self._shnum > self.size:
            wanted = self._shoff + self._shentsize * self._shnum
            raise ElfError("truncated", f"the section table ends at byte {wanted}, the file at {self.size}")

    def _read_segments(self) -> None:
        table = self.read(self._phoff, self._phentsize * self._phnum)
        self._loads: List[Tuple[int, int, int]] = []
        self._dynamic: Optional[Section] = None
        for index in range(self._phnum):
            kind, _, offset, vaddr, _, filesz, _, _ = struct.unpack_from("<IIQQQQQQ", table, index * self._phentsize)
            if kind == _PT_LOAD:
                if offset + filesz > self.size:
                    raise ElfError("truncated", f"a segment ends at byte {offset + filesz}, the file at {self.size}")
                self._loads.append((vaddr, offset, filesz))
            elif kind == _PT_DYNAMIC:
                self._dynamic = Section(offset, filesz)

    def _read_sections(self) -> Dict[bytes, Section]:
        if not self._shoff or not self._shnum or self._shstrndx >= self._shnum:
            return {}
        table = self.read(self._shoff, self._shentsize * self._shnum)
        rows = [struct.unpack_from("<IIQQQQ", table, index * self._shentsize) for index in range(self._shnum)]
        names = self.read(rows[self._shstrndx][4], rows[self._shstrndx][5])
        # SHT_NOBITS (8) sections, as in split debug files, have no bytes in this file.
        return {_cut(names, row[0]): Section(row[4], row[5]) for row in rows if row[1] not in (0, 8)}

    def _read_dynamic(self) -> None:
        self._tags: Dict[int, List[int]] = {}
        self._strtab = b""
        if self._dynamic is None:
            return
        data = self.read(self._dynamic.offset, self._dynamic.size - self._dynamic.size % 16)
        for tag, value in struct.iter_unpack("<QQ", data):
            if tag == 0:
                break
            self._tags.setdefault(tag, []).append(value)
        if _DT_STRTAB in self._tags and _DT_STRSZ in self._tags:
            self._strtab = self.read(self._offset(self._tags[_DT_STRTAB][0]), self._tags[_DT_STRSZ][0])

    def _offset(self, vaddr: int) -> int:
        for start, offset, size in self._loads:
            if start <= vaddr < start + size:
                return vaddr - start + offset
        raise ElfError("corrupt", f"address {vaddr:#x} is in no segment")

    def _string(self, offset: int) -> str:
        if offset >= len(self._strtab):
            raise ElfError("corrupt", f"string {offset} is outside the string table")
        return _cut(self._strtab, offset).decode("utf-8", "replace")

    def _path(self, tag: int) -> List[str]:
        if tag not in self._tags:
            return []
        return [part for part in self._string(self._tags[tag][0]).split(":") if part]

    # symbols ---------------------------------------------------------------------------------------------------

    def _hashed_from(self) -> Tuple[int, int]:
        """(first symbol that can be defined, end of those that can be undefined): .gnu.hash sorts them apart."""
        count = self._symbol_count()
        if _DT_GNU_HASH not in self._tags:
            return 0, count
        buckets, first = struct.unpack("<II", self.read(self._offset(self._tags[_DT_GNU_HASH][0]), 8))
        # An object that exports nothing has one empty bucket and a symoffset that may be 1: read all of it.
        return (first, first) if buckets and 1 < first <= count else (0, count)

    def _symbol_count(self) -> int:
        section = self._sections.get(b".dynsym")
        if section:
            return section.size // _SYMBOL.size
        if _DT_HASH in self._tags:
            return int(struct.unpack("<II", self.read(self._offset(self._tags[_DT_HASH][0]), 8))[1])
        if _DT_GNU_HASH in self._tags:
            return self._count_by_gnu_hash(self._offset(self._tags[_DT_GNU_HASH][0]))
        return 0

    def _count_by_gnu_hash(self, at: int) -> int:
        buckets, first, bloom, _ = struct.unpack("<IIII", self.read(at, 16))
        start = at + 16 + bloom * 8
        last = max(struct.unpack(f"<{buckets}I", self.read(start, buckets * 4)), default=0)
        if last < first:
            return int(first)
        chains = start + buckets * 4
        while not struct.unpack("<I", self.read(chains + (last - first) * 4, 4))[0] & 1:
            last += 1
        return int(last) + 1

    def _symbol_bytes(self, start: int, end: int) -> bytes:
        if _DT_SYMTAB not in self._tags or end <= start:
            return b""
        base = self._offset(self._tags[_DT_SYMTAB][0])
        return self.read(base + start * _SYMBOL.size, (end - start) * _SYMBOL.size)

    # symbol versions -------------------------------------------------------------------------------------------

    def _verneed(self) -> Dict[str, List[str]]:
        if _DT_VERNEED not in self._tags:
            return {}
        wanted: Dict[str, List[str]] = {}
        at = self._offset(self._tags[_DT_VERNEED][0])
        left = _VERSION_LIMIT
        for _ in range(min(self._tags.get(_DT_VERNEEDNUM, [0])[0], _VERSION_LIMIT)):
            _, count, library, aux, following = struct.unpack("<HHIII", self.read(at, 16))
            names = wanted.setdefault(self._string(library), [])
            entry = at + aux
            left -= count
            if left < 0:
                raise ElfError("corrupt", "the table of wanted symbol versions has no end")
            for _ in range(count):
                _, flags, _, name, step = struct.unpack("<IHHII", self.read(entry, 16))
                if not flags & 2:  # VER_FLG_WEAK
                    names.append(self._string(name))
                entry += step
            if not following:
                break
            at += following
        return wanted

    def _verdef(self) -> List[str]:
        if _DT_VERDEF not in self._tags:
            return []
        names = []
        at = self._offset(self._tags[_DT_VERDEF][0])
        for _ in range(min(self._tags.get(_DT_VERDEFNUM, [0])[0], _VERSION_LIMIT)):
            _, flags, _, _, _, aux, following = struct.unpack("<HHHHIII", self.read(at, 20))
            if not flags & 1:  # VER_FLG_BASE names the file itself
                names.append(self._string(struct.unpack("<I", self.read(at + aux, 4))[0]))
            if not following:
                break
            at += following
        return names


def _cut(table: bytes, offset: int) -> bytes:
    end = table.find(b"\0", offset)
    return table[offset : end if end >= 0 else len(table)]


def _not_elf(start: bytes) -> ElfError:
    if start.startswith(b"version https://git-lfs"):
        return ElfError("not-elf", "a Git LFS pointer, not the file itself")
    text = start.lstrip()
    if text.startswith((b"/* GNU ld script", b"INPUT", b"GROUP", b"OUTPUT_FORMAT", b"/*")):
        return ElfError("linker-script", "a linker script")
    if text[:1] == b"<":
        return ElfError("not-elf", "an HTML or XML page, not a shared object")
    return ElfError("not-elf", f"does not begin with the ELF magic (begins with {start[:4]!r})")
