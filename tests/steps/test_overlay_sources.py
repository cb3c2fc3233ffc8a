"""What indexes, wheelhouses and donors do to an overlay, good and bad."""

from __future__ import annotations

import functools
import http.server
import json
import threading
import zipfile
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

import pytest
import venvs
from overlay_runs import Install, imported, notes, run, site, wheelhouse

from ddtree_deploy.errors import DeployError, InputError, StepError
from ddtree_deploy.plan.model import Action


def failure(
    root: Path, base: Path, overlay: Action, blobs: Dict[str, str], indexes: Optional[List[str]] = None
) -> DeployError:
    before = venvs.tree_state(base)
    with pytest.raises(StepError) as caught:
        run(root, base, overlay, blobs, indexes)
    assert caught.value.exit_code == 5
    assert caught.value.hint
    assert not (root / "current").is_symlink()
    assert not list((root / "releases").iterdir())
    assert not list((root / "cache").rglob("*.partial"))
    assert venvs.tree_state(base) == before
    return caught.value


def test_corrupt_wheel(root: Path, base: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_bytes(b"PK\x03\x04 this is no zip")
    error = failure(root, base, *wheelhouse([("broken", "1.0", broken)], []))
    assert error.id == "corrupt-wheel", error.message
    assert "broken" in error.message


@pytest.mark.parametrize("name", ["extra-1.0-py3-none-any.zip", "--find-links.whl", ""])
def test_what_is_not_the_name_of_a_wheel(root: Path, base: Path, wheels: Dict[str, Path], name: str) -> None:
    overlay, blobs = wheelhouse([("extra", "1.0", wheels["extra"])], [])
    overlay.params["wheels"][0]["name"] = name
    with pytest.raises(InputError) as caught:
        run(root, base, overlay, blobs)
    assert caught.value.id == "bad-wheel-name"
    assert not list((root / "releases").iterdir())


def test_uv_that_is_not_there(
    root: Path, base: Path, wheels: Dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay, blobs = wheelhouse([("extra", "1.0", wheels["extra"])], [])
    overlay.params["uv"] = {"path": str(tmp_path / "removed" / "uv")}
    error = failure(root, base, overlay, blobs)
    assert (error.id, error.where) == ("uv-missing", str(tmp_path / "removed" / "uv"))
    overlay.params["uv"] = {}  # none on the host when it was planned, none for its machine
    monkeypatch.setenv("PATH", str(tmp_path))
    assert failure(root, base, overlay, blobs).id == "uv-missing"


def test_wheel_with_another_hash(root: Path, base: Path, wheels: Dict[str, Path]) -> None:
    overlay, blobs = wheelhouse([("extra", "1.0", wheels["extra"])], [])
    overlay.params["install"][0]["hashes"] = ["1" * 64]
    error = failure(root, base, overlay, blobs)
    assert error.id == "hash-mismatch", error.message
    assert "extra" in error.message


@pytest.mark.parametrize("tag", ["cp27-cp27m-manylinux1_x86_64", "py3-none-win_amd64", "cp39-cp39-macosx_11_0_arm64"])
def test_wheel_for_another_python_or_platform(root: Path, base: Path, tmp_path: Path, tag: str) -> None:
    wheel = venvs.make_wheel(tmp_path / "w", "other", "1.0", {"other.py": ""}, tag=tag)
    error = failure(root, base, *wheelhouse([("other", "1.0", wheel)], []))
    assert error.id == "no-matching-wheel", error.message


def test_wheel_that_is_not_what_its_record_says(root: Path, base: Path, tmp_path: Path) -> None:
    wheel = venvs.make_wheel(tmp_path / "w", "odd", "1.0", {"odd.py": "ODD = 1\n"})
    with zipfile.ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in {**members, "odd.py": b"ODD = 22\n"}.items():
            archive.writestr(name, data)
    error = failure(root, base, *wheelhouse([("odd", "1.0", wheel)], []))
    assert error.id == "source-incomplete"
    assert "odd.py (9 bytes instead of 8)" in error.message and "wheel" in error.message


def test_package_that_the_source_lacks(root: Path, base: Path, wheels: Dict[str, Path]) -> None:
    overlay, blobs = wheelhouse([("extra", "1.0", wheels["extra"])], [])
    overlay.params["install"].append({"name": "absent", "version": "3.0", "hashes": ["1" * 64]})
    error = failure(root, base, overlay, blobs)
    assert error.id == "package-not-found", error.message
    assert "absent" in error.message


def test_index_that_does_not_answer(root: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    overlay = venvs.overlay_action([("extra", "1.0", ["1" * 64])], [], {"kind": "index"})
    error = failure(root, base, overlay, {}, ["http://user:secret@127.0.0.1:9/simple"])
    assert error.id == "index-unreachable", error.message
    assert "secret" not in json.dumps(error.to_dict())
    assert error.where is not None
    assert "secret" not in Path(error.where).read_text()
    assert "secret" not in (root / "journal.jsonl").read_text()


@pytest.fixture
def index(tmp_path: Path, wheels: Dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A simple package index (PEP 503) on loopback that asks for a password."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))  # it keeps what another index had at the same port
    folder = tmp_path / "index"
    for name in ("lib-2", "extra"):
        wheel = wheels[name]
        project = folder / "simple" / wheel.name.split("-")[0].replace("_", "-")
        project.mkdir(parents=True)
        (project / wheel.name).write_bytes(wheel.read_bytes())
        (project / "index.html").write_text(f'<a href="{wheel.name}#sha256={venvs.sha256(wheel)}">{wheel.name}</a>')

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.headers.get("Authorization") != "Basic dXNlcjpzZWNyZXQ=":
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)  # how long `shutdown` waits
    thread.start()
    yield f"127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()
    thread.join()


def test_index_with_a_password(root: Path, base: Path, wheels: Dict[str, Path], index: str) -> None:
    install: Install = [
        ("some-lib", "2.0", ["0" * 64, venvs.sha256(wheels["lib-2"])]),
        ("extra", "1.0", [venvs.sha256(wheels["extra"])]),
    ]
    overlay = venvs.overlay_action(install, ["some-lib"], {"kind": "index"})
    release, _ = run(root, base, overlay, indexes=[f"http://user:secret@{index}"])
    assert imported(release, "import some_lib, extra; print(some_lib.VALUE)") == "2"
    texts = [path.read_text() for path in (root / "logs").rglob("*.log")]
    assert texts
    assert not [text for text in [*texts, (root / "journal.jsonl").read_text()] if "secret" in text]
    assert venvs.mentions(release, "secret") == []


def test_further_index(
    root: Path, base: Path, wheels: Dict[str, Path], index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://user:secret@{index}")  # stands for uv's configuration on the host
    overlay = venvs.overlay_action([("extra", "1.0", [venvs.sha256(wheels["extra"])])], [], {"kind": "index"})
    release, _ = run(root, base, overlay, indexes=["default", f"http://user:secret@{index}"])
    assert imported(release, "import extra; print(extra.EXTRA)") == "True"


def test_index_that_refuses(root: Path, base: Path, index: str) -> None:
    overlay = venvs.overlay_action([("extra", "1.0", ["1" * 64])], [], {"kind": "index"})
    error = failure(root, base, overlay, {}, [f"http://{index}"])
    assert error.id in ("index-refused", "package-not-found"), (
        error.message
    )  # uv does not always tell one from the other
    assert "password" in (error.hint or "")


def test_donor(root: Path, base: Path, tmp_path: Path, wheels: Dict[str, Path]) -> None:
    donor = venvs.make_filled_venv(tmp_path / "donor", wheels["lib-2"], wheels["extra"], wheels["engine-1"])
    (donor / venvs.SITE / "some_lib" / "path.txt").write_text("")
    venvs.run([donor / "bin" / "python", "-c", "import some_lib"])  # leaves byte code
    before, base_before = venvs.tree_state(donor), venvs.tree_state(base)
    overlay = venvs.overlay_action(
        [("some-lib", "2.0", []), ("extra", "1.0", [])], ["some-lib"], {"kind": "donor", "location": str(donor)}
    )
    release, result = run(root, base, overlay)
    assert venvs.tree_state(donor) == before
    assert venvs.tree_state(base) == base_before
    assert imported(release, "import some_lib, extra; print(some_lib.VALUE)") == "2"
    assert venvs.mentions(release, str(donor)) == []
    assert (release / "bin" / "some-lib").read_text().startswith(f"#!{release}/bin/python")
    shared = site(release) / "extra.py"
    assert shared.stat().st_ino == (donor / venvs.SITE / "extra.py").stat().st_ino
    assert result["actions"][1]["result"]["staging"] is None


def test_donor_with_edited_missing_and_unrecorded_files(
    root: Path, base: Path, tmp_path: Path, wheels: Dict[str, Path]
) -> None:
    donor = venvs.make_filled_venv(tmp_path / "donor", wheels["lib-2"], wheels["extra"])
    edited = donor / venvs.SITE / "some_lib" / "__init__.py"
    edited.unlink()
    edited.write_text("VALUE = 3\n")
    (donor / venvs.SITE / "extra-1.0.dist-info" / "RECORD").unlink()
    overlay = venvs.overlay_action(
        [("some-lib", "2.0", []), ("extra", "1.0", [])], ["some-lib"], {"kind": "donor", "location": str(donor)}
    )
    release, result = run(root, base, overlay)
    assert imported(release, "import some_lib, extra; print(some_lib.VALUE)") == "3"
    assert "some_lib/__init__.py" in notes(result)["donor-edited"]
    assert "extra" in notes(result)["no-record"]
    (donor / venvs.SITE / "some_lib" / "new.py").unlink()
    with pytest.raises(StepError, match=r"new\.py") as caught:
        run(root, base, overlay, release_id="test-2")
    assert caught.value.id == "source-incomplete"


def test_files_of_a_donor_that_are_links_out_of_it(
    root: Path, base: Path, tmp_path: Path, wheels: Dict[str, Path]
) -> None:
    """As ``uv pip install --link-mode symlink`` makes them, into uv's cache."""
    donor = venvs.make_filled_venv(tmp_path / "donor", wheels["lib-2"], wheels["extra"])
    site, cache = donor / venvs.SITE, tmp_path / "uv-cache"
    cache.mkdir()
    for name in ("extra.py", "some_lib/new.py", "some_lib-2.0.dist-info/METADATA"):
        (site / name).rename(cache / Path(name).name)
        (site / name).symlink_to(cache / Path(name).name)
    (site / "some_lib" / "inside.py").symlink_to("__init__.py")
    with (site / "some_lib-2.0.dist-info" / "RECORD").open("a") as record:
        record.write("some_lib/inside.py,,\n")
    (site / "extra-1.0.dist-info" / "RECORD").unlink()  # put together with a RECORD of its own
    install: Install = [("some-lib", "2.0", []), ("extra", "1.0", [])]
    for number, packages in enumerate((install, install[:1])):
        overlay = venvs.overlay_action(packages, ["some-lib"], {"kind": "donor", "location": str(donor)})
        before = venvs.tree_state(donor)
        release, _ = run(root, base, overlay, release_id=f"test-{number}")
        links = [path for path in (release / venvs.SITE).rglob("*") if path.is_symlink()]
        assert [(path.name, str(path.readlink())) for path in links] == [("inside.py", "__init__.py")]
        assert venvs.tree_state(donor) == before
    (cache / "new.py").unlink()
    with pytest.raises(StepError, match=r"some_lib/new\.py") as caught:
        run(root, base, overlay, release_id="test-2")
    assert caught.value.id == "source-incomplete"


@pytest.mark.parametrize(
    ("install", "id"), [([("extra", "1.0", [])], "source-lacks"), ([("some-lib", "9.0", [])], "source-lacks")]
)
def test_donor_that_lacks_something(
    root: Path, base: Path, tmp_path: Path, wheels: Dict[str, Path], install: Install, id: str
) -> None:
    donor = venvs.make_filled_venv(tmp_path / "donor", wheels["lib-2"])
    with pytest.raises(StepError) as caught:
        run(root, base, venvs.overlay_action(install, [], {"kind": "donor", "location": str(donor)}))
    assert caught.value.id == id


def test_donor_that_is_none(root: Path, base: Path, tmp_path: Path) -> None:
    source = {"kind": "donor", "location": str(tmp_path / "nothing")}
    with pytest.raises(InputError) as caught:
        run(root, base, venvs.overlay_action([("extra", "1.0", [])], [], source))
    assert caught.value.id == "donor-missing"


def test_uv_sent_as_a_blob(root: Path, base: Path, tmp_path: Path, wheels: Dict[str, Path]) -> None:
    sent = tmp_path / "blob"
    sent.write_text(f'#!/bin/sh\nexec "{venvs.UV}" "$@"\n')
    overlay, blobs = wheelhouse([("extra", "1.0", wheels["extra"])], [])
    overlay.params["uv"] = {"sha256": venvs.sha256(sent)}
    release, _ = run(root, base, overlay, {**blobs, venvs.sha256(sent): str(sent)})
    assert imported(release, "import extra; print(extra.EXTRA)") == "True"
    assert sent.stat().st_mode & 0o111 == 0


def test_two_owners_in_the_source(root: Path, base: Path, tmp_path: Path) -> None:
    one = venvs.make_wheel(tmp_path / "w", "one", "1", {"shared.py": "A = 1\n"})
    two = venvs.make_wheel(tmp_path / "w", "two", "1", {"shared.py": "A = 22\n"})
    overlay, blobs = wheelhouse([("one", "1", one), ("two", "1", two)], [])
    release, result = run(root, base, overlay, blobs)
    assert imported(release, "import shared; print(shared.A)") in ("1", "22")
    assert "shared.py of one, two" in notes(result)["shared-file"]
