"""A plan as people read it: a tree of what is there, what changes, what is done, and what stands in the way."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text
from rich.tree import Tree

from ddtree_deploy.plan.model import Action, FileChange, PackageChange, Plan, Problem
from ddtree_deploy.units import human_bytes, plural

_FOLD_OVER = 8  # so many packages with one reason are shown one by one; more are counted, unless verbose

_CHANGES = {"add": ("+", "green"), "replace": ("~", "yellow"), "remove": ("-", "red")}
_FILES = {"patch": ("~", "yellow"), "new": ("+", "green"), "shim": ("+", "green")}
_SEVERITIES = {"error": ("error", "bold red"), "warning": ("warning", "yellow"), "note": ("note", "cyan")}


def render_plan(console: Console, plan: Plan, *, verbose: bool = False, executed: bool = False) -> None:
    """Print ``plan``. ``verbose`` shows every package and the files' diffs; ``executed`` leaves out what to run."""
    title = Text.assemble((plan.host, "bold"), "  ", plan.base, " -> ", (plan.release_id, "bold"))
    tree = Tree(title, guide_style="dim")
    _add_setting(tree, plan)
    if plan.packages:
        _add_packages(tree, plan, verbose)
    if plan.files:
        _add_files(tree, plan.files, verbose)
    if plan.actions:
        branch = tree.add(Text("actions", style="bold"))
        for action in plan.actions:
            branch.add(_action(action))
    if plan.problems:
        branch = tree.add(Text("problems" if plan.errors else "notes", style="bold"))
        for problem in plan.problems:
            _add_problem(branch, problem)
    console.print(tree)
    if not executed:
        console.print(last_line(plan))


def last_line(plan: Plan) -> Text:
    """What the plan comes to, and what to run."""
    if plan.errors:
        return Text(
            f"{plural(len(plan.errors), 'error')}: {plan.host} is left as it is until it is solved", style="red"
        )
    if not plan.pending:
        if plan.previous != plan.release_id:
            return Text(f"nothing to do: {_only_built(plan)}", style="green")
        return Text(f"nothing to do: {plan.release_id} is current on {plan.host}", style="green")
    counts = ", ".join(
        [
            plural(len(plan.actions), "action"),
            plural(len(plan.packages), "package"),
            plural(len(plan.files), "file"),
        ]
    )
    return Text.assemble((counts, "bold"), "; run `", (f"ddtree-deploy provision {plan.host}", "bold"), "`")


def done_line(plan: Plan, current: str | None) -> Text:
    """What executing the plan came to; ``current`` is the release that is active now."""
    if current != plan.release_id:  # a playbook that does not activate
        return Text(f"{plan.host}: {_only_built(plan)}", style="green")
    before = f"; before it was {plan.previous}" if plan.previous else ""
    return Text(f"{plan.host}: {plan.release_id} is current{before}", style="green")


def _only_built(plan: Plan) -> str:
    activate = f"ddtree-deploy rollback {plan.host} --to {plan.release_id}"
    return f"{plan.release_id} is built, not activated; `{activate}` makes it current"


def _add_setting(tree: Tree, plan: Plan) -> None:
    tree.add(f"root {plan.root}, profile {plan.profile}, patch set {plan.patch_set or 'none'}")
    if plan.previous and plan.previous != plan.release_id:
        switches = plan.errors or any(action.step == "activate" for action in plan.actions)
        stays = f"it stays for `ddtree-deploy rollback {plan.host}`" if switches else "it stays current"
        tree.add(f"current is {plan.previous}; {stays}")


def _add_packages(tree: Tree, plan: Plan, verbose: bool) -> None:
    counts = {kind: sum(change.change == kind for change in plan.packages) for kind in _CHANGES}
    parts = [
        f"{counts['add']} added",
        f"{counts['replace']} replaced",
        f"{counts['remove']} removed",
        f"{plan.unchanged_packages} kept",
    ]
    branch = tree.add(Text.assemble(("packages", "bold"), f" {', '.join(parts)}"))
    places = {change.source for change in plan.packages if change.source is not None}
    mixed = len(places) > 1
    if places and not mixed:
        branch.add(Text(f"from {min(places)}", style="dim"))
    for kind, (sign, style) in _CHANGES.items():
        reasons: dict[str, list[PackageChange]] = {}
        for change in plan.packages:
            if change.change == kind:
                where = f" (from {change.source})" if change.source is not None and mixed else ""
                reasons.setdefault(change.reason + where, []).append(change)
        for reason, changes in reasons.items():
            if kind == "add" and len(changes) > _FOLD_OVER and not verbose:
                names = ", ".join(change.name for change in changes[:4])
                line = f"{sign} {len(changes)} packages: {names} … (-v lists them)"
                branch.add(Text.assemble((line, style), ("  " + reason, "dim")))
                continue
            for change in changes:
                branch.add(Text.assemble((f"{sign} {change.name} {_versions(change)}", style), ("  " + reason, "dim")))


def _versions(change: PackageChange) -> str:
    old = _version(change.old_version, change.old_abi)
    new = _version(change.new_version, change.new_abi)
    return f"{old} -> {new}" if old and new else old or new


def _version(version: str | None, abi: str | None) -> str:
    if version is None:
        return ""
    return version if abi is None or version.endswith("+" + abi) else f"{version} [{abi}]"


def _add_files(tree: Tree, files: Sequence[FileChange], verbose: bool) -> None:
    added, removed = sum(change.added for change in files), sum(change.removed for change in files)
    branch = tree.add(
        Text.assemble(("files", "bold"), f" {len(files)}, ", (f"+{added}", "green"), " ", (f"-{removed}", "red"))
    )
    for change in files:
        sign, style = _FILES[change.change]
        counts = f"  +{change.added} -{change.removed}" if change.change != "shim" else "  shim of the profile"
        node = branch.add(Text.assemble((f"{sign} {change.path}", style), (counts, "dim")))
        if verbose and change.diff:
            node.add(Syntax(change.diff, "diff", theme="ansi_dark", background_color="default", word_wrap=True))


def _action(action: Action) -> Text:
    size = ", ".join(
        part
        for part in (
            plural(action.files, "file") if action.files else "",
            human_bytes(action.bytes) if action.bytes else "",
        )
        if part
    )
    return Text.assemble((action.id, "cyan"), " ", action.summary, (f"  ({size})" if size else "", "dim"))


def _add_problem(branch: Tree, problem: Problem) -> None:
    label, style = _SEVERITIES[problem.severity]
    node = branch.add(Text.assemble((label, style), f" {problem.message} ", (f"[{problem.id}]", "dim")))
    if problem.hint:
        node.add(Text.assemble(("hint: ", "cyan"), problem.hint))
