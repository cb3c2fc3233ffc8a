import hashlib
import itertools
import json
import os
import shutil
from difflib import SequenceMatcher
from pathlib import Path

import pytest
from patching_tree import EDITS, NEW, RELEASED, install, snapshot

from ddtree_deploy.errors import InputError, StepError
from ddtree_deploy.patching import engine, explain, transaction
from ddtree_deploy.patching.export import export
from ddtree_deploy.patching.record import Record
from ddtree_deploy.patching.series import load_patch_set
from ddtree_deploy.release.files import record_hash

SPEC_INFO = "sglang/srt/speculative/spec_info.py"
NEW_PATH = "sglang/srt/speculative/ddtree/utils.py"
INFO = "sglang-0.5.11.dist-info"


@pytest.fixture
def patch_set(patch_folder):
    return load_patch_set(str(patch_folder))


def states(patch_set, site, **kwargs):
    return {state.path: state for state in engine.check(patch_set, site, **kwargs)}


def test_check_apply_check_reverse(patch_set, site):
    before = snapshot(site)
    assert {s.state for s in engine.check(patch_set, site)} == {"pristine"}
    outcome = engine.apply(patch_set, site)
    assert outcome.changed == [p.path for p in patch_set.patches] + [NEW_PATH]
    assert {s.state for s in engine.check(patch_set, site)} == {"applied"}
    for path, content in {**RELEASED, **EDITS, **NEW}.items():
        assert (site / path).read_bytes() == content
    assert engine.applied_patch_set(engine.find_installation(site, "sglang")) == ("sglang-0.5.11", patch_set.digest)
    assert engine.reverse(patch_set, site).changed == outcome.changed
    assert snapshot(site) == before
    assert not (site / NEW_PATH).parent.exists()


def test_apply_and_reverse_twice_change_nothing(patch_set, site):
    engine.apply(patch_set, site)
    inodes = {path: path.stat().st_ino for path in site.rglob("*")}
    outcome = engine.apply(patch_set, site)
    assert outcome.changed == [] and len(outcome.unchanged) == 4
    assert {path: path.stat().st_ino for path in site.rglob("*")} == inodes
    engine.reverse(patch_set, site)
    assert engine.reverse(patch_set, site).changed == []


def test_lines_of_record_that_are_no_csv():
    content = b"a\rb,,\n" + b'"' + b"x" * 200_000 + b'",,\nsglang/a.py,sha256=x,1\n'
    record = Record(content, "RECORD")
    assert record.hash("sglang/a.py") == "sha256=x" and record.to_bytes() == content


def test_record_is_right_after_apply(patch_set, site):
    engine.apply(patch_set, site)
    record = Record((site / INFO / "RECORD").read_bytes(), f"{INFO}/RECORD")
    for path in [*EDITS, *NEW, f"{INFO}/{engine.STATE_FILE}", "sglang/srt/odd,name.json"]:
        assert record.hash(path) == record_hash((site / path).read_bytes())
    assert record.line("../../../bin/sglang") == "../../../bin/sglang,sha256=abc,3"


@pytest.mark.parametrize("spoil", ["crlf", "no end", "no hash", "other hash", "not listed", "no own line"])
def test_record_comes_back_to_the_byte(patch_set, tmp_path, spoil):
    site = install(tmp_path / "s", RELEASED, end="\r\n" if spoil == "crlf" else "\n")
    path = site / INFO / "RECORD"
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, line in enumerate(lines) if line.startswith(SPEC_INFO.encode()))
    if spoil == "no end":
        lines[-1] = lines[-1].rstrip()
    elif spoil == "no hash":
        lines[at] = f"{SPEC_INFO},,\n".encode()
    elif spoil == "other hash":
        lines[at] = f"{SPEC_INFO},md5=abc,7\n".encode()
    elif spoil == "not listed":
        del lines[at]
    elif spoil == "no own line":
        lines = [line for line in lines if b"RECORD" not in line]
    path.write_bytes(b"".join(lines))
    engine.apply(patch_set, site)
    engine.apply(patch_set, site)
    record = Record(path.read_bytes(), f"{INFO}/RECORD")
    assert record.hash(SPEC_INFO) == record_hash(EDITS[SPEC_INFO])
    engine.reverse(patch_set, site)
    assert path.read_bytes() == b"".join(lines)


def test_reverse_of_a_tree_patched_by_hand(patch_set, edited, site):
    engine.reverse(patch_set, edited)
    assert {s.state for s in engine.check(patch_set, edited)} == {"pristine"}
    record = Record((edited / INFO / "RECORD").read_bytes(), f"{INFO}/RECORD")
    assert record.hash(SPEC_INFO) == record_hash(RELEASED[SPEC_INFO])
    assert record.line(NEW_PATH) is None


