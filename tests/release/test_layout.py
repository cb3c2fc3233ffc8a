from __future__ import annotations

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.release.layout import Layout


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
