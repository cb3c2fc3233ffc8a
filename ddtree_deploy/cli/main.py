"""The entry point: runs a command and turns every way it can end into an exit code of ``errors.ExitCode``.

Importing this module is cheap on purpose: ``--help`` and shell completion answer at once. Commands import what they
need when they run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from ddtree_deploy.cli.arguments import Arguments, globals_first
from ddtree_deploy.cli.output import Output, Stdout
from ddtree_deploy.errors import DeployError, ExitCode, InputError, StepError

_PATIENCE = 2.0  # seconds after Ctrl-C until it is said what is waited for


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's) and return its exit code."""
    arguments = globals_first(sys.argv[1:] if argv is None else argv)
    _open_streams()
    output = Output(arguments.json, arguments.verbose, arguments.color)
    restore = _end_in_order(output)
    try:
        _require_folder()
        return _run(arguments, output)
    except KeyboardInterrupt:
        return _interrupted(output)
    except DeployError as error:
        output.error(error)
        if output.verbose and error.__cause__ is not None:
            _traceback()
        return int(error.exit_code)
    except Exception as error:  # a bug of ours: say so in short, in full under -v
        output.error(_unexpected(error))
        if output.verbose:
            _traceback()
        return int(ExitCode.STEP_FAILED)
    finally:
        restore()
        if argv is None:  # the program itself: its result is out, and a late Ctrl-C must not contradict it
            signal.signal(signal.SIGINT, signal.SIG_IGN)


def _open_streams() -> None:
    """Python sets streams to None that whoever started us has closed (``>&-``)."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123


def _require_folder() -> None:
    try:
        Path.cwd()
    except FileNotFoundError:
        raise InputError(
            "no-working-folder",
            "the folder that this was started in does not exist any more",
            hint="Go to another one.",
        ) from None


def _run(arguments: Arguments, output: Output) -> int:
    from ddtree_deploy.cli.app import command

    try:
        with contextlib.redirect_stdout(Stdout(sys.stdout)):
            result = command().main(
                arguments.words, prog_name="ddtree-deploy", standalone_mode=False, obj={"output": output}
            )
    except SystemExit as end:  # typer's own: --help in some versions, completion; its 1 would be "found problems"
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        result = int(ExitCode.BAD_INPUT if end.code else ExitCode.OK)
    except Exception as error:
        if type(error).__name__ == "Abort":
            return _interrupted(output)
        usage = _usage_error(error)
        if usage is None:
            raise
        raise usage from None
    code = result if isinstance(result, int) else 0
    return _interrupted(output) if code == ExitCode.INTERRUPTED else int(code)


def _usage_error(error: Exception) -> InputError | None:
    """Typer's own errors (unknown option, missing argument ...) as ours, whatever module it keeps them in."""
    if not hasattr(error, "format_message"):
        return None
    context: Any = getattr(error, "ctx", None)
    name = context.command_path if context is not None else "ddtree-deploy"
    message = error.format_message().replace("Value error, ", "", 1)  # pydantic's, which typer passes on
    parameter: Any = getattr(error, "param", None)
    help = getattr(parameter, "help", None) if "Missing" in message else None
    where = (
        (max(parameter.opts, key=len) if parameter.param_type_name == "option" else parameter.metavar) if help else None
    )
    what = f"{where}: {help} " if help else ""
    return InputError("usage", message or "a command is missing", where=where, hint=f"{what}{name} --help")


def _unexpected(error: Exception) -> StepError:
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame is not None else None
    hint = "This is a bug of ddtree-deploy. Run again with -v for the traceback, and report it."
    return StepError("internal-error", f"{type(error).__name__}: {error}", where=where, hint=hint)


def _interrupted(output: Output) -> int:
    if not output.endless:
        error = DeployError("interrupted", "interrupted before the end", hint="Run it again: it finishes or cleans up.")
        error.exit_code = ExitCode.INTERRUPTED
        output.error(error)
    return int(ExitCode.INTERRUPTED)


def _traceback() -> None:
    import traceback

    traceback.print_exc(file=sys.stderr)


def _end_in_order(output: Output) -> Any:
    """SIGTERM and SIGHUP end a run as Ctrl-C does: sessions are closed and the exit code is 130. When the hosts take
    their time to clean up, the user is told."""
    text = "interrupted: waiting until the hosts have cleaned up; once more leaves that to the next run"
    told = threading.Timer(_PATIENCE, lambda: None if output.endless else output.note(text))
    told.daemon = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        if told.ident is None:  # not started yet
            told.start()
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        try:
            # under nohup SIGHUP stays ignored, and SIGINT in the background of a script
            if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
                before[number] = signal.signal(number, interrupt)
        except ValueError:  # not in the main thread
            break

    def restore() -> None:
        told.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)

    return restore


if __name__ == "__main__":
    sys.exit(main())
