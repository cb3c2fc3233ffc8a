from __future__ import annotations

import io
from typing import Any

import pytest

from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.cli import progress as progress_module
from ddtree_deploy.cli.output import Output
from ddtree_deploy.cli.progress import ProgressView, amounts
from ddtree_deploy.errors import InputError
from ddtree_deploy.units import human_bytes, plural

GIB = 1024**3


class Terminal(io.StringIO):
    """A stand-in for a terminal's stream."""

    def isatty(self) -> bool:
        return True


def test_quantities() -> None:
    assert [human_bytes(n) for n in (0, 1023, 1536, 5 * GIB, 3 * 1024 * GIB)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "5.0 GiB",
        "3.0 TiB",
    ]
    assert [plural(n, "patch") for n in (0, 1, 2)] == ["no patches", "1 patch", "2 patches"]


def test_colours_are_for_terminals_and_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")

    def draw(console: Any) -> None:
        console.print("text", style="red")

    assert "\x1b[" in Output().drawn(draw, Terminal())
    assert "\x1b[" not in Output().drawn(draw, io.StringIO())
    assert "\x1b[" not in Output(color=False).drawn(draw, Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in Output().drawn(draw, Terminal())


def test_lines_in_a_pipe_are_not_broken() -> None:
    path = "/a" * 200
    assert Output().drawn(lambda console: console.print(path), io.StringIO()) == path + "\n"


def test_markup_in_errors_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    Output().error(InputError("id", "[bold]x[/] is wrong\nsecond line", where="[red]", hint="[/nope]"))
    text = capsys.readouterr().err
    assert "what: [bold]x[/] is wrong\n  second line\n" in text
    assert "where: [red]" in text and "hint: [/nope]" in text


def test_text_that_the_stream_cannot_show_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr("sys.stdout", stream)
    Output(json=True).emit({"text": "Zürich"}, lambda console: None)
    stream.seek(0)
    assert "Z?rich" in stream.read()


@pytest.mark.parametrize(
    ("progress", "seconds", "text"),
    [
        (Progress("clone", "", 0, None, 0, None), 0.0, ""),
        (Progress("clone", "", GIB, 2 * GIB, 10, 20), 0.5, "10/20 files, 1.0 GiB of 2.0 GiB"),
        (Progress("clone", "", GIB, 2 * GIB, 10, 20), 4.0, "10/20 files, 1.0 GiB of 2.0 GiB, 256.0 MiB/s"),
        (Progress("hash", "", 0, None, 300, None), 3.0, "300 files, 100 files/s"),
    ],
)
def test_amounts(progress: Progress, seconds: float, text: str) -> None:
    assert amounts(progress, seconds) == text


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: self.now)


def test_progress_in_a_pipe_is_lines_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = Clock(monkeypatch)
    with ProgressView(Output(json=True)) as view:
        report = view.sink("gpu1")
        for clock.now in (0.0, 2.0, 4.0, 6.0, 7.0):
            report(Progress("clone", "linking", done_files=int(clock.now * 100), total_files=800))
        clock.now = 8.0
        report(Progress("clone", done_files=800, total_files=800, finished=True))
        report(Progress("patch", finished=True))  # took no time: not worth a line
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "gpu1: clone: linking, 600/800 files, 100 files/s, 6 s",
        "gpu1: clone: done: 800/800 files, 100 files/s, 8 s",
    ]


def test_progress_on_a_terminal_is_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with ProgressView(Output()) as view:
        view.sink("gpu1")(Progress("clone", "", GIB, 2 * GIB, 10, 20))
    assert "gpu1 clone" in terminal.getvalue()
    assert "1.0 GiB of 2.0 GiB" in terminal.getvalue()
