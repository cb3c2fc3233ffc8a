"""The reader against another reader (pyelftools) on real files, and against damaged files."""

import os
import random
from pathlib import Path

import pytest
from abi.fixtures import compile_object
from elftools.elf.elffile import ELFFile
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_deploy.abi.elf import ElfError, ElfFile

SOURCE = """
#include <stdio.h>
#include <pthread.h>
extern int wanted(int); extern int maybe(int) __attribute__((weak));
__attribute__((visibility("hidden"))) int hidden(void) { return 1; }
int shown(int x) { pthread_create(0, 0, 0, 0); printf("%d", x); return maybe ? maybe(x) : wanted(x) + hidden(); }
const int constant_version = 0x00090A02;
"""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    script = folder / "map"
    script.write_text("SAMPLE_1 { global: shown; constant_version; }; SAMPLE_2 { global: *; } SAMPLE_1;")
    other = compile_object(folder / "libother.so.3", "int wanted(int x) { return x; }")
    arguments = [
        f"-Wl,--version-script={script}",
        str(other),
        "-Wl,-rpath,$ORIGIN/../lib:/opt/x",
        "-Wl,--enable-new-dtags",
    ]
    return compile_object(folder / "libsample.so.1", SOURCE, *arguments)


def by_pyelftools(path: Path) -> dict[str, object]:
    with path.open("rb") as stream:
        elf = ELFFile(stream)
        dynamic = list(elf.get_section_by_name(".dynamic").iter_tags())
        symbols = list(elf.get_section_by_name(".dynsym").iter_symbols())
        needs = elf.get_section_by_name(".gnu.version_r")
        wanted = (
            {need.name: [aux.name for aux in auxiliaries] for need, auxiliaries in needs.iter_versions()}
            if needs
            else {}
        )
        return {
            "needed": [tag.needed for tag in dynamic if tag.entry.d_tag == "DT_NEEDED"],
            "undefined": sorted(
                s.name for s in symbols
                if s["st_shndx"] == "SHN_UNDEF" and s["st_info"]["bind"] == "STB_GLOBAL" and s.name
            ),
            "defined": sorted(
                s.name for s in symbols
                if s["st_shndx"] != "SHN_UNDEF" and s["st_info"]["bind"] in ("STB_GLOBAL", "STB_WEAK", "STB_LOOS")
                and s["st_other"]["visibility"] in ("STV_DEFAULT", "STV_PROTECTED")
            ),
            "verneed": wanted,
        }  # fmt: skip


def test_a_file_with_everything_in_it(sample: Path) -> None:
    with ElfFile(str(sample)) as elf:
        info = elf.info()
        assert info.machine == os.uname().machine
        assert info.soname == "libsample.so.1"
        assert info.runpath == ["$ORIGIN/../lib", "/opt/x"] and info.rpath == []
        assert info.verdef == ["SAMPLE_1", "SAMPLE_2"]
        assert b"maybe" not in elf.undefined() and b"wanted" in elf.undefined()
        assert b"hidden" not in elf.defined() and b"shown" in elf.defined()
        assert elf.constant(b"constant_version", 4) == b"\x02\x0a\x09\x00"
        assert elf.constant(b"absent_version", 4) is None


@pytest.mark.parametrize("name", ["libc.so.6", "libstdc++.so.6", "libm.so.6", "libz.so.1", "libcrypto.so.3"])
def test_it_reads_what_pyelftools_reads(name: str) -> None:
    path = next((p for p in (Path("/lib/x86_64-linux-gnu") / name, Path("/lib64") / name) if p.exists()), None)
    if path is None:
        pytest.skip(f"{name} is not on this machine")
    expected = by_pyelftools(path)
    with ElfFile(str(path)) as elf:
        info = elf.info()
        assert info.needed == expected["needed"]
        assert sorted(set(elf.undefined())) == sorted({str(n).encode() for n in expected["undefined"]})  # type: ignore[attr-defined]
        assert sorted(elf.defined()) == sorted({str(n).encode() for n in expected["defined"]})  # type: ignore[attr-defined]
        assert {k: sorted(v) for k, v in info.verneed.items()} == {
            k: sorted(v)
            for k, v in expected["verneed"].items()  # type: ignore[attr-defined]
        }


def test_symbols_are_counted_without_section_headers(sample: Path, tmp_path: Path) -> None:
    data = bytearray(sample.read_bytes())
    data[40:48] = bytes(8)  # e_shoff: as sstrip leaves it
    stripped = tmp_path / "stripped.so"
    stripped.write_bytes(data)
    with ElfFile(str(sample)) as whole, ElfFile(str(stripped)) as bare:
        assert bare.defined() == whole.defined() and bare.undefined() == whole.undefined()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "empty"),
        (b"\x7fELF", "truncated"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not-elf"),
        (b"/* GNU ld script */ GROUP ( libx.so.1 )", "linker-script"),
        (b"INPUT(-lx)", "linker-script"),
        (b"<!DOCTYPE html><html>", "not-elf"),
        (b"PK\x03\x04 a zip", "not-elf"),
        (b"\x7fELF\x01\x01\x01" + bytes(60), "other-class"),
        (b"\x7fELF\x02\x02\x01" + bytes(60), "other-class"),
    ],
)
def test_what_is_no_shared_object_says_why(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(ElfError) as error:
        ElfFile(str(path))
    assert error.value.kind == kind and error.value.message


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), cut=st.floats(0.0, 1.0))
def test_a_damaged_file_never_does_worse_than_an_elf_error(
    sample: Path, tmp_path_factory: pytest.TempPathFactory, seed: int, cut: float
) -> None:
    data = bytearray(sample.read_bytes())
    chance = random.Random(seed)
    for _ in range(chance.choice((0, 1, 3, 50))):
        data[chance.randrange(4, min(len(data), chance.choice((64, 1024, len(data)))))] = chance.randrange(256)
    path = tmp_path_factory.getbasetemp() / "damaged.so"
    path.write_bytes(data[: int(len(data) * cut)] if chance.random() < 0.5 else data)
    try:
        with ElfFile(str(path)) as elf:
            elf.info()
            elf.undefined()
            elf.defined()
            elf.constant(b"constant_version", 4)
    except ElfError:
        pass
