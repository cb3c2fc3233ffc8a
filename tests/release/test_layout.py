from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_deploy.abi.cache import cache_folder
from ddtree_deploy.abi.diff import op_diff
from ddtree_deploy.agent.blobs import op_missing
from ddtree_deploy.agent.protocol import silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.store import op_list
from ddtree_deploy.serve.operations import op_status


def test_paths() -> None:
    layout = Layout("/opt/ddtree/")
    assert str(layout.partial("a-1")) == "/opt/ddtree/releases/a-1.partial"
    assert str(layout.record("a-1")) == "/opt/ddtree/releases/a-1/.ddtree/release.json"
    assert str(layout.blob("00")) == "/opt/ddtree/cache/blobs/00"


def test_the_users_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert str(Layout("~/ddtree").root) == "/home/ada/ddtree"
    with pytest.raises(InputError):
        Layout("~no-such-user/ddtree")


@pytest.mark.parametrize(
    "root", ["", "relative", "/", "/opt/../etc", "/opt/a:b", "/opt/a'b", "/opt/$HOME", "/a\nb", "/a`b"]
)
def test_bad_roots(root: str) -> None:
    with pytest.raises(InputError) as caught:
        Layout(root)
    assert caught.value.id == "bad-root"


def test_blanks_and_umlauts_are_fine() -> None:
    assert str(Layout("/srv/my models/größe").current) == "/srv/my models/größe/current"


@pytest.mark.parametrize("name", ["", "..", "a/b", "../x", ".hidden", "x.partial", "x.removing", "a b", "-x", "a\n"])
def test_bad_release_ids(name: str) -> None:
    with pytest.raises(InputError) as caught:
        Layout("/opt/ddtree").release(name)
    assert caught.value.id == "bad-release-id"


def test_operations_take_a_root_in_the_users_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    release = tmp_path / "ddtree" / "releases" / "a-1"
    release.mkdir(parents=True)
    (tmp_path / "ddtree" / "current").symlink_to("releases/a-1")
    assert op_list({"root": "~/ddtree"}, silent)["current"] == "a-1"
    assert op_status({"root": "~/ddtree"}, silent) == {"services": []}
    missing = op_missing({"root": "~/ddtree", "blobs": {"0" * 64: 1}}, silent)
    assert missing["paths"] == {"0" * 64: f"{tmp_path}/ddtree/cache/blobs/{'0' * 64}"}
    assert cache_folder("~/ddtree") == f"{tmp_path}/ddtree/cache/abi"
    with pytest.raises(InputError, match="no release b-1") as caught:
        op_diff({"root": "~/ddtree", "left": "b-1", "right": "a-1"}, silent)
    assert caught.value.hint == "there are: a-1"