def test_a_half_applied_tree_is_completed(patch_set, site):
    before = snapshot(site)
    (site / SPEC_INFO).write_bytes(EDITS[SPEC_INFO])
    outcome = engine.apply(patch_set, site)
    assert SPEC_INFO in outcome.unchanged
    record = Record((site / INFO / "RECORD").read_bytes(), f"{INFO}/RECORD")
    assert record.hash(SPEC_INFO) == record_hash(EDITS[SPEC_INFO])
    engine.reverse(patch_set, site)
    assert snapshot(site) == before


def test_hard_links_keep_the_old_content(patch_set, site, tmp_path):
    base = tmp_path / "base"
    for path in [p for p in site.rglob("*") if p.is_file()]:
        (base / path.relative_to(site)).parent.mkdir(parents=True, exist_ok=True)
        os.link(path, base / path.relative_to(site))
    before = snapshot(base)
    engine.apply(patch_set, site)
    assert snapshot(base) == before
    assert (base / SPEC_INFO).stat().st_nlink == 1
    assert (base / "sglang/srt/untouched.py").stat().st_nlink == 2
    engine.reverse(patch_set, site)
    assert snapshot(base) == before == snapshot(site)


def test_a_linked_file_is_replaced_not_written_through(patch_set, site, tmp_path):
    outside = tmp_path / "cache.py"
    (site / SPEC_INFO).rename(outside)
    (site / SPEC_INFO).symlink_to(outside)
    engine.apply(patch_set, site)
    assert outside.read_bytes() == RELEASED[SPEC_INFO]
    assert not (site / SPEC_INFO).is_symlink()


def test_a_folder_that_leads_elsewhere_is_refused(patch_set, site, tmp_path):
    (site / "sglang").rename(tmp_path / "elsewhere")
    (site / "sglang").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError) as refused:
        engine.apply(patch_set, site)
    assert refused.value.id == "path-escapes"


def test_modes_are_kept_and_byte_code_is_dropped(patch_set, site):
    (site / SPEC_INFO).chmod(0o600)
    cache = (site / SPEC_INFO).parent / "__pycache__"
    cache.mkdir()
    for name in ("spec_info.cpython-311.pyc", "spec_info.cpython-311.opt-1.pyc", "spec_info_other.cpython-311.pyc"):
        (cache / name).write_bytes(b"")
    engine.apply(patch_set, site)
    assert (site / SPEC_INFO).stat().st_mode & 0o777 == 0o600
    assert (site / NEW_PATH).stat().st_mode & 0o777 == 0o644
    assert [p.name for p in cache.iterdir()] == ["spec_info_other.cpython-311.pyc"]


@pytest.mark.parametrize("verb", [engine.apply, engine.reverse])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_failure_in_the_middle_puts_everything_back(patch_set, site, monkeypatch, verb, at):
    if verb is engine.reverse:
        engine.apply(patch_set, site)
    before = snapshot(site)
    inodes = {path: path.stat().st_ino for path in site.rglob("*") if path.is_file()}
    calls = 0

    def failing(path):
        nonlocal calls
        calls += 1
        if calls == at:
            raise OSError(28, "No space left on device", str(path))
        return real(path)

    real = transaction._keep_old
    monkeypatch.setattr(transaction, "_keep_old", failing)
    with pytest.raises(StepError) as failed:
        verb(patch_set, site)
    assert "No space left" in failed.value.message
    assert snapshot(site) == before
    assert {path: path.stat().st_ino for path in site.rglob("*") if path.is_file()} == inodes
    monkeypatch.undo()
    verb(patch_set, site)


def test_an_interruption_puts_everything_back(patch_set, site, monkeypatch):
    before = snapshot(site)
    calls = iter([None, None, KeyboardInterrupt()])
    real = Path.replace

    def interrupted(self, target):
        if str(self).endswith(".ddtree-new"):
            error = next(calls)
            if error:
                raise error
        return real(self, target)

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        engine.apply(patch_set, site)
    assert snapshot(site) == before


