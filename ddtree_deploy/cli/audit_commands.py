"""``verify``, ``abi`` and ``survey``: reports on environments."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ddtree_deploy.cli.context import AppContext, app_context
from ddtree_deploy.cli.hosts import call_op, run_on_hosts
from ddtree_deploy.cli.parameters import Hosts, complete_hosts

if TYPE_CHECKING:
    from rich.console import Console

    from ddtree_deploy.agent.protocol import ProgressSink
    from ddtree_deploy.fleet import HostResult
    from ddtree_deploy.inventory.settings import HostSettings
    from ddtree_deploy.sessions import Connector, Session

LOCAL = "local"


def verify(
    context: typer.Context,
    hosts: Hosts,
    static: Annotated[bool, typer.Option("--static", help="Read files only; import nothing.")] = False,
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Also run the tree kernels, and engines with a tiny model, on one GPU.")
    ] = False,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="FILE", help="Also write JUnit XML; {host} stands for the host.")
    ] = None,
    release: Annotated[
        str | None, typer.Option("--release", metavar="RELEASE", help="Default: the current one.")
    ] = None,
) -> None:
    """Check the release: it imports, and what the service needs is in it. Exit 1 when a check fails."""
    from ddtree_deploy.errors import InputError
    from ddtree_deploy.fleet import HostResult
    from ddtree_deploy.verify.report import exit_code, render, write_junit

    app = app_context(context)
    selected = app.hosts(hosts)
    _check_file(junit, "--junit", len(selected), "verify-{host}.xml")
    if static and gpu:
        raise InputError(
            "static-and-gpu",
            "--static imports nothing, and --gpu runs an engine",
            where="--gpu",
            hint="Run verify twice, once with each.",
        )

    def work(host: HostSettings, connect: Connector, sink: ProgressSink) -> HostResult:
        params = {
            "root": host.root,
            "release": release,
            "environment": dict(host.environment),
            "static": static,
            "gpu": gpu,
        }
        with connect(host) as session:
            if gpu:
                params.update(_gpu_params(host, release, session, sink))
            report = session.call("verify.run", params, sink)
        result = HostResult(host.name, exit_code(report), report, report)
        if junit is not None:
            write_junit(_file_of(junit, host), {host.name: result.value})
        return result

    def draw(console: Console, result: HostResult) -> None:
        render(console, result.value, host=result.host, verbose=app.output.verbose)

    run_on_hosts(app, "verify", selected, work, draw)


def _gpu_params(host: HostSettings, release: str | None, session: Session, sink: ProgressSink) -> dict[str, Any]:
    """Which GPU the host has for it, and the pair of models, sent once: a host without a GPU is sent nothing."""
    from ddtree_deploy.release.files import sha256_file
    from ddtree_deploy.resources import data_dir

    params: dict[str, Any] = {
        "root": host.root,
        "release": release,
        "gpus": list(host.gpus) if host.gpus is not None else None,
        "engine_arguments": list(host.engine_arguments),
    }
    chosen = session.call("verify.gpu", params, sink)
    folder = data_dir("pairs") / "nano"
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sent = session.put_blobs(files, host.root, sink)
    pair = {path.relative_to(folder).as_posix(): sent[sha256_file(path)] for path in files}
    return {"gpu_index": chosen["index"], "pair": pair, "engine_arguments": params["engine_arguments"]}


def survey(
    context: typer.Context,
    hosts: Hosts,
    markdown: Annotated[
        Path | None,
        typer.Option("--markdown", metavar="FILE", help="Also write Markdown; {host} stands for the host."),
    ] = None,
) -> None:
    """Report what the installed engine has: local changes, algorithms, tree masks, what patches would touch."""
    app = app_context(context)
    selected = app.hosts(hosts)
    _check_file(markdown, "--markdown", len(selected), "survey-{host}.md")

    def work(host: HostSettings, connect: Connector, sink: ProgressSink) -> HostResult:
        from ddtree_deploy.survey.report import write_markdown

        result = call_op("survey.run", _survey_params, lambda result: 0)(host, connect, sink)
        if markdown is not None:
            write_markdown(_file_of(markdown, host), result.value)
        return result

    def draw(console: Console, result: HostResult) -> None:
        from ddtree_deploy.survey.report import render

        render(console, result.value, host=result.host, verbose=app.output.verbose)

    run_on_hosts(app, "survey", selected, work, draw)


def _check_file(file: Path | None, option: str, hosts: int, example: str) -> None:
    """Raises InputError ``one-file-for-many`` where the reports of several hosts would go into one file."""
    from ddtree_deploy.errors import InputError

    if file is not None and hosts > 1 and "{host}" not in str(file):
        message = f"{file} cannot hold several reports"
        raise InputError("one-file-for-many", message, where=option, hint=f"Write a name such as {example}.")


def _file_of(file: Path, host: HostSettings) -> Path:
    return Path(str(file).replace("{host}", host.name))


def _survey_params(host: HostSettings) -> dict[str, Any]:
    """With the patch set of the host's profile, so that the report says what it would touch."""
    from ddtree_deploy.codec import to_dict
    from ddtree_deploy.patching.series import load_patch_set
    from ddtree_deploy.plan.donor_set import DONOR_PROFILE
    from ddtree_deploy.profiles.locking import profile_of

    name = profile_of(host).patch_set if host.profile not in (None, DONOR_PROFILE) else None
    patch_set = to_dict(load_patch_set(name)) if name is not None else None
    return {"root": host.root, "base": host.base, "patch_set": patch_set}


