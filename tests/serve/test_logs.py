from __future__ import annotations

import json
import shutil
import stat
from pathlib import Path

import pytest

from ddtree_deploy.serve import logs
from ddtree_deploy.serve.logs import LogWriter, end_since, find_cause, read_from, tail


def test_secrets_are_masked_and_the_file_is_private(tmp_path: Path) -> None:
    log = tmp_path / "log"
    writer = LogWriter(log, ["abc", "abcdef", ""])
    writer.write_line("ServerArgs(api_key='abcdef') abc")
    writer.close()
    assert log.read_text() == "ServerArgs(api_key='***') ***\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


@pytest.mark.parametrize("secret", ["a\\b'c\"d", "schlüssel\t1"])
def test_secrets_are_masked_however_they_are_printed(tmp_path: Path, secret: str) -> None:
    """ServerArgs(api_key=...) is a repr, and a dump of variables may be JSON."""
    log = tmp_path / "log"
    writer = LogWriter(log, [secret])
    for text in (repr([secret]), json.dumps(secret), json.dumps(secret, ensure_ascii=False), secret):
        writer.write_line(text)
    shown = log.read_text()
    for part in ("a\\", 'c"d', "schl", "t1"):
        assert part not in shown
    assert "['***']" in shown or '["***"]' in shown


def test_following_by_cursor_sees_every_line_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert tail(log, 10) == ([], None)
    assert read_from(log, None) == ([], None)
    writer = LogWriter(log, limit=100)
    seen: list[str] = []
    written = [f"line {number:03}" for number in range(60)]  # 540 bytes: several rotations
    _, cursor = tail(log, 0)
    for number, line in enumerate(written):
        writer.write_line(line)
        if number % 7 == 0:
            lines, cursor = read_from(log, cursor)
            seen += lines
    lines, cursor = read_from(log, cursor)
    assert seen + lines == written
    assert read_from(log, cursor) == ([], cursor)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["log", "log.1", "log.2", "log.3"]


def test_a_log_that_is_rotated_while_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    writer = LogWriter(log, limit=1000)
    _, cursor = tail(log, 0)
    written = [f"line {number}" for number in range(10)]
    for line in written[:9]:
        writer.write_line(line)
    rotated, todo = logs._rotated, [writer._rotate]

    def rotating(path: Path, number: int) -> Path:
        if todo:
            todo.pop()()
        return rotated(path, number)

    monkeypatch.setattr(logs, "_rotated", rotating)
    lines, cursor = read_from(log, cursor)
    writer.write_line(written[9])
    assert not todo and lines + read_from(log, cursor)[0] == written


def test_a_log_that_somebody_removes_or_rotates_is_begun_anew(tmp_path: Path) -> None:
    log = tmp_path / "log"
    writer = LogWriter(log)
    writer.write_line("one")
    log.unlink()
    writer.write_line("two")
    assert log.read_text() == "two\n"
    log.rename(tmp_path / "log.0")
    writer.write_line("three")
    assert log.read_text() == "three\n"


def test_a_writer_bears_a_folder_that_is_gone(tmp_path: Path) -> None:
    """With an error here nobody would empty the engine's pipe, and the engine would stand still."""
    folder = tmp_path / "cpu"
    folder.mkdir()
    writer = LogWriter(folder / "log", limit=10)
    shutil.rmtree(folder)
    for _ in range(3):
        writer.write_line("more than ten bytes")
    folder.mkdir()
    writer.write_line("again")
    assert (folder / "log").read_text() == "again\n"
    writer.close()


def test_a_folder_in_the_way_of_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "log.1" / "of-others").mkdir(parents=True)
    writer = LogWriter(log, limit=10)
    for number in range(8):
        writer.write_line(f"line number {number}")
        assert tail(log, 1)[0] == [f"line number {number}"]
    assert log.stat().st_size < 20


def test_following_a_log_that_is_emptied(tmp_path: Path) -> None:
    """``: > log`` and copytruncate; a new file may also get the inode of one that is gone."""
    log = tmp_path / "log"
    writer = LogWriter(log)
    writer.write_line("a first line")
    _, cursor = tail(log, 0)
    log.write_bytes(b"")
    writer.write_line("two")
    assert read_from(log, cursor)[0] == ["two"]


def test_following_over_what_is_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_READ_LIMIT", 100)
    log = tmp_path / "log"
    log.write_bytes(b"one\n")
    _, cursor = tail(log, 0)
    with log.open("ab") as stream:
        stream.write(b"\xff" * 250 + b"\nlast\n")
    seen: list[str] = []
    for _ in range(4):
        lines, cursor = read_from(log, cursor)
        seen += lines
    assert seen[-1] == "last" and sum(map(len, seen[:-1])) == 250


