import os
import re

import pytest

from ddtree_deploy.errors import InputError
from ddtree_deploy.patching.series import load_patch_set, patch_sets

NEW_ENTRY = "- path: sglang/srt/speculative/ddtree/utils.py"


def edit(folder, old, new, file="series.yaml"):
    path = folder / file
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new, 1))


def test_reads_everything(patch_folder):
    patch_set = load_patch_set(str(patch_folder))
    assert (patch_set.name, patch_set.distribution, patch_set.version) == ("sglang-0.5.11", "sglang", "0.5.11")
    assert [p.name for p in patch_set.patches] == [
        "0001-crlf.patch",
        "0002-no_newline.patch",
        "0003-speculative-spec_info.patch",
    ]
    assert "\r\n" in patch_set.patches[0].diff
    assert [n.path for n in patch_set.new_files] == ["sglang/srt/speculative/ddtree/utils.py"]
    assert load_patch_set(str(patch_folder / "series.yaml")) == patch_set


def test_the_digest_follows_content(patch_folder):
    before = load_patch_set(str(patch_folder)).digest
    assert len(before) == 64
    edit(patch_folder, "sha256_after: ", "sha256_after: 0")
    text = (patch_folder / "series.yaml").read_text()
    (patch_folder / "series.yaml").write_text(re.sub(r"(sha256_after: 0\w{63})\w", r"\1", text, count=1))
    assert load_patch_set(str(patch_folder)).digest != before


def test_shipped_sets_load():
    for name in patch_sets():
        assert load_patch_set(name).name == name


@pytest.mark.parametrize(
    ("old", "new", "id", "where"),
    [
        ("engine:", "motor:", "series-", "series.yaml:2"),
        ("version: 0.5.11", "version: [1]", "series-value", "series.yaml:4"),
        ("- path: sglang/crlf.py", "- path: ../crlf.py", "series-path", "series.yaml:6"),
        ("- path: sglang/crlf.py", "- path: /etc/passwd", "series-path", "series.yaml:6"),
        ("- path: sglang/crlf.py", "- path: sglang//crlf.py", "series-path", "series.yaml:6"),
        ("- path: sglang/crlf.py", "- path: sglang\\crlf.py", "series-path", "series.yaml:6"),
        ("- path: sglang/crlf.py", "- path: sglang/other.py", "series-path", "series.yaml:6"),
        ("- path: sglang/crlf.py", "- path: sglang/no_newline.py", "series-duplicate", "series.yaml:10"),
        (NEW_ENTRY, '- path: "sglang/\\udcff.py"', "series-path", "series.yaml:19"),
        (NEW_ENTRY, '- path: "sglang/a\\u2028b.py"', "series-path", "series.yaml:19"),
        (NEW_ENTRY, f"- path: sglang/{'a' * 250}.py", "series-path", "series.yaml:19"),
        (NEW_ENTRY, f"- path: {'sglang/' * 400}new.py", "series-path", "series.yaml:19"),
        ("- path: sglang/srt/speculative/ddtree", "- path: sglang-0.5.11.dist-info", "series-path", "series.yaml:19"),
        ("ddtree/utils.py", ".spec_info.py.ddtree-old", "series-path", "series.yaml:19"),
        ("patch: 0001-crlf.patch", "patch: ../0001-crlf.patch", "series-path", "series.yaml:7"),
        ("patch: 0001-crlf.patch", "patch: 0009.patch", "series-file", "series.yaml:7"),
        ("patch: 0001-crlf.patch", "patsch: 0001-crlf.patch", "series-", "series.yaml:7"),
        ("sha256_before: ", "sha256_before: x", "series-value", "series.yaml:8"),
        ("source: files", "source: nowhere", "series-file", "series.yaml:20"),
        ("  sha256: ", "  sha256: '" + "0" * 64 + "'\n#", "series-hash", "series.yaml:21"),
    ],
)
def test_bad_series(patch_folder, old, new, id, where):
    edit(patch_folder, old, new)
    with pytest.raises(InputError) as refused:
        load_patch_set(str(patch_folder))
    assert refused.value.id.startswith(id)
    assert re.search(rf"{re.escape(where)}(:|$)", refused.value.where)
    assert refused.value.exit_code == 3


def test_a_changed_new_file_is_noticed(patch_folder):
    (patch_folder / "files/sglang/srt/speculative/ddtree/utils.py").write_text("B = 2\n")
    with pytest.raises(InputError) as refused:
        load_patch_set(str(patch_folder))
    assert refused.value.id == "series-hash"


def test_what_is_no_text_of_a_patch_is_not_read(patch_folder):
    patch = patch_folder / "0001-crlf.patch"
    with patch.open("ab") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(InputError, match="over 16 MiB") as refused:
        load_patch_set(str(patch_folder))
    assert refused.value.id == "series-file"
    patch.unlink()
    os.mkfifo(patch)
    with pytest.raises(InputError, match="not a file"):
        load_patch_set(str(patch_folder))


def test_a_malformed_patch_names_its_line(patch_folder):
    edit(patch_folder, "@@ -", "@@ =", "0001-crlf.patch")
    with pytest.raises(InputError) as refused:
        load_patch_set(str(patch_folder))
    assert refused.value.where.endswith("0001-crlf.patch:3")


def test_an_unlisted_patch_is_refused(patch_folder):
    (patch_folder / "0009-forgotten.patch").write_text("")
    with pytest.raises(InputError) as refused:
        load_patch_set(str(patch_folder))
    assert refused.value.id == "series-unlisted"


def test_a_link_out_of_the_folder_is_refused(patch_folder, tmp_path):
    target = patch_folder / "files/sglang/srt/speculative/ddtree/utils.py"
    outside = tmp_path / "outside.py"
    target.rename(outside)
    target.symlink_to(outside)
    with pytest.raises(InputError) as refused:
        load_patch_set(str(patch_folder))
    assert refused.value.id == "series-path"


def test_not_utf8(patch_folder):
    path = patch_folder / "0001-crlf.patch"
    path.write_bytes(path.read_bytes() + b"\xff")
    with pytest.raises(InputError) as refused:
        load_patch_set(str(patch_folder))
    assert refused.value.id == "not-utf8"


@pytest.mark.parametrize("name", ["sglang-9.9", "/no/such/folder"])
def test_unknown_set(name):
    with pytest.raises(InputError) as refused:
        load_patch_set(name)
    assert refused.value.id == "no-patch-set"


def test_empty_and_missing_series(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    with pytest.raises(InputError):
        load_patch_set(str(folder))
    (folder / "series.yaml").write_text("engine: {distribution: sglang, version: '1'}\n")
    with pytest.raises(InputError) as refused:
        load_patch_set(str(folder))
    assert refused.value.id == "series-empty"
