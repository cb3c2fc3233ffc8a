"""Distributions and their CUDA builds, from files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from abi.fixtures import compile_object

from ddtree_deploy.facts.model import Package
from ddtree_deploy.facts.packages import read_distributions

TORCH_VERSION = "__version__ = '2.11.0+cu130'\ndebug = False\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"
TORCH_CPU = "__version__ = '2.11.0'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
TORCH_ROCM = "__version__ = '2.11.0'\ncuda: Optional[str] = None\nhip: Optional[str] = '6.4'\n"


def packages(site: Path) -> dict[str, Package]:
    return {item.package.name: item.package for item in read_distributions(site)}


def test_what_is_read(site: Path, install) -> None:
    install("Foo.Bar", "1.2", extra={"INSTALLER": "pip\n"})
    assert packages(site) == {
        "foo-bar": Package(
            "foo-bar",
            "1.2",
            installer="pip",
            wheel_tags=["cp311-cp311-manylinux_2_28_x86_64", "cp311-cp311-linux_x86_64"],
        )
    }


@pytest.mark.parametrize("name", ["Foo_Bar", "foo--bar", "FOO.BAR", "foo-_.bar"])
def test_names_are_normalized(name: str, site: Path, install) -> None:
    install(name, "1.2")
    assert list(packages(site)) == ["foo-bar"]


def test_without_record_and_without_metadata(site: Path, install) -> None:
    install("norecord", "1.0", record=False)
    (site / "bare-2.0.dist-info").mkdir()
    (site / "~orch-2.0.dist-info").mkdir()
    (site / "nonsense.dist-info").mkdir()
    found = packages(site)
    assert {name: (package.version, package.record) for name, package in found.items()} == {
        "norecord": ("1.0", False),
        "bare": ("2.0", False),
    }


def cut_records(whole: bytes) -> dict[str, bytes]:
    """What a power cut or a full disk leaves of a RECORD."""
    return {
        "empty": b"",
        "first row": whole[:40],
        "zeros": bytes(len(whole)),
        "rows of others": whole.replace(b"damaged-1.0.dist-info", b"other-1.0.dist-info"),
        "a torn last row": whole + b"damaged/more.py,sha25",
    }


@pytest.mark.parametrize("kind", list(cut_records(b"")))
def test_a_record_that_was_cut_off_is_none(kind: str, site: Path, install) -> None:
    info = install("damaged", "1.0", {"damaged/__init__.py": b"", "damaged/lib.so": b"no object"})
    record = info / "RECORD"
    record.write_bytes(cut_records(record.read_bytes())[kind])
    assert packages(site)["damaged"].record is False


@pytest.mark.parametrize(
    ("folder", "rows"),
    [
        ("Foo.Bar-1.2+cu130.dist-info", "foo_bar-1.2_cu130.dist-info/METADATA,sha256=x,1\n"),  # no row of its own
        ("foo_bar-1.2.dist-info", "foo/a.py,,\nFoo-Bar-1.2.dist-info/RECORD,,"),  # a last row without a line's end
        ("foo_bar-1.2.dist-info", "foo\\a.py,,\r\nfoo_bar-1.2.dist-info\\RECORD,,\r\n"),
        ("foo_bar-1.2.dist-info", '"foo_bar-1.2.dist-info/METADATA",sha256=x,1\n'),
        ("foo_bar-1.2.dist-info", "/opt/venv/lib/python3.11/site-packages/foo_bar-1.2.dist-info/RECORD,,\n"),
        ("foo_bar-1.2.dist-info", "foo/a.py,,\n../site-packages/foo_bar-1.2.dist-info/METADATA,,\n"),
        ("foo_bar-1.2.dist-info", "foo_bar.pth,sha256=x,1\nfoo_bar-1.2.dist-info/RECORD,,\n"),  # editable
    ],
)
def test_how_installers_write_a_record(folder: str, rows: str, site: Path) -> None:
    (site / folder).mkdir()
    (site / folder / "RECORD").write_text(rows, newline="")
    (site / folder / "METADATA").write_text("Name: foo-bar\nVersion: 1.2\n")
    assert packages(site)["foo-bar"].record is True


def test_a_license_in_the_headers_does_not_end_them(site: Path, install) -> None:
    license = "License: Some\n        Words\n        \n        more words\n"
    install("long", "1.0", metadata=license + "Requires-Dist: torch==2.11.0\nRequires-Dist: x; extra == 'dev'\n")
    install("kit", "1.0", metadata="Requires-Dist: nvidia-cublas==13.1; extra == 'cublas'\n")
    found = packages(site)
    assert found["long"].requires == ["torch==2.11.0"]
    assert found["kit"].requires == ["nvidia-cublas==13.1; extra == 'cublas'"]


def test_metadata_of_another_version_than_the_files(site: Path, install) -> None:
    install("torch", "2.9.1+cu128", {"torch/version.py": TORCH_VERSION.encode()})
    install("sglang-kernel", "0.4.2+cu130", {"sgl_kernel/version.py": b'__version__ = "0.4.2"\n'})
    found = packages(site)
    assert found["torch"].disagrees == "2.11.0+cu130"
    assert found["sglang-kernel"].disagrees is None


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize(
    ("source", "library", "links"),
    [
        ("", "libc10.so", ["torch"]),
        ("", "libtorch_python.so", ["torch"]),
        ("", "libcudart.so.13", ["cuda13"]),
        ("", "libown.so", []),
        ("", "libtorchvision.so", []),
        ("void _ZN3c1011DeviceCountEv(void); void f(void) { _ZN3c1011DeviceCountEv(); }", None, ["torch"]),
        ("void aoti_torch_empty(void); void f(void) { aoti_torch_empty(); }", None, ["torch"]),
        ("void _ZN4c1011other(void); void f(void) { _ZN4c1011other(); }", None, []),
    ],
)
def test_links(site: Path, install, tmp_path: Path, source: str, library: str | None, links: list[str]) -> None:
    """Told by DT_NEEDED, and by the symbols that are wanted where an extension is linked to nothing."""
    arguments = []
    if library is not None:
        compile_object(tmp_path / library, "")
        arguments = ["-Wl,--no-as-needed", str(tmp_path / library)]
    compile_object(tmp_path / "ops.so", source, *arguments)
    install("mine", "1.0", {"mine/ops.so": (tmp_path / "ops.so").read_bytes()})
    assert packages(site)["mine"].links == links


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_a_library_that_the_package_brings_is_no_link(site: Path, install, tmp_path: Path) -> None:
    compile_object(tmp_path / "libcudart.so.12", "")
    compile_object(tmp_path / "ops.so", "", "-Wl,--no-as-needed", str(tmp_path / "libcudart.so.12"))
    files = {f"mine/{name}": (tmp_path / name).read_bytes() for name in ("ops.so", "libcudart.so.12")}
    install("mine", "1.0", files)
    assert packages(site)["mine"].links == []


def test_old_formats(site: Path, tmp_path: Path) -> None:
    text = "Metadata-Version: 1.1\nName: Old-Egg\nVersion: 0.5\n"
    (site / "Old_Egg-0.5-py3.11.egg-info").write_text(text)
    (site / "Folder_Egg-0.6-py3.11.egg-info").mkdir()
    (site / "Folder_Egg-0.6-py3.11.egg-info" / "PKG-INFO").write_text(text.replace("Old-Egg", "Folder-Egg"))
    project = tmp_path / "project"
    (project / "dev.egg-info").mkdir(parents=True)
    (project / "dev.egg-info" / "PKG-INFO").write_text(text.replace("Old-Egg", "Dev"))
    (site / "dev.egg-link").write_text(f"{project}\n.")
    found = packages(site)
    assert sorted(found) == ["dev", "folder-egg", "old-egg"]
    assert found["dev"].editable == str(project)


def test_editable(site: Path, install) -> None:
    url = '{"url": "file:///srv/my%20project", "dir_info": {"editable": true}}'
    install("dev", "1.0", extra={"direct_url.json": url})
    install("notdev", "1.0", extra={"direct_url.json": url.replace("true", "false")})
    install("odd", "1.0", extra={"direct_url.json": "not json"})
    found = packages(site)
    assert [found[name].editable for name in ("dev", "notdev", "odd")] == ["/srv/my project", None, None]


@pytest.mark.parametrize(
    ("name", "version", "files", "tag"),
    [
        ("torch", "2.9.1+cu128", {}, "cu128"),
        ("torch", "2.9.1+cpu", {}, "cpu"),
        ("torch", "2.11.0", {"torch/version.py": TORCH_VERSION}, "cu130"),
        ("torch", "2.11.0", {"torch/version.py": TORCH_CPU}, "cpu"),
        ("torch", "2.11.0", {"torch/version.py": TORCH_ROCM}, None),
        ("torchvision", "0.26.0", {"torchvision/version.py": "__version__ = '0.26.0+cu130'\n"}, "cu130"),
        ("nvidia-cuda-runtime-cu12", "12.8.90", {}, "cu128"),
        ("nvidia-cuda-runtime", "13.0.96", {}, "cu130"),
        ("cuda-toolkit", "13.0.2", {}, "cu130"),
        ("nvidia-cudnn-cu13", "9.19.0.56", {}, "cu13"),
        ("nvidia-ml-py", "13.595.45", {}, None),
        ("plain", "1.0", {"plain/version.py": "cuda = None\n"}, None),
        ("plain", "1.0", {"plain/version.py": "__version__ = '1.0'\n"}, None),
        ("numpy", "2.3.5", {}, None),
    ],
)
def test_abi_tag(site: Path, install, name: str, version: str, files: dict[str, str], tag: str | None) -> None:
    install(name, version, files={path: text.encode() for path, text in files.items()})
    assert packages(site)[name].abi_tag == tag


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize(
    ("needed", "tag"),
    [
        (["libcudart.so.13"], "cu13"),
        (["libcudart.so.12", "libcublas.so.12"], "cu12"),
        (["libcudart.so.12", "libcublas.so.13"], None),
        (["libm.so.6"], None),
        ([], None),
    ],
)
def test_abi_tag_of_what_is_linked(site: Path, install, tmp_path: Path, needed: list[str], tag: str | None) -> None:
    libraries = [str(compile_object(tmp_path / name, "")) for name in needed]
    built = compile_object(tmp_path / "ops.so", "", "-Wl,--no-as-needed", *libraries, soname=None)
    install("sgl-kernel", "0.3.21", files={"sgl_kernel/sm100/common_ops.abi3.so": built.read_bytes()})
    assert packages(site)["sgl-kernel"].abi_tag == tag


def test_abi_tag_of_what_is_required(site: Path, install) -> None:
    library = {"thing/ops.so": b"not an ELF file"}
    install("thing", "1.0", files=library, metadata="Requires-Dist: nvidia-nccl-cu12>=2.2\n")
    install("other", "1.0", files=library, metadata='Requires-Dist: nvidia-nccl-cu12; extra == "gpu"\n')
    install("newer", "1.0", files=library, metadata="Requires-Dist: cuda-toolkit[cublas]==13.0.2\n")
    found = packages(site)
    assert [found[name].abi_tag for name in ("thing", "other", "newer")] == ["cu12", None, "cu13"]
