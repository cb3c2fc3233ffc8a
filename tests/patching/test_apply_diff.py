import difflib

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddtree_deploy.patching.apply_diff import DiffError, HunkMismatch, apply_diff, parse_diff, split_lines
from ddtree_deploy.patching.make_diff import make_diff

line = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=6) | st.sampled_from(
    ["", "a", "b", "}", "\r", "-- x", "++ x", "@@ -1 +1 @@", "\\ No newline at end of file"]
)
text = st.tuples(st.lists(line, max_size=30), st.booleans()).map(lambda t: "\n".join(t[0]) + ("\n" if t[1] else ""))


@given(text, text)
def test_a_diff_applies_and_reverses_exactly(old, new):
    old, new = old.encode(), new.encode()
    diff_text = make_diff("sglang/x.py", old, new)
    if old == new:
        assert diff_text == ""
        return
    diff = parse_diff(diff_text)
    assert apply_diff(diff, old) == new
    assert apply_diff(diff.reversed(), new) == old


@given(st.lists(st.sampled_from("abcdef"), max_size=25), st.lists(st.sampled_from("abcdef"), max_size=25))
def test_agrees_with_diffs_of_the_standard_library(old, new):
    old, new = [c + "\n" for c in old], [c + "\n" for c in new]
    assume(old != new)
    text = "".join(difflib.unified_diff(old, new, "a/x", "b/x"))
    assert apply_diff(parse_diff(text), "".join(old).encode()) == "".join(new).encode()


@given(st.data())
def test_a_changed_context_line_always_refuses(data):
    old = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=30).map(lambda n: [b"%d\n" % i for i in n]))
    at = data.draw(st.integers(0, len(old) - 1))
    new = [*old[:at], b"changed\n", *old[at + 1 :]]
    diff = parse_diff(make_diff("x", b"".join(old), b"".join(new)))
    (hunk,) = diff.hunks
    broken = data.draw(st.integers(hunk.old_start, hunk.old_start + len(hunk.old_lines) - 1))
    mutated = list(old)
    mutated[broken] = data.draw(
        st.sampled_from([b"other\n", mutated[broken][:-1] + b"\r\n", mutated[broken][:-1] + b" \n"])
    )
    with pytest.raises(HunkMismatch) as refused:
        apply_diff(diff, b"".join(mutated))
    assert refused.value.line == broken + 1


def test_an_inserted_line_above_refuses_there_is_no_offset():
    old = b"".join(b"%d\n" % i for i in range(20))
    diff = parse_diff(make_diff("x", old, old.replace(b"15\n", b"fifteen\n")))
    with pytest.raises(HunkMismatch):
        apply_diff(diff, b"inserted\n" + old)


def test_a_file_that_ends_early_refuses():
    diff = parse_diff(make_diff("x", b"a\nb\nc\n", b"a\nb\nC\n"))
    with pytest.raises(HunkMismatch, match="end of the file"):
        apply_diff(diff, b"a\nb\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"", b"a\n"),
        (b"a\n", b""),
        (b"a", b"a\n"),
        (b"a\n", b"a"),
        (b"a\r\nb\r\n", b"a\r\nB\r\n"),
        (b"a\nb", b"a\nb\nc"),
        (b"\n", b""),
        (b"a\x0cb\x1dc\xe2\x80\xa8d\n", b"changed\n"),
    ],
)
def test_edges(old, new):
    diff = parse_diff(make_diff("x", old, new))
    assert apply_diff(diff, old) == new
    assert apply_diff(diff.reversed(), new) == old


def test_a_missing_newline_at_the_end_matters():
    diff = parse_diff(make_diff("x", b"a\nb", b"A\nb"))
    with pytest.raises(HunkMismatch):
        apply_diff(diff, b"a\nb\n")


def test_only_a_line_feed_ends_a_line():
    assert split_lines(b"a\rb\x0cc\r\nd") == [b"a\rb\x0cc\r\n", b"d"]


def test_text_before_the_header_and_section_names_are_allowed():
    text = "Why this is needed.\n\n--- a/x\n+++ b/x\n@@ -1 +1 @@ def f():\n-a\n+b\n"
    diff = parse_diff(text)
    assert (diff.old_path, diff.new_path) == ("x", "x")
    assert apply_diff(diff, b"a\n") == b"b\n"


HEADER = "--- a/x\n+++ b/x\n"


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("", 1, "header"),
        (HEADER, 2, "no hunk"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+a\n", 1, "new files are given whole"),
        ("--- a/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n", 2, "none is deleted"),
        ("--- x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n", 1, "'a/'"),
        (HEADER + "@@ -1 +1 @@\n-a\n", 4, "ends early"),
        (HEADER + "@@ -1 +1 @@\n-a\n+b\ntrailing\n", 6, "hunk header"),
        (HEADER + "@@ -1,2 +1,2 @@\n-a\n+b\n\n", 6, "begins with"),
        (HEADER + f"@@ -{'9' * 5000} +1 @@\n-a\n+b\n", 3, "hunk header"),
        (HEADER + "@@ -\u0661 +1 @@\n-a\n+b\n", 3, "hunk header"),
        (HEADER + "@@ -0 +1 @@\n-a\n+b\n", 3, "line 0"),
        (HEADER + "@@ -5 +5 @@\n-a\n+b\n@@ -5 +5 @@\n-a\n+b\n", 6, "overlap"),
        (HEADER + "@@ -1 +1 @@\n-a\n+b\n--- a/y\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n", 6, "hunk header"),
    ],
)
def test_a_malformed_diff_says_the_line(text, line, says):
    with pytest.raises(DiffError, match=says) as refused:
        parse_diff(text)
    assert refused.value.line == line


def test_a_wrong_place_in_the_result_is_malformed():
    with pytest.raises(DiffError, match="of the result"):
        apply_diff(parse_diff(HEADER + "@@ -2 +1 @@\n-b\n+B\n"), b"a\nb\n")
