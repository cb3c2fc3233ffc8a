"""Every way a command can end has its exit code, and under --json stdout is one document."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import command, run, spawn, write_inventory
from processes import wait_until_asleep

from ddtree_deploy.errors import DeployError, InputError, LockedError, ProblemsError, StepError, UnreachableError

USAGE = [
    [],
    ["bogus"],
    ["plan"],
    ["plan", "--bogus", "x"],
    ["provision", "x", "--facts"],
    ["provision", "x", "--facts", "f.json"],
    ["prune", "localhost"],
    ["prune", "localhost", "--keep", "-1"],
    ["prune", "localhost", "--keep", "many"],
    ["launch", "localhost", "--algorithm", "magic"],
    ["launch", "localhost", "--gpus", "zero"],
    ["logs", "localhost", "-f", "--json"],
    ["patches", "bogus"],
    ["--inventory"],
]


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_usage_errors_are_bad_input(words: list[str]) -> None:
    ran = run(*words)
    assert ran.code == 3
    assert ran.out == "" or "--json" in words
    assert "error: " in ran.err and "what: " in ran.err and "hint: " in ran.err


def test_a_word_that_is_none_of_an_options_is_said_without_the_parsers_own_words() -> None:
    ran = run("launch", "localhost", "--algorithm", "magic")
    assert "what: Invalid value for '--algorithm': 'magic' is not one of 'ddtree', 'dflash', 'none'." in ran.err


@pytest.mark.parametrize("words", USAGE, ids=" ".join)
def test_usage_errors_as_json(words: list[str]) -> None:
    ran = run("--json", *words)
    assert ran.code == 3
    assert ran.json["error"]["exit_code"] == 3
    assert ran.json["exit_code"] == 3


@pytest.mark.parametrize(
    ("words", "what", "where", "hint"),
    [
        (["patches", "export", "/v", "--out", "x"], "Missing option '--wheel'", "--wheel", "released engine's wheel"),
        (["patches", "check"], "Missing argument 'PATH'", "PATH", "A venv or a site-packages folder"),
        (["plan", "h", "-i"], "Option '-i' requires an argument", None, "--help"),
        (["plan", "h", "--inventory"], "Option '--inventory' requires an argument", None, "--help"),
    ],
)
def test_usage_errors_say_what_and_what_to_do(words: list[str], what: str, where: str | None, hint: str) -> None:
    error = run("--json", *words).json["error"]
    assert what in error["message"] and error["where"] == where and hint in error["hint"]


EMPTY = {
    "--to": ["rollback", "localhost", "--to", ""],
    "--profile": ["plan", "localhost", "--profile", ""],
    "--source": ["plan", "localhost", "--source="],
    "--from": ["provision", "localhost", "--from", ""],
    "--facts": ["plan", "localhost", "--facts", ""],
    "--release": ["verify", "localhost", "--release", ""],
    "--model": ["launch", "localhost", "--model", ""],
    "--budget": ["launch", "localhost", "--budget="],
    "--gpus": ["launch", "localhost", "--gpus", ""],
    "--service": ["stop", "localhost", "--service", "gpu0", "--service", ""],
    "--keep": ["prune", "localhost", "--keep", ""],
    "--inventory": ["inventory", "check", "--inventory="],
    "HOST": ["status", "localhost", ""],
    "TARGET": ["abi", ""],
    "TO": ["diff", "localhost:current", ""],
    "PATH": ["patches", "check", ""],
    "--wheel": ["patches", "export", "/venv", "--wheel", "", "--out", "x"],
}


@pytest.mark.parametrize("option", EMPTY)
def test_an_empty_value_is_refused_by_the_name_of_its_option(option: str) -> None:
    ran = run("--json", *EMPTY[option])
    assert ran.code == 3
    assert ran.json["error"]["id"] == "empty-value"
    assert ran.json["error"]["where"] == option


@pytest.mark.parametrize(
    ("option", "value", "id"),
    [
        ("--budget", "0", "budget-out-of-range"),
        ("--budget", "-1", "budget-out-of-range"),
        ("--budget", "512", "budget-out-of-range"),
        ("--budget", "abc", "budget-invalid"),
        ("--budget", "1.5", "budget-invalid"),
        ("--gpus", "0,0", "bad-gpus"),
        ("--gpus", "0,00", "bad-gpus"),
        ("--gpus", "0,", "bad-gpus"),
        ("--gpus", "9" * 5000, "bad-gpus"),
    ],
)
def test_launch_checks_its_options_before_it_asks_a_host(tmp_path: Path, option: str, value: str, id: str) -> None:
    inventory = tmp_path / "hosts.yaml"
    inventory.write_text("hosts: {away: {connection: ssh, address: away.invalid, root: /r, base: /b, model: /m}}\n")
    ran = run("--json", "-i", str(inventory), "launch", "away", option, value)
    assert ran.code == 3
    assert ran.json["error"]["id"] == id
    assert ran.json["error"]["where"] == option


def test_unknown_host_names_the_known_ones(tmp_path: Path) -> None:
    ran = run("plan", "three", "--inventory", str(write_inventory(tmp_path)), "--json")
    assert ran.code == 3
    assert ran.json["error"]["id"] == "unknown-host"
    assert "one" in ran.json["error"]["hint"]


def test_missing_inventory() -> None:
    ran = run("--inventory", "/nonexistent/hosts.yaml", "inventory", "check")
    assert ran.code == 3
    assert "/nonexistent/hosts.yaml" in ran.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ProblemsError("some-id", "message"), 1),
        (InputError("some-id", "message", where="file:3", hint="do this"), 3),
        (UnreachableError("some-id", "message"), 4),
        (StepError("some-id", "message"), 5),
        (LockedError("some-id", "message"), 6),
    ],
)
def test_errors_of_commands(monkeypatch: pytest.MonkeyPatch, error: DeployError, code: int) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("ddtree_deploy.inventory.load.load_inventory", fail)
    ran = run("inventory", "check", "--json")
    assert ran.code == code
    assert ran.json["error"] == error.to_dict()
    human = run("inventory", "check")
    assert human.code == code and human.out == ""
    assert "error: some-id" in human.err
    if error.where:
        assert "where: file:3" in human.err and "hint: do this" in human.err


def test_a_bug_is_reported_in_short_and_in_full_under_v(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise ZeroDivisionError("by design")

    monkeypatch.setattr("ddtree_deploy.inventory.load.load_inventory", fail)
    ran = run("inventory", "check")
    assert ran.code == 5
    assert "internal-error" in ran.err and "ZeroDivisionError: by design" in ran.err
    assert "Traceback" not in ran.err
    assert "Traceback" in run("inventory", "check", "-v").err
    assert run("inventory", "check", "--json").json["error"]["id"] == "internal-error"


def test_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ddtree_deploy.inventory.load.load_inventory", interrupt)
    ran = run("inventory", "check", "--json")
    assert ran.code == 130
    assert ran.json["error"]["id"] == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_end_a_run_as_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    pipe = tmp_path / "inventory.yaml"
    os.mkfifo(pipe)  # reading it blocks, as a host that does not answer would
    process = subprocess.Popen(
        command("--json", "--inventory", str(pipe), "inventory", "check"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),  # under nohup it would be ignored, as it should
    )
    try:
        writer = _open_for_writing(pipe)  # now the command reads, and waits for what never comes
        wait_until_asleep(process.pid)  # a signal between Python's last look and read(2) would be seen after it
        process.send_signal(number)
        out, _ = process.communicate(timeout=30)
        os.close(writer)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert json.loads(out)["error"]["id"] == "interrupted"


def test_a_signal_after_the_result_does_not_contradict_it() -> None:
    code = (
        "import os, signal, sys; from ddtree_deploy.cli.main import main; code = main();"
        "os.kill(os.getpid(), signal.SIGINT); sys.exit(code)"
    )
    words = [sys.executable, "-c", code, "--json", "inventory", "check"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["exit_code"] == 0


def shell(line: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The program in ``line``'s place of ``$@``."""
    script = ["sh", "-c", line, "sh", *command(*words)]
    return subprocess.run(script, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("words", [("inventory", "check"), ("inventory", "check", "--json")])
def test_a_result_that_cannot_be_written(words: tuple[str, ...]) -> None:
    ran = shell('"$@" >/dev/full', *words)
    assert ran.returncode == 5
    assert "error: output-not-written\n" in ran.stderr and "hint:" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert "has run" in ran.stderr and "twice" not in ran.stderr  # a second `rollback` would go one further


@pytest.fixture(params=[[], ["--help"], ["plan", "--help"]], ids=["completion", "help", "help of a command"])
def of_typer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Words with which typer itself prints something."""
    if not request.param:  # as --show-completion does, which must find out the shell
        monkeypatch.setenv("_DDTREE_DEPLOY_COMPLETE", "source_bash")
    words: list[str] = request.param
    return words


def test_help_and_completion_that_cannot_be_written(of_typer: list[str]) -> None:
    ran = shell('"$@" >/dev/full', *of_typer)
    assert ran.returncode == 5
    assert "error: output-not-written\n" in ran.stderr and "bug" not in ran.stderr


def test_help_and_completion_that_nobody_reads(of_typer: list[str]) -> None:
    assert run_unread(*of_typer) == (0, b"")


def test_completion_for_a_shell_that_has_none_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DDTREE_DEPLOY_COMPLETE", "source_tcsh")
    assert spawn().code == 3


def test_a_broken_pipe_that_is_not_stdout_is_no_found_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "by design")

    monkeypatch.setattr("ddtree_deploy.inventory.load.load_inventory", fail)
    ran = run("inventory", "check")
    assert ran.code == 5 and "internal-error" in ran.err


def test_an_error_is_said_although_stdout_takes_nothing(tmp_path: Path) -> None:
    ran = shell('"$@" >/dev/full', "status", "a", "-i", str(without_python(tmp_path)))
    assert ran.returncode == 5
    assert "error: no-python\n" in ran.stderr and "error: output-not-written\n" in ran.stderr


@pytest.mark.parametrize(("closed", "code"), [("0<&-", 0), ("1>&-", 0), ("2>&-", 0), ("0<&- 1>&- 2>&-", 0)])
def test_streams_that_are_closed(closed: str, code: int) -> None:
    assert shell(f'"$@" {closed}', "inventory", "check").returncode == code
    assert shell(f'"$@" {closed}', "inventory", "check", "--nonsense").returncode == 3


def test_a_working_folder_that_is_gone(tmp_path: Path) -> None:
    ran = shell(f'mkdir {tmp_path}/gone && cd {tmp_path}/gone && rmdir {tmp_path}/gone && "$@"', "inventory", "check")
    assert ran.returncode == 3 and "error: no-working-folder\n" in ran.stderr


def _open_for_writing(pipe: Path) -> int:
    """Works once somebody has opened the pipe for reading."""
    while True:
        try:
            return os.open(pipe, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
        time.sleep(0.02)


def without_python(folder: Path) -> Path:
    """An inventory with a host on which no agent can be started."""
    path = folder / "hosts.yaml"
    path.write_text("hosts: {a: {connection: {kind: local, python: /no/such/python}, base: /v, root: /r}}\n", "utf-8")
    return path


def run_unread(*words: str) -> tuple[int, bytes]:
    """Exit code and stderr of the program when the reader of its stdout has gone away."""
    process = subprocess.Popen(command(*words), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    return process.wait(), err


def test_a_reader_that_goes_away_does_not_change_the_exit_code(tmp_path: Path) -> None:
    inventory = write_inventory(tmp_path)
    assert run_unread("--inventory", str(inventory), "inventory", "show", "one") == (0, b"")


def test_the_package_runs_as_the_program() -> None:
    ran = subprocess.run([sys.executable, "-m", "ddtree_deploy", "plan"], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 3
    assert "hint: ddtree-deploy plan --help" in ran.stderr


def test_the_program_itself(tmp_path: Path) -> None:
    assert spawn("--version").code == 0
    assert spawn("bogus").code == 3
    ran = spawn("plan", "one", "--json", "--inventory", str(write_inventory(tmp_path)))
    assert ran.code == 3
    assert ran.json["error"]["id"] == "base-missing"
    assert ran.json["hosts"][0]["plan"]["problems"]