def killed_at(step, verb, patch_set, site):
    """Run ``verb`` in a child that ends itself before its ``step``-th call into the file system; False: it got by."""
    child = os.fork()
    if child == 0:
        calls = itertools.count(1)

        def counted(real):
            def call(*arguments, **named):
                if next(calls) == step:
                    os._exit(9)
                return real(*arguments, **named)

            return call

        for name in ("open", "link", "mkdir", "unlink", "rename", "replace", "rmdir"):
            setattr(os, name, counted(getattr(os, name)))
        os.fsync = lambda descriptor: None  # a kill takes nothing that was written
        try:
            verb(patch_set, site)
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 9)
    return status == 9


@pytest.mark.e2e
@pytest.mark.parametrize("then", [engine.apply, engine.reverse])
@pytest.mark.parametrize("verb", [engine.apply, engine.reverse])
def test_a_run_that_is_killed_anywhere_is_completed_or_undone_to_the_byte(patch_set, site, tmp_path, verb, then):
    def everything():
        folders = {path.relative_to(work) for path in work.rglob("*") if path.is_dir()}
        return snapshot(work), folders

    work = tmp_path / "work"
    wanted = {}
    shutil.copytree(site, work)
    for each in (engine.apply, engine.reverse):
        each(patch_set, work)
        wanted[each] = everything()
    for step in itertools.count(1):
        shutil.rmtree(work)
        shutil.copytree(site, work)
        if verb is engine.reverse:
            engine.apply(patch_set, work)
        if not killed_at(step, verb, patch_set, work):
            break
        assert {state.state for state in engine.check(patch_set, work)} <= {"pristine", "applied"}
        then(patch_set, work)
        assert everything() == wanted[then], step
        engine.reverse(patch_set, work)
        assert everything() == wanted[engine.reverse], step
    assert step > 20


@pytest.mark.parametrize("verb", [engine.apply, engine.reverse])
def test_one_file_that_cannot_be_replaced_does_not_keep_others_from_being_put_back(patch_set, site, monkeypatch, verb):
    """As an immutable one, or one of another owner in a sticky folder, which can neither be linked nor renamed over."""
    if verb is engine.reverse:
        engine.apply(patch_set, site)

    def link(source, *arguments, **named):
        if Path(source) == site / SPEC_INFO:
            raise PermissionError(1, "Operation not permitted", str(source))
        return real_link(source, *arguments, **named)

    def replace(self, target):
        if Path(target) == site / SPEC_INFO:
            raise PermissionError(1, "Operation not permitted", str(target))
        return real_replace(self, target)

    before = snapshot(site)
    real_link, real_replace = os.link, Path.replace
    monkeypatch.setattr(os, "link", link)
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(StepError, match="every file is as it was before") as failed:
        verb(patch_set, site)
    assert failed.value.id == "patch-write"
    assert snapshot(site) == before


def test_what_could_not_be_put_back_is_named(patch_set, site, monkeypatch):
    def replace(self, target):
        if Path(target) == site / SPEC_INFO or self.name == ".crlf.py.ddtree-old":
            raise OSError(5, "Input/output error", str(target))
        return real(self, target)

    real = Path.replace
    monkeypatch.setattr(Path, "replace", replace)
    with pytest.raises(StepError) as failed:
        engine.apply(patch_set, site)
    assert failed.value.message.endswith(f"could not be put back: {site}/sglang/crlf.py")
    monkeypatch.undo()
    assert (site / "sglang/no_newline.py").read_bytes() == RELEASED["sglang/no_newline.py"]
    engine.reverse(patch_set, site)
    assert (site / "sglang/crlf.py").read_bytes() == RELEASED["sglang/crlf.py"]


def test_byte_code_that_cannot_be_dropped_stops_it_before_anything_changes(patch_set, site, monkeypatch):
    """Unchecked byte code would be run instead of the patched source."""
    cache = site / "sglang/__pycache__"
    (cache / "crlf.cpython-310.pyc").mkdir(parents=True)  # no byte code
    (cache / "crlf.cpython-311.pyc").write_bytes(b"")

    def unlink(self, missing_ok=False):
        if self.suffix == ".pyc":
            raise PermissionError(13, "Permission denied", str(self))
        return real(self, missing_ok)

    before = snapshot(site)
    real = Path.unlink
    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(StepError, match="every file is as it was before") as failed:
        engine.apply(patch_set, site)
    assert failed.value.where.endswith("crlf.cpython-311.pyc")
    assert snapshot(site) == before
    monkeypatch.undo()
    engine.apply(patch_set, site)
    assert [path.name for path in cache.iterdir()] == ["crlf.cpython-310.pyc"]