def abi(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="PATH of a venv, or HOST:PATH, HOST:RELEASE, HOST:current. HOST: its current release, else its base.",
            autocompletion=complete_hosts,
        ),
    ] = None,
    sarif: Annotated[Path | None, typer.Option("--sarif", metavar="FILE", help="Also write SARIF 2.1.0.")] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", metavar="ID", help="What a finding means; needs no TARGET.")
    ] = None,
) -> None:
    """Audit any venv from its files alone, before anything is imported. Exit 1 on errors."""
    from ddtree_deploy.abi.explain import EXPLANATIONS
    from ddtree_deploy.abi.explain import explain as explanation
    from ddtree_deploy.abi.report import exit_code, render, write_sarif
    from ddtree_deploy.errors import InputError

    app = app_context(context)
    if explain is not None:
        text = explanation(explain)
        document = {"command": "abi", "exit_code": 0, "id": explain, **EXPLANATIONS[explain]._asdict()}
        app.output.emit(document, lambda console: console.print(text))
        return
    if target is None:
        raise InputError("no-target", "say what to audit", where="TARGET", hint="ddtree-deploy abi /opt/venv")
    host, path = _target(app, target)
    params: dict[str, Any] = {"path": path}
    if host.name != LOCAL:
        params.update(root=host.root, base=host.base)

    def work(settings: HostSettings, connect: Connector, sink: ProgressSink) -> HostResult:
        result = call_op("abi.audit", lambda _: params, exit_code)(settings, connect, sink)
        if sarif is not None and result.value:
            write_sarif(sarif, result.value)
        return result

    run_on_hosts(
        app, "abi", [host], work, lambda console, result: render(console, result.value, verbose=app.output.verbose)
    )


def diff(
    context: typer.Context,
    left: Annotated[
        str,
        typer.Argument(
            metavar="FROM", help="PATH, or HOST:RELEASE, HOST:current or HOST:PATH.", autocompletion=complete_hosts
        ),
    ],
    right: Annotated[str, typer.Argument(metavar="TO", help="The same; without HOST: on FROM's host.")],
) -> None:
    """Show which packages, ABI tags and files differ between two releases or venvs of one host. Exit 0."""
    from ddtree_deploy.abi.report import render_difference
    from ddtree_deploy.errors import InputError

    app = app_context(context)
    host, first = _target(app, left)
    second = right
    if ":" in right and not right.startswith(("/", ".", "~")):
        other, second = _target(app, right)
        if other.name != host.name:
            message = f"{left} and {right} are on different hosts; both are read where they are"
            raise InputError("two-hosts", message, where="TO", hint="Compare releases of one host.")
    elif host.name == "local" and ("/" in right or Path(right).expanduser().exists()):
        second = str(Path(right).expanduser().absolute())
    params = {"root": host.root, "left": first or "current", "right": second or "current"}
    work = call_op("abi.diff", lambda _: params, lambda result: 0)
    run_on_hosts(
        app,
        "diff",
        [host],
        work,
        lambda console, result: render_difference(console, result.value, host=host.name, verbose=app.output.verbose),
    )


def _target(app: AppContext, target: str) -> tuple[HostSettings, str]:
    """``PATH`` is on this machine; ``HOST:PATH`` on a host of the inventory.

    ``HOST:RELEASE`` and ``HOST:current`` are for the agent to find, as is ``HOST`` alone, whose path is empty. Where a
    word could be both, an environment in the working folder goes before a host, and a host before anything else there.
    """
    from ddtree_deploy.abi.environment import is_environment
    from ddtree_deploy.errors import InputError
    from ddtree_deploy.inventory.settings import Connection, HostSettings

    local = Path(target).expanduser()
    is_path = "/" in target.partition(":")[0] or target.startswith((".", "~"))
    if not is_path and ":" not in target and local.exists():
        is_path = is_environment(target) or target not in app.inventory().hosts
    if is_path:
        here = HostSettings(LOCAL, (), Connection(kind="local", address=LOCAL), Path.cwd())
        return here, str(local.absolute())
    name, colon, path = target.partition(":")
    host = app.inventory().host(name)
    hint = f"Write {name}:/PATH, {name}:RELEASE or {name}:current."
    if colon and not path:  # often a variable that is not set
        raise InputError("bad-path", f"{target!r} says nothing after the colon", where="TARGET", hint=hint)
    if "/" in path and not path.startswith(("/", "~")):
        raise InputError("bad-path", f"{path!r} is not an absolute path on {name}", where="TARGET", hint=hint)
    return host, path
