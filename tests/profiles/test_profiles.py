"""Profiles: shipped ones load, a user's own is found, and everything wrong has file:line and a key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_deploy.codec import dumps, from_dict, to_dict
from ddtree_deploy.errors import InputError
from ddtree_deploy.profiles.loader import load_profile
from ddtree_deploy.profiles.model import Profile
from ddtree_deploy.resources import data_dir

SHA = "a" * 64
BASIC = """
name: mine
engine: sglang
engine_version: 0.5.11
abi_tag: cu130
requires_python: ">=3.11"
machine: [x86_64]
min_driver_cuda: 13.0
lock: mine.lock
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def _write(text: str = BASIC, lock: str = f"sglang==0.5.11 --hash=sha256:{SHA}\n", name: str = "mine") -> Path:
        (tmp_path / "mine.lock").write_text(lock, "utf-8")
        path = tmp_path / f"{name}.yaml"
        path.write_text(text.lstrip("\n"), "utf-8")
        return path

    return _write


def test_shipped() -> None:
    cpu, cu130, cu128 = (load_profile(f"sglang-0.5.11-{kind}") for kind in ("cpu", "cu130", "cu128"))
    assert {cpu.engine_version, cu130.engine_version, cu128.engine_version} == {"0.5.11"}
    assert cpu.packages == cu130.packages
    assert (cpu.gpu, cu130.gpu, cu130.min_driver_cuda, cu128.min_driver_cuda) == (False, True, "13.0", "12.8")
    assert next(package.abi_tag for package in cpu.packages if package.name == "torch") == "cu130"
    paths = {extra.path: extra for extra in cpu.extra_files}
    assert set(paths) == {"lib/ddtree-shims/libcuda.so.1", "{site}/vllm/__init__.py", "{site}/vllm/_custom_ops.py"}
    assert paths["lib/ddtree-shims/libcuda.so.1"].mode == 0o755
    assert cpu.environment["LD_LIBRARY_PATH"] == "{release}/lib/ddtree-shims"
    assert cpu.environment["OMP_NUM_THREADS"] == "1"
    assert cpu.engine_arguments[:4] == ["--device", "cpu", "--attention-backend", "torch_native"]
    assert "--sleep-on-idle" in cpu.engine_arguments
    assert cu130.needs_index is None
    assert cu128.packages == []
    assert "torch==2.11.0+cu128" in cu128.requirements
    assert "transformers==5.6.0" in cu128.constraints
    assert not [line for line in cu128.constraints if line.startswith(("torch==", "triton==", "cuda-bindings=="))]
    assert len({cpu.digest, cu130.digest, cu128.digest}) == 3


def test_own_profile_by_path_and_by_name(write: Callable[..., Path], tmp_path: Path) -> None:
    path = write()
    profile = load_profile(path)
    assert profile.min_driver_cuda == "13.0"  # unquoted, and still the text
    assert load_profile("mine", [tmp_path]) == profile
    assert load_profile("./mine.yaml", [tmp_path]).digest == profile.digest


def test_own_profile_may_name_a_shipped_lock(write: Callable[..., Path]) -> None:
    profile = load_profile(write(BASIC.replace("mine.lock", "sglang-0.5.11.lock")))
    assert len(profile.packages) > 150


def test_the_line_ends_of_a_lock_do_not_count(write: Callable[..., Path], tmp_path: Path) -> None:
    profile = load_profile(write())
    lock = tmp_path / "mine.lock"
    lock.write_bytes(b"\xef\xbb\xbf" + lock.read_bytes().replace(b"\n", b"\r\n"))
    assert load_profile(tmp_path / "mine.yaml") == profile


def test_names_and_versions_may_be_written_otherwise(write: Callable[..., Path]) -> None:
    text = BASIC.replace("sglang", "SGLang").replace("0.5.11", "0.5.11.0")
    profile = load_profile(write(text))
    assert (profile.engine, [package.version for package in profile.packages]) == ("sglang", ["0.5.11"])
    with pytest.raises(InputError) as caught:
        load_profile(write(text.replace("0.5.11.0", "0.5.11.1")))
    assert caught.value.id == "profile-engine-version"


def test_what_a_lock_need_not_keep_may_be_written_otherwise(write: Callable[..., Path]) -> None:
    lock = f"nvidia-cublas==13.0 --hash=sha256:{SHA}\nsglang==0.5.11 --hash=sha256:{SHA}\n"
    text = BASIC.replace("lock: mine.lock", "lock: null\nrequirements: [sglang]\nconstraints: mine.lock")
    assert load_profile(write(text + "unconstrained: [NVIDIA_*]\n", lock)).constraints == ["sglang==0.5.11"]


def test_unknown(write: Callable[..., Path], tmp_path: Path) -> None:
    write()
    (tmp_path / "hosts.yaml").write_text("hosts: {}")
    with pytest.raises(InputError) as caught:
        load_profile("sglang-0.5.11-cu13", [tmp_path])
    assert (caught.value.id, caught.value.exit_code) == ("unknown-profile", 3)
    for name in ("sglang-0.5.11-cpu", "sglang-0.5.11-cu128", "sglang-0.5.11-cu130"):
        assert name in str(caught.value.hint)
    assert "hosts" not in str(caught.value.hint)
    with pytest.raises(InputError, match="unknown profile") as caught:
        load_profile("min", [tmp_path])
    assert "mine" in str(caught.value.hint)
    with pytest.raises(InputError) as caught:
        load_profile("./none.yaml", [tmp_path])
    assert caught.value.id == "file-missing"


