"""Lock files: every package pinned and hashed, or file:line says why not; markers pick for a host's Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.profiles.lock import packages_for, parse_lock
from ddtree_deploy.profiles.model import LockedPackage
from ddtree_deploy.resources import data_dir

A, B = "a" * 64, "b" * 64
LOCK = Path("x.lock")


def parse(text: str) -> list[LockedPackage]:
    return parse_lock(text, LOCK)


def test_packages() -> None:
    text = f"""# made by uv
Foo_Bar==1.0 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B}
    # via
    #   baz
torch==2.11.0+cu128 ; sys_platform == 'linux' --hash=sha256:{A}  # via foo

baz[extra]==2.0.post1 --hash=sha256:{B}
"""
    assert parse(text) == [
        LockedPackage("foo-bar", "1.0", [A, B]),
        LockedPackage("torch", "2.11.0+cu128", [A], 'sys_platform == "linux"', "cu128"),
        LockedPackage("baz", "2.0.post1", [B]),
    ]


def test_abi_of_the_profile_goes_before_the_version() -> None:
    text = f"torch==2.11.0 --hash=sha256:{A}\nfoo==1.0+cpu --hash=sha256:{A}\nbar==1.0+local --hash=sha256:{A}\n"
    tags = [package.abi_tag for package in parse_lock(text, LOCK, {"torch": "cu130"})]
    assert tags == ["cu130", "cpu", None]


OK = f"ok==1 --hash=sha256:{A}\n"


@pytest.mark.parametrize(
    ("line", "id", "words"),
    [
        ("foo==1.0", "lock-no-hash", "foo"),
        ("foo==1.0 \\\n    # via x", "lock-no-hash", "foo"),
        (f"foo>=1.0 --hash=sha256:{A}", "lock-not-pinned", ">=1.0"),
        (f"foo==1.* --hash=sha256:{A}", "lock-not-pinned", "==1.*"),
        (f"foo==1.0,!=2 --hash=sha256:{A}", "lock-not-pinned", "exactly one"),
        (f"foo===1.0 --hash=sha256:{A}", "lock-not-pinned", "===1.0"),
        (f"foo --hash=sha256:{A}", "lock-not-pinned", "no version"),
        (f"foo @ https://x/foo.whl --hash=sha256:{A}", "lock-not-pinned", "URL"),
        ("foo==1.0 --hash=md5:" + "a" * 32, "lock-bad-hash", "md5"),
        ("foo==1.0 --hash=sha256:abc", "lock-bad-hash", "64 hex"),
        (f"foo==1.0 --hash=sha256:{A.upper()}", "lock-bad-hash", "64 hex"),
        (f"foo==1.0 --hash=sha256:{A} --foo", "lock-syntax", "--foo"),
        (f"foo==1.0 ; python_vers < '3' --hash=sha256:{A}", "lock-bad-marker", "python_vers"),
        (f"foo==1.0 ; --hash=sha256:{A}", "lock-bad-marker", "foo==1.0 ;"),
        (f"foo bar==1.0 --hash=sha256:{A}", "lock-syntax", "foo bar"),
        ("--index-url https://x/simple", "lock-option", "--index-url"),
        ("-e .", "lock-option", "-e"),
        ("-r other.txt", "lock-option", "-r"),
        (f"ok==2 --hash=sha256:{B}", "lock-duplicate", "line 3"),
    ],
)
def test_bad_line(line: str, id: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(f"# one\n\n{OK}    # via\n{line}\n")
    error = caught.value
    assert (error.id, error.where, error.exit_code) == (id, "x.lock:5", 3)
    assert words in error.message


def test_empty() -> None:
    with pytest.raises(InputError) as caught:
        parse("# nothing\n")
    assert caught.value.id == "lock-empty"


def names(packages: list[LockedPackage]) -> set[str]:
    return {f"{package.name}=={package.version}" for package in packages}


def test_markers() -> None:
    text = f"""
numpy==2.3.5 ; python_full_version < '3.13' --hash=sha256:{A}
numpy==2.4.6 ; python_full_version >= '3.13' --hash=sha256:{A}
av==1 ; platform_machine == 'aarch64' and sys_platform == 'linux' --hash=sha256:{A}
winonly==1 ; os_name == 'nt' --hash=sha256:{A}
pypy==1 ; implementation_name == 'pypy' --hash=sha256:{A}
tomli==1 ; python_version < '3.11' --hash=sha256:{A}
always==1 --hash=sha256:{A}
"""
    packages = parse(text)
    assert names(packages_for(packages, "3.11.2", "x86_64")) == {"numpy==2.3.5", "always==1"}
    assert names(packages_for(packages, "3.13", "aarch64")) == {"numpy==2.4.6", "av==1", "always==1"}
    assert names(packages_for(packages, "3.9.18", "x86_64")) == {"numpy==2.3.5", "tomli==1", "always==1"}


def test_two_versions_for_one_host() -> None:
    text = f"a==1 ; python_version < '3.12' --hash=sha256:{A}\na==2 ; python_version > '3.9' --hash=sha256:{A}\n"
    with pytest.raises(InputError) as caught:
        packages_for(parse(text), "3.11.2", "x86_64")
    assert caught.value.id == "lock-ambiguous"


@pytest.mark.parametrize("version", ["", "three"])
def test_bad_python(version: str) -> None:
    with pytest.raises(InputError) as caught:
        packages_for([], version, "x86_64")
    assert caught.value.id == "bad-python-version"


@pytest.mark.parametrize("python", ["3.11.2", "3.12.4"])
def test_shipped_lock(python: str) -> None:
    path = data_dir("overlays") / "sglang-0.5.11.lock"
    text = path.read_text("utf-8")
    assert "://" not in text  # no index is named
    chosen = {package.name: package for package in packages_for(parse_lock(text, path), python, "x86_64")}
    expected = {
        "sglang": "0.5.11",
        "torch": "2.11.0",
        "torchvision": "0.26.0",
        "sglang-kernel": "0.4.2",
        "flashinfer-python": "0.6.8.post1",
        "transformers": "5.6.0",
        "triton": "3.6.0",
    }
    assert {name: chosen[name].version for name in expected} == expected
    assert chosen["kernels"].version.split(".")[:2] < ["0", "13"]
    assert "pybase64" in chosen
    assert "pywin32" not in chosen