def test_leftovers_of_a_killed_run_do_not_matter(patch_set, site):
    spec = site / SPEC_INFO
    spec.with_name(".spec_info.py.ddtree-new").write_bytes(b"half")
    os.link(spec, spec.with_name(".spec_info.py.ddtree-old"))
    engine.apply(patch_set, site)
    assert not list(site.rglob("*.ddtree-*"))
    assert spec.read_bytes() == EDITS[SPEC_INFO]


def test_an_edited_file_stops_everything_with_an_explanation(patch_set, site):
    content = (site / SPEC_INFO).read_bytes().replace(b"line10 = 10\n", b"line10 = 11  # local\n")
    (site / SPEC_INFO).write_bytes(b"# one more line\n" + content)
    before = snapshot(site)
    with pytest.raises(InputError) as refused:
        engine.apply(patch_set, site)
    assert refused.value.id == "file-edited" and refused.value.exit_code == 3
    assert refused.value.details["files"] == [SPEC_INFO]
    for part in ("edited after it was installed", "hunk 1 conflicts", "line10 = 11  # local", "still there: 2"):
        assert part in refused.value.message
    assert snapshot(site) == before


def test_with_the_released_text_the_edits_are_shown(patch_set, site):
    (site / SPEC_INFO).write_bytes(RELEASED[SPEC_INFO].replace(b"line30 = 30\n", b"line30 = 'edited'\n"))
    state = states(patch_set, site, released=RELEASED.get)[SPEC_INFO]
    assert "+line30 = 'edited'" in state.edits and "-line30 = 30" in state.edits
    assert [h.status for h in state.hunks] == ["fits", "fits"]
    other = states(patch_set, site, released=lambda path: b"other\n")[SPEC_INFO]
    assert other.edits == "" and "not the one" in other.note


def test_an_edited_file_is_compared_with_the_released_one_once(patch_set, site, monkeypatch):
    """Not once a hunk: a large file that an editor stripped of blanks takes seconds each time."""
    compared = []

    class Counted(SequenceMatcher):
        def __init__(self, junk, left, right, autojunk):
            compared.append(len(left))
            super().__init__(junk, left, right, autojunk)

    monkeypatch.setattr(explain, "SequenceMatcher", Counted)
    content = RELEASED[SPEC_INFO]
    (site / SPEC_INFO).write_bytes(content.replace(b" = ", b"="))
    state = states(patch_set, site, released=RELEASED.get)[SPEC_INFO]
    assert len(state.hunks) == 2
    assert compared.count(len(content.splitlines())) == 1


def test_hunk_reports_tell_applied_from_conflicting(patch_set, site):
    (site / SPEC_INFO).write_bytes(EDITS[SPEC_INFO].replace(b"line50 = 50\n", b"line50 = 0\n"))
    state = states(patch_set, site)[SPEC_INFO]
    assert [h.status for h in state.hunks] == ["applied", "conflict"]


def test_a_rebuilt_engine_is_told_from_an_edited_one(patch_set, tmp_path):
    site = install(tmp_path / "s", {**RELEASED, SPEC_INFO: b"other build\n"})
    assert "installed like this" in states(patch_set, site)[SPEC_INFO].note


def test_missing_and_occupied(patch_set, site):
    (site / SPEC_INFO).unlink()
    (site / "sglang/crlf.py").unlink()
    (site / "sglang/crlf.py").mkdir()
    (site / NEW_PATH).parent.mkdir()
    (site / NEW_PATH).write_text("something else\n")
    found = states(patch_set, site)
    assert found[SPEC_INFO].state == "missing"
    assert found["sglang/crlf.py"].state == "edited"
    assert found[NEW_PATH].state == "edited"
    with pytest.raises(InputError) as refused:
        engine.apply(patch_set, site)
    assert refused.value.message.startswith("cannot apply sglang-0.5.11: 3 files")


def test_another_edition_of_the_set_is_named(patch_set, site, patch_folder):
    engine.apply(patch_set, site)
    other = patch_folder / "0003-speculative-spec_info.patch"
    series = patch_folder / "series.yaml"
    text = other.read_text().replace("DDTREE = True", "DDTREE = None")
    other.write_text(text)
    after = EDITS[SPEC_INFO].replace(b"DDTREE = True", b"DDTREE = None")
    old_hash, new_hash = (hashlib.sha256(c).hexdigest() for c in (EDITS[SPEC_INFO], after))
    series.write_text(series.read_text().replace(old_hash, new_hash))
    with pytest.raises(InputError) as refused:
        engine.apply(load_patch_set(str(patch_folder)), site)
    assert "another edition" in refused.value.hint