def test_digest_depends_on_contents_alone(write: Callable[..., Path], tmp_path: Path) -> None:
    extra = BASIC + "extra_files: [{path: 'lib/x', source: shim}]\n"
    (tmp_path / "shim").write_text("one")
    first = load_profile(write(extra))
    other = tmp_path / "other"
    other.mkdir()
    for name in ("mine.yaml", "mine.lock", "shim"):
        (other / name).write_bytes((tmp_path / name).read_bytes())
    assert load_profile(other / "mine.yaml").digest == first.digest
    assert load_profile(write(extra + "description: words\n")).digest == first.digest
    digests = {first.digest}
    (tmp_path / "shim").write_text("two")
    digests.add(load_profile(write(extra)).digest)
    digests.add(load_profile(write(extra + "environment: {A: 1}\n")).digest)
    digests.add(load_profile(write(extra + "abi: {sglang: cu130}\n")).digest)
    digests.add(load_profile(write(extra, f"sglang==0.5.11 --hash=sha256:{'b' * 64}\n")).digest)
    assert len(digests) == 5


def test_crosses_the_wire() -> None:
    profile = load_profile("sglang-0.5.11-cpu")
    assert from_dict(Profile, to_dict(profile)) == profile
    assert dumps(profile)


def test_folder_of_extra_files_leaves_out_byte_code(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "shims" / "sub" / "__pycache__").mkdir(parents=True)
    for name in ("a.py", "sub/b.py", "sub/__pycache__/b.pyc"):
        (tmp_path / "shims" / name).write_text(name)
    profile = load_profile(write(BASIC + "extra_files: [{path: '{site}/x', source: shims, mode: 600}]\n"))
    assert [extra.path for extra in profile.extra_files] == ["{site}/x/a.py", "{site}/x/sub/b.py"]
    assert profile.extra_files[0].mode == 0o600


BAD = {
    "unknown key": ("enviroment: {A: b}", "unknown-key", "9:1", "'environment'"),
    "bad tag": ("abi: {torch: cuda13}", "bad-abi-tag", "9:14", ""),
    "placeholder": ("environment: {A: '{relase}/x'}", "bad-placeholder", "9:18", "{release}"),
    "variable": ("environment: {A B: x}", "bad-environment", "9:20", ""),
    "variable without text": ("environment: {A: }", "wrong-type", "9:17", 'write ""'),
    "glibc": ("min_glibc: new", "bad-version", "9:12", ""),
    "extra outside": ("extra_files: [{path: ../x, source: mine.lock}]", "bad-path", "9:22", "{site}"),
    "extra absolute": ("extra_files: [{path: /x, source: mine.lock}]", "bad-path", "9:22", ""),
    "extra placeholder": ("extra_files: [{path: '{sites}/x', source: mine.lock}]", "bad-path", "9:22", ""),
    "extra missing": ("extra_files: [{path: x, source: none}]", "profile-file-missing", "9:33", ""),
    "extra twice": (
        "extra_files: [{path: x, source: mine.lock}, {path: x, source: mine.lock}]",
        "bad-value",
        "9:52",
        "",
    ),
    "extra mode": ("extra_files: [{path: x, source: mine.lock, mode: 999}]", "bad-mode", "9:50", ""),
    "requirements beside a lock": ("requirements: [a]", "profile-two-sources", "9:15", ""),
    "bad requirement": ("requirements: ['a b']", "bad-requirement", "9:16", ""),
    "requirement by URL": ("requirements: ['a @ https://x/a.whl']", "bad-requirement", "9:16", "index"),
    "gpu": ("gpu: yes", "wrong-type", "9:6", "write true"),
    "cpu build with a gpu": ("gpu: false", "bad-abi-tag", "4:10", ""),
    "reserved argument": ("engine_arguments: {host: x}", "reserved-engine-argument", "9:19", ""),
    "duplicate": ("engine: other", "yaml-duplicate-key", "9:1", ""),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_profile(case: str, write: Callable[..., Path]) -> None:
    line, id, place, hint = BAD[case]
    path = write(BASIC.lstrip("\n") + line + "\n")
    with pytest.raises(InputError) as caught:
        load_profile(path)
    assert (caught.value.id, caught.value.where) == (id, f"{path}:{place}")
    assert hint in str(caught.value.hint or "")


@pytest.mark.parametrize(
    ("old", "new", "id"),
    [
        ("lock: mine.lock", "", "missing-key"),
        ("lock: mine.lock", "lock: null", "profile-no-packages"),
        ("lock: mine.lock", "lock: none.lock", "profile-file-missing"),
        ("name: mine", "name: other", "profile-name"),
        ("engine_version: 0.5.11", "engine_version: latest", "bad-version"),
        ("engine_version: 0.5.11", "engine_version: 0.5.10", "profile-engine-version"),
        ("abi_tag: cu130", "abi_tag: 130", "wrong-type"),
        ('">=3.11"', "3.11", "bad-version"),
        ("[x86_64]", "[]", "bad-value"),
        ("[x86_64]", "x86_64", "wrong-type"),
        ("13.0", "13", "bad-version"),
    ],
)
def test_bad_value(old: str, new: str, id: str, write: Callable[..., Path]) -> None:
    with pytest.raises(InputError) as caught:
        load_profile(write(BASIC.replace(old, new)))
    assert (caught.value.id, caught.value.exit_code) == (id, 3)
    assert caught.value.where


def test_errors_of_the_lock_name_the_lock(write: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_profile(write(lock="# c\nsglang==0.5.11\n"))
    assert (caught.value.id, caught.value.where) == ("lock-no-hash", f"{tmp_path}/mine.lock:2")


def test_data_is_found_in_the_source_tree() -> None:
    assert (data_dir("overlays") / "sglang-0.5.11.in").is_file()
