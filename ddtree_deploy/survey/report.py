"""Show a survey: on a terminal, or as Markdown for a ticket. JSON is ``codec.to_dict``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ddtree_deploy.codec import from_dict
from ddtree_deploy.errors import InputError
from ddtree_deploy.survey.model import Backend, Evidence, LocalChanges, PatchPreview, Survey

_VERDICT_STYLE = {"yes": "green", "only if topk > 1": "yellow", "no": "red", "as wrapped": "dim", "unknown": "magenta"}
_STATE_STYLE = {"pristine": "cyan", "applied": "green", "edited": "red", "missing": "red"}
_MAX_PATHS = 12


def render(console: Console, result: dict[str, Any] | Survey, host: str | None = None, verbose: bool = False) -> None:
    """Print a survey (as the agent sends it, or as the object).

    ``verbose`` shows all evidence, and workers, functions and server arguments one by one.
    """
    survey = result if isinstance(result, Survey) else from_dict(Survey, result)
    name = f"{host}: {survey.distribution} {survey.version}" if host else f"{survey.distribution} {survey.version}"
    console.print(Text.assemble((name, "bold"), " ", (survey.location, "dim")))
    for line in _facts(survey):
        console.print(f"  {line}", markup=False)
    console.print(_algorithms(survey))
    console.print(_backends(survey, verbose))
    if verbose:
        console.print(_components(survey))
        console.print(_arguments(survey))
    else:
        kinds = Counter(component.kind for component in survey.components)
        counts = ", ".join(f"{kind}: {count}" for kind, count in kinds.items())
        console.print(f"  {counts}, server argument: {len(survey.server_arguments)} (see -v)", markup=False)
    if survey.patch is not None and survey.patch.files:
        console.print(_patch(survey.patch))
    elif survey.patch is not None:
        console.print(_patch_title(survey.patch))
    for note in survey.notes:
        console.print(f"  note: {note}", markup=False, style="dim")


def to_markdown(survey: Survey) -> str:
    """The survey as a Markdown document."""
    out = [f"# {survey.distribution} {survey.version}", "", f"`{survey.location}`", ""]
    out += [f"- {line}" for line in _facts(survey)]
    out += ["", "## Speculative algorithms", ""]
    out += _table(
        ("algorithm", "predicates", "source"),
        ((a.name, ", ".join(a.predicates), _place(a.evidence)) for a in survey.algorithms),
    )
    out += ["", "## Tree mask in TARGET_VERIFY", ""]
    out += _table(
        ("backend", "class", "verdict", "eager / graph", "reason", "source"),
        (
            (b.name, b.class_name, b.verdict, _modes(b), b.reason, ", ".join(_place(e) for e in b.evidence))
            for b in survey.backends
        ),
    )
    out += ["", "## Workers and tree utilities", ""]
    out += _table(("kind", "name", "source"), ((c.kind, c.name, _place(c.evidence)) for c in survey.components))
    out += ["", "## Server arguments", ""]
    out += _table(
        ("argument", "default", "source"),
        ((a.name, f"`{a.default}`", _place(a.evidence)) for a in survey.server_arguments),
    )
    if survey.patch is not None:
        out += ["", f"## Patch set {survey.patch.patch_set}", "", survey.patch.note, ""]
        out += _table(("file", "state"), ((f.path, f.state) for f in survey.patch.files))
    if survey.notes:
        out += ["", "## Notes", "", *(f"- {note}" for note in survey.notes)]
    return "\n".join(out) + "\n"


def write_markdown(path: Path, result: dict[str, Any]) -> None:
    """Write :func:`to_markdown` of what the agent sent to ``path``; raises InputError ``cannot-write``."""
    try:
        path.write_text(to_markdown(from_dict(Survey, result)), "utf-8", "backslashreplace")  # names that are no UTF-8
    except OSError as error:
        message = f"cannot write the Markdown file: {error.strerror}"
        hint = "name a file in a folder that exists and that you may write"
        raise InputError("cannot-write", message, where=str(path), hint=hint) from error


def _facts(survey: Survey) -> list[str]:
    lines = []
    if survey.commit:
        lines.append(f"commit {survey.commit}")
    if survey.editable:
        lines.append(f"editable install of {survey.editable}")
    if survey.applied_patch_set:
        lines.append(f"patch set {survey.applied_patch_set} is applied")
    return lines + _changes(survey.changes)


def _changes(changes: LocalChanges) -> list[str]:
    if not changes.compared:
        return [f"local changes: not compared ({changes.note})"]
    groups = (("changed", changes.changed), ("missing", changes.missing), ("added", changes.added))
    lines = [f"{word}: {path}" for word, paths in groups for path in paths[:_MAX_PATHS]]
    lines += [f"{word}: … and {len(p) - _MAX_PATHS} more" for word, p in groups if len(p) > _MAX_PATHS]
    return lines or ["local changes: none, every file is as installed"]


def _algorithms(survey: Survey) -> Table:
    table = Table("algorithm", "predicates", "source", title="Speculative algorithms", title_justify="left")
    for algorithm in survey.algorithms:
        table.add_row(algorithm.name, " ".join(algorithm.predicates), _place(algorithm.evidence))
    return table


def _backends(survey: Survey, verbose: bool) -> Table:
    table = Table(title="Tree mask in TARGET_VERIFY", title_justify="left")
    for column in ("backend", "tree mask", "eager / graph", "why", "source"):
        table.add_column(column, overflow="fold")
    for backend in survey.backends:
        same = backend.class_name in (backend.name, "")
        table.add_row(
            backend.name if same else f"{backend.name}\n  {backend.class_name}",
            Text(backend.verdict, style=_VERDICT_STYLE.get(backend.verdict, "")),
            _modes(backend),
            backend.reason,
            _places(backend.evidence if verbose else backend.evidence[:3], survey.distribution),
        )
    return table


def _components(survey: Survey) -> Table:
    table = Table("kind", "name", "source", title="Workers and tree utilities", title_justify="left")
    for component in survey.components:
        table.add_row(component.kind, component.name, _place(component.evidence))
    return table


def _arguments(survey: Survey) -> Table:
    table = Table("argument", "default", "source", title="Server arguments for speculation", title_justify="left")
    for argument in survey.server_arguments:
        table.add_row(argument.name, Text(argument.default), _place(argument.evidence))
    return table


def _patch_title(patch: PatchPreview) -> Text:
    return Text.assemble(f"Patch set {patch.patch_set}: ", (patch.note, "green" if patch.fits else "red"))


def _patch(patch: PatchPreview) -> Table:
    table = Table("file", "now", "", title=_patch_title(patch), title_justify="left")
    for state in patch.files:
        kind = "new file" if state.kind == "new" else ""
        table.add_row(state.path, Text(state.state, style=_STATE_STYLE.get(state.state, "")), state.note or kind)
    return table


def _modes(backend: Backend) -> str:
    if backend.eager is None and backend.graph is None:
        return ""
    words = {True: "yes", False: "no", None: "?"}
    return f"{words[backend.eager]} / {words[backend.graph]}"


def _place(evidence: Evidence) -> str:
    return f"{evidence.path}:{evidence.line}"


def _places(evidence: list[Evidence], package: str) -> str:
    """``layers/attention/x.py:12, 40``: a line a file, without what all paths begin with."""
    lines: dict[str, list[str]] = {}
    for item in evidence:
        lines.setdefault(item.path, []).append(str(item.line))
    return "\n".join(f"{path.removeprefix(f'{package}/srt/')}:{', '.join(n)}" for path, n in lines.items())


def _table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