def test_a_file_in_the_way_of_a_new_folder_is_told_by_check(patch_set, site):
    """As anything else that ``apply`` cannot get by."""
    folder = (site / NEW_PATH).parent
    for occupy in (folder.touch, lambda: folder.symlink_to("nowhere")):
        occupy()
        state = states(patch_set, site)[NEW_PATH]
        assert state.state == "edited" and "in the way" in state.note
        with pytest.raises(InputError) as refused:
            engine.apply(patch_set, site)
        assert refused.value.id == "file-edited"
        folder.unlink()


@pytest.mark.parametrize("lines", ['{"sglang/crlf.py": 5}', '{"sglang/crlf.py": "a\\nb,,"}', "[" * 100_000, "5"])
def test_a_state_file_that_was_written_into_does_not_matter(patch_set, site, lines):
    before = snapshot(site)
    engine.apply(patch_set, site)
    state = site / INFO / engine.STATE_FILE
    state.write_text('{"record_lines": ' + lines + "}")
    engine.apply(patch_set, site)
    state.write_text('{"record_lines": ' + lines + "}")
    engine.reverse(patch_set, site)
    assert snapshot(site) == before


def test_metadata_with_a_byte_order_mark_or_without_a_version(patch_set, tmp_path):
    """A plan reads the version all the same."""
    site = install(tmp_path / "site", RELEASED)
    metadata = site / INFO / "METADATA"
    for content in (b"\xef\xbb\xbf" + metadata.read_bytes(), b""):
        metadata.write_bytes(content)
        assert {state.state for state in engine.check(patch_set, site)} == {"pristine"}


@pytest.mark.parametrize("last", [0, 1])
def test_two_sets_for_different_files_do_not_lose_each_others_lines_of_record(patch_set, site, wheel, tmp_path, last):
    path = "sglang/srt/untouched.py"
    edited = install(tmp_path / "other", {**RELEASED, path: b"value = 2\n", "sglang/more.py": b""})
    sets = [patch_set, export(wheel, edited, tmp_path / "other-set")]
    record = site / INFO / "RECORD"  # with lines that we would write in another way
    record.write_bytes(
        record.read_bytes().replace(path.encode(), f'"{path}"'.encode()).replace(b"sglang/crlf.py", b'"sglang/crlf.py"')
    )
    before = snapshot(site)
    for each in sets:
        engine.apply(each, site)
    installation = engine.find_installation(site, "sglang")
    assert engine.applied_patch_set(installation) == ("other-set", sets[1].digest)
    engine.reverse(sets[last], site)
    left = sets[1 - last]
    assert {state.state for state in engine.check(left, site)} == {"applied"}
    assert engine.applied_patch_set(installation) == (("other-set", left.digest) if last == 0 else None)
    content = Record(record.read_bytes(), f"{INFO}/RECORD")
    assert content.hash(f"{INFO}/{engine.STATE_FILE}") == record_hash((site / INFO / engine.STATE_FILE).read_bytes())
    engine.reverse(left, site)
    assert snapshot(site) == before


def test_versions_and_installations(patch_set, tmp_path):
    cases = {
        "engine-version": install(tmp_path / "a", RELEASED, version="0.5.12"),
        "engine-twice": install(install(tmp_path / "b", RELEASED), RELEASED, version="0.5.10"),
        "no-engine": tmp_path / "c",
        "engine-editable": install(tmp_path / "d", RELEASED),
        "no-record": install(tmp_path / "e", RELEASED),
        "no-record ": install(tmp_path / "f", RELEASED),
    }
    cases["no-engine"].mkdir()
    origin = {"url": "file:///src/sglang/python", "dir_info": {"editable": True}}
    (cases["engine-editable"] / INFO / "direct_url.json").write_text(json.dumps(origin))
    (cases["no-record"] / INFO / "RECORD").unlink()
    cut_off = cases["no-record "] / INFO / "RECORD"
    cut_off.write_bytes(cut_off.read_bytes()[:200])
    for id, site in cases.items():
        with pytest.raises(InputError) as refused:
            engine.check(patch_set, site)
        assert refused.value.id == id.strip()
        assert refused.value.hint


def test_a_patch_with_a_wrong_result_is_refused_before_anything_changes(patch_set, site, patch_folder):
    series = patch_folder / "series.yaml"
    lines = series.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "sha256_after" in line)
    lines[at] = lines[at][:-64] + "0" * 64
    series.write_text("\n".join(lines))
    before = snapshot(site)
    with pytest.raises(InputError) as refused:
        engine.apply(load_patch_set(str(patch_folder)), site)
    assert refused.value.id == "bad-patch-set"
    assert snapshot(site) == before