def test_the_last_lines_right_after_a_rotation(tmp_path: Path) -> None:
    log = tmp_path / "log"
    writer = LogWriter(log, limit=50)
    written = [f"line {number}" for number in range(14)]
    for line in written:
        writer.write_line(line)
    lines, cursor = tail(log, 10)
    assert lines == written[-10:]
    writer.write_line("more")
    assert read_from(log, cursor)[0] == ["more"]


def test_the_end_of_a_long_run_says_how_it_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_READ_LIMIT", 100)
    log = tmp_path / "log"
    writer = LogWriter(log, limit=400)
    writer.write_line("ValueError: of the run before")
    cursor = writer.cursor()
    assert end_since(log, cursor) == []
    writer.write_line("first")
    assert end_since(log, cursor) == ["first"]
    for number in range(60):
        writer.write_line(f"request {number}")
    writer.write_line("ValueError: at last")
    assert end_since(log, cursor)[-3:] == ["request 58", "request 59", "ValueError: at last"]
    assert len(end_since(log, cursor)) < 12


def test_an_incomplete_line_waits(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"one\ntw")
    lines, cursor = tail(log, 10)
    assert lines == ["one"]
    with log.open("ab") as stream:
        stream.write(b"o\n")
    assert read_from(log, cursor)[0] == ["two"]


def test_tail_of_a_long_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{number}\n" for number in range(50_000)))
    assert tail(log, 3)[0] == ["49997", "49998", "49999"]
    assert tail(log, 0)[0] == []
    assert len(tail(log, 20_000)[0]) == 20_000


def test_a_cursor_that_is_too_old_starts_with_what_is_there(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("a\nb\n")
    assert read_from(log, "1:5")[0] == ["a", "b"]
    assert read_from(log, "nonsense")[0] == ["a", "b"]


@pytest.mark.parametrize(
    ("lines", "cause"),
    [
        ([], None),
        (["all fine", "  ValueError: indented, so quoted by somebody"], None),
        (
            ["Traceback (most recent call last):", "  File x", "ValueError: budget too large"],
            "ValueError: budget too large",
        ),
        (
            ["usage: x", "sglang serve: error: unrecognized arguments: --x"],
            "sglang serve: error: unrecognized arguments: --x",
        ),
        (
            ["torch.OutOfMemoryError: CUDA out of memory. Tried", "[12:00] Received sigquit from a child", "EOFError"],
            "torch.OutOfMemoryError: CUDA out of memory. Tried",
        ),
        (["OSError: no such file", "RuntimeError: Initialization failed. Please see"], "OSError: no such file"),
        (["x.py:1: UserWarning: odd", "FutureWarning: old"], None),
        (["[12:00] Cannot allocate memory", "EOFError"], "[12:00] Cannot allocate memory"),
        (["EOFError"], "EOFError"),
        (["ImportError: optional part", "AssertionError: the real one"], "AssertionError: the real one"),
        (
            ["Exception: Capture cuda graph failed: no kernel image"],
            "Exception: Capture cuda graph failed: no kernel image",
        ),
        (
            [
                "RuntimeError: ninja exited with status 127",
                "/usr/local/cuda/bin/nvcc  --generate-dependencies -c cuda.cu -o cuda_0.o",
                "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
                "Exception: Capture cuda graph failed: ninja exited with status 127",
                "Possible solutions:",
            ],
            "Exception: Capture cuda graph failed: ninja exited with status 127: "
            "/bin/sh: 1: /usr/local/cuda/bin/nvcc: not found",
        ),
        (
            [
                "/tmp/tmp1/cuda_utils.c:7:10: fatal error: Python.h: No such file or directory",
                "compilation terminated.",
                "subprocess.CalledProcessError: Command '['/usr/bin/gcc', ...]' returned non-zero exit status 1.",
            ],
            "subprocess.CalledProcessError: Command '['/usr/bin/gcc', ...]' returned non-zero exit status 1.: "
            "/tmp/tmp1/cuda_utils.c:7:10: fatal error: Python.h: No such file or directory",
        ),
        (
            [
                "/usr/bin/ld: cannot find -lcudart",
                "collect2: error: ld returned 1 exit status",
                "RuntimeError: ninja exited with status 1",
            ],
            "RuntimeError: ninja exited with status 1: /usr/bin/ld: cannot find -lcudart",
        ),
        (["x.c:1:2: error: odd", "ValueError: not about that"], "ValueError: not about that"),
    ],
)
def test_cause(lines: list[str], cause: str | None) -> None:
    assert find_cause(lines) == cause
