"""What the program prints: one JSON document or a human report on stdout, errors and progress on stderr."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from ddtree_deploy.errors import DeployError, StepError

if TYPE_CHECKING:
    from rich.console import Console

Render = Callable[["Console"], None]

_PIPE_WIDTH = 10_000  # columns where nobody looks at a terminal: lines of logs and CI are not broken


@dataclass
class Output:
    """``json``: the document goes to stdout and nothing else does. ``color``: False after --no-color or NO_COLOR.
    ``endless``: the command goes on until it is interrupted, so that is no error."""

    json: bool = False
    verbose: bool = False
    color: bool = True
    endless: bool = False

    def __post_init__(self) -> None:
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
            self.color = False

    def emit(self, document: dict[str, Any], render: Render) -> None:
        """Print a command's result: ``document`` under --json, else what ``render`` draws."""
        text = _dumps(document) if self.json else self.drawn(render, sys.stdout)
        hint = (
            "The command itself has run, only its report is lost. Make room; `releases` and `status` show what it did."
        )
        _write(sys.stdout, text, hint)

    def show_first(self, render: Render) -> None:
        """Draw, on stdout, what is about to be done: before anything is."""
        _write(sys.stdout, self.drawn(render, sys.stdout), "Nothing was done: make room, and run it again.")

    def follow(self, text: str) -> bool:
        """Write a part of what has no end; False when the reader has gone away."""
        return _write(sys.stdout, text)

    def note(self, text: str) -> None:
        """A line for people, on stderr."""
        _write(sys.stderr, text + "\n")

    def error(self, error: DeployError) -> None:
        """An error in full: id, what, where, hint. Under --json also ``{"error": {...}}`` on stdout."""
        self.error_text(error)
        if self.json:
            _write(sys.stdout, _dumps({"error": error.to_dict(), "exit_code": int(error.exit_code)}))

    def error_text(self, error: DeployError, host: str | None = None) -> None:
        """The error for people, on stderr; ``host`` is named where there are several."""
        _write(sys.stderr, self.drawn(lambda console: draw_error(console, error, host), sys.stderr))

    def drawn(self, render: Render, stream: TextIO) -> str:
        """The text that ``render`` draws, with the width and colours that ``stream`` can show."""
        from rich.console import Console

        terminal = stream.isatty()
        width = shutil.get_terminal_size().columns if terminal else _PIPE_WIDTH
        buffer = io.StringIO()
        console = Console(
            file=buffer,
            force_terminal=terminal and self.color,
            no_color=not self.color,
            width=max(width, 40),
            highlight=False,
        )
        render(console)
        return "\n".join(line.rstrip() for line in buffer.getvalue().split("\n"))


def draw_error(console: Console, error: DeployError, host: str | None = None) -> None:
    """``error: id`` / what is wrong / where / what to do, as pip's diagnostic errors read."""
    from rich.text import Text

    prefix = f"{host}: " if host else ""
    console.print(Text.assemble(prefix, ("error", "bold red"), ": ", (error.id, "bold")))
    rows = [("what:", "red", error.message), ("where:", "dim", error.where), ("hint:", "cyan", error.hint)]
    for label, style, text in rows:
        if text:
            lines = text.splitlines() or [""]
            console.print(Text.assemble((label, style), " ", lines[0]))
            for line in lines[1:]:
                console.print(Text("  " + line))
    for other in error.details.get("errors", [])[1:]:  # the first is the error itself
        hint = f" ({other['hint']})" if other.get("hint") else ""
        console.print(Text.assemble(("also:", "red"), f" {other['where']}: {other['message']}{hint}"))
    if error.details.get("more"):
        console.print(Text.assemble(("also:", "red"), f" {error.details['more']} more"))


def _dumps(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _write(stream: TextIO | Stdout, text: str, hint: str = "Make room, and ask again.") -> bool:
    """Write and flush. A reader that has gone away (``| head``) ends the output, not the work: then it returns False. A
    stdout that takes nothing (a full disk) is StepError ``output-not-written`` with ``hint``."""
    file = stream.stream if isinstance(stream, Stdout) else stream
    try:
        try:
            file.write(text)
        except UnicodeEncodeError:
            encoding = file.encoding or "ascii"
            file.write(text.encode(encoding, "replace").decode(encoding))
        file.flush()
    except OSError as error:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, file.fileno())
        os.close(null)
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            what = f"the output cannot be written: {error.strerror}"
            raise StepError("output-not-written", what, where="stdout", hint=hint) from error
        return False
    return True


class Stdout(io.TextIOBase):
    """stdout while a command runs: what typer itself prints on it, help and completion, is written as ours is."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def write(self, text: str) -> int:
        if not text:  # typer finds out what kind of stream it is, and passes over errors
            return self.stream.write(text)
        _write(self, text)
        return len(text)

    def isatty(self) -> bool:
        return self.stream.isatty()

    def fileno(self) -> int:
        return self.stream.fileno()
