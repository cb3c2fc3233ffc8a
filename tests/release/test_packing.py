"""Packages of a donor on another host: packed there, brought over, unpacked here."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import pytest
import venvs

from ddtree_deploy.agent.operations import find
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.donor_transfer import bring_packages
from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.release.executor import apply_plan
from ddtree_deploy.release.packing import op_digest, op_open, op_read, unpack


class Here:
    """A session whose agent is this very process. ``on_call`` sees each operation before it runs."""

    def __init__(self, on_call: Optional[Callable[[str], None]] = None) -> None:
        self.on_call = on_call or (lambda op: None)
        self.sent: list[str] = []

    def call(self, op: str, params: Dict[str, Any], on_progress: Any = None) -> Dict[str, Any]:
        self.on_call(op)
        return find(op)(params, on_progress or silent)

    def put_blobs(self, paths: Any, root: str, on_progress: Any = None) -> Dict[str, str]:
        found = {}
        for path in paths:
            self.sent.append(path.name)
            target = Path(root) / "cache" / "blobs" / venvs.sha256(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
            found[target.name] = str(target)
        return found


@pytest.fixture
def donor(tmp_path: Path, wheels: Dict[str, Path]) -> Path:
    path = venvs.make_venv(tmp_path / "donor")
    venvs.install(path, wheels["lib-2"], wheels["extra"])
    site = path / venvs.SITE
    (site / "extra.pth").write_text(f"{path}/more\n")
    (site / "some_lib" / "link").symlink_to("new.py")
    (site / "some_lib" / ("long" * 50)).write_bytes(os.urandom(5 << 20))
    with (site / "some_lib-2.0.dist-info" / "RECORD").open("a") as stream:
        stream.write(f"some_lib/link,,\nsome_lib/{'long' * 50},,\nextra.pth,,\n")
    return path


def provision(root: Path, base: Path, brought: Any) -> Path:
    source = {"kind": "donor", "location": None, "host": "elsewhere"}
    overlay = venvs.overlay_action([("some-lib", "2.0", []), ("extra", "1.0", [])], ["some-lib"], source)
    actions = [venvs.clone_action(base, "test-1", "d" * 64), overlay, venvs.activate_action()]
    plan = venvs.make_plan(root, base, "test-1", actions)
    apply_plan({"plan": plan, "blobs": brought.blobs, "donor": brought.to_params()}, silent)
    return root / "releases" / "test-1"


def test_from_host_to_host(root: Path, base: Path, donor: Path) -> None:
    before = venvs.tree_state(donor)
    packages = {"some-lib": "2.0", "extra": "1.0"}
    target = Here()
    brought = bring_packages(str(donor), packages, Here(), target, str(root))
    assert sorted(target.sent) == ["extra.tar", "some-lib.tar"]
    again = Here()
    assert bring_packages(str(donor), packages, Here(), again, str(root)) == brought
    assert again.sent == []  # what is there already is not sent again
    release = provision(root, base, brought)
    assert venvs.tree_state(donor) == before
    out = venvs.run([release / "bin" / "python", "-c", "import some_lib, extra; print(some_lib.VALUE, extra.EXTRA)"])
    assert out.stdout == "2 True\n"
    assert venvs.mentions(release, str(donor)) == []
    site = release / venvs.SITE
    assert (site / "extra.pth").read_text() == f"{release}/more\n"
    assert (site / "some_lib" / "link").readlink() == Path("new.py")
    assert venvs.sha256(site / "some_lib" / ("long" * 50)) == venvs.sha256(
        donor / venvs.SITE / "some_lib" / ("long" * 50)
    )
    assert (release / "bin" / "some-lib").stat().st_mode & 0o777 == (donor / "bin" / "some-lib").stat().st_mode & 0o777
    assert list((root / "cache" / "blobs").iterdir()) == []  # unpacked


def test_packages_that_were_not_brought(root: Path, base: Path, donor: Path) -> None:
    brought = bring_packages(str(donor), {"extra": "1.0"}, Here(), Here(), str(root))
    with pytest.raises(StepError, match="some-lib") as caught:
        provision(root, base, brought)
    assert caught.value.id == "donor-not-brought"


def test_donor_that_changes_meanwhile(root: Path, donor: Path) -> None:
    def change(op: str) -> None:
        if op == "donor.open":
            (donor / venvs.SITE / "some_lib" / "new.py").unlink()
            (donor / venvs.SITE / "some_lib" / "new.py").write_text("CHANGED = 1\n")

    with pytest.raises(StepError) as caught:
        bring_packages(str(donor), {"some-lib": "2.0"}, Here(change), Here(), str(root))
    assert caught.value.id == "donor-changed"
    assert not list(root.glob("cache/blobs/*"))


def test_donor_that_lacks_a_package_or_a_file(root: Path, donor: Path, tmp_path: Path) -> None:
    with pytest.raises(StepError) as caught:
        op_digest({"path": str(donor), "packages": {"some-lib": "3.0"}}, silent)
    assert caught.value.id == "source-lacks"
    (donor / venvs.SITE / "extra.py").unlink()
    with pytest.raises(StepError, match="extra") as caught:
        op_digest({"path": str(donor), "packages": {"extra": "1.0"}}, silent)
    assert caught.value.id == "source-incomplete"
    with pytest.raises(InputError) as missing:
        op_digest({"path": str(tmp_path / "nothing"), "packages": {}}, silent)
    assert missing.value.id == "donor-missing"


def test_reading_ends(donor: Path) -> None:
    op_open({"path": str(donor), "name": "extra", "version": "1.0"}, silent)
    while not op_read({}, silent)["end"]:
        pass
    with pytest.raises(StepError) as caught:
        op_read({}, silent)
    assert caught.value.id == "donor-not-open"


def tar_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w") as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside")],
        [member("/tmp/absolute")],
        [member("a/../../outside")],
        [member("link", tarfile.SYMTYPE, "/tmp"), member("link/file")],
        [member("device", tarfile.CHRTYPE)],
        [member("hard", tarfile.LNKTYPE, "other")],
    ],
)
def test_tars_that_would_write_elsewhere(tmp_path: Path, members: list) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StepError) as caught:
        unpack(str(tar_of(tmp_path / "x.tar", *members)), str(tmp_path / "folder"))
    assert caught.value.id == "bad-donor-tar"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "x.tar"]


def test_damaged_tar(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(b"no tar at all" * 100)
    with pytest.raises(StepError) as caught:
        unpack(str(tmp_path / "x.tar"), str(tmp_path / "folder"))
    assert caught.value.id == "bad-donor-tar"
