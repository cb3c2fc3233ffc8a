"""Step ``command``: a user's own command on the host, for the release under construction. Agent-safe."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional

from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.children import die_with_parent
from ddtree_deploy.errors import StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs, PlaybookStep
from ddtree_deploy.plan.model import Action
from ddtree_deploy.release.distributions import find_site
from ddtree_deploy.release.files import file_states, shown
from ddtree_deploy.release.own import LARGE, LargeFile, changed_in_place, other_names, own_files
from ddtree_deploy.release.record import refresh_records
from ddtree_deploy.serve.environment import service_environment
from ddtree_deploy.steps.context import StepContext
from ddtree_deploy.units import human_bytes, some

_TAIL_LINES = 20


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action, or none where the playbook says ``when`` it is for the other kind of profile."""
    options = draft.options
    if not PlaybookStep("command", options).applies(inputs.profile.gpu):
        return []
    argv = [str(word) for word in options["argv"]]
    return [
        Action(
            id="command",
            step="command",
            summary=str(options.get("name") or " ".join(argv)),
            params={
                "argv": argv,
                "timeout": int(options.get("timeout", 600)),
                "environment": dict(inputs.settings.environment),
            },
        )
    ]


def apply(action: Action, context: StepContext) -> Dict[str, Any]:
    """Run the argument vector without a shell, ``{release}`` expanded, in the environment of a service.

    Before it runs the release gets its own copies of the files that it shares (see ``release.own``); the step fails
    where the command writes into one that is too large for that.

    Returns {status, log, own_files, own_bytes, records}, the last those RECORDs that were corrected for files that it
    changed. Raises StepError ``command-failed``, ``command-timeout``, ``command-missing``, ``shared-file-changed``,
    ``no-space``.
    """
    tree = str(context.partial)
    own = own_files(tree, context.progress)
    site = find_site(tree)
    before = file_states(tree, site)
    release = str(context.final)
    argv = [word.replace("{release}", release) for word in action.params["argv"]]
    timeout = float(action.params["timeout"])
    log = context.log(f"{action.id}.log")
    environment = service_environment(context.final, action.params.get("environment") or {})
    with open(log, "wb") as output:
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd="/",
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        except OSError as error:
            raise StepError(
                "command-missing",
                f"cannot run {argv[0]}: {error.strerror}",
                where=action.summary,
                hint="correct argv in the playbook; {release} stands for the release's folder",
            ) from error
        try:
            status = _wait(process, timeout, action, context)
        finally:
            # Whatever it started goes with it: nothing may work on the release once it is finished or removed.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            changed = changed_in_place(tree, own.large)
            if changed:  # also where it was interrupted: nobody would look again
                raise _shared_changed(changed, action, context, str(log))
    tail = _tail(str(log))
    if status is None:
        message = f"{action.summary!r} was not done after {timeout:g} seconds, and was ended"
        hint = "the log has its output; a longer timeout is set in the playbook"
        raise StepError("command-timeout", message, where=str(log), hint=hint, details={"output": tail})
    if status != 0:
        last = tail.strip().splitlines()[-1] if tail.strip() else "it printed nothing"
        raise StepError(
            "command-failed",
            f"{action.summary!r} ended with status {status}: {last}",
            where=str(log),
            hint="the playbook names this command; its output is in the log",
            details={"output": tail, "status": status},
        )
    # What the playbook wants changed is no damage: `verify --static` and `abi` go by RECORD.
    edited = [path for path, state in file_states(tree, site).items() if before.get(path, state) != state]
    records = refresh_records(tree, site, [path for path in edited if os.path.isfile(f"{tree}/{path}")])
    return {"status": status, "log": str(log), "own_files": own.files, "own_bytes": own.bytes, "records": records}


def undo(action: Action, context: StepContext) -> None:
    """Nothing that we know of: what a command does outside of the release is the playbook's affair."""


def _tail(log: str) -> str:
    with open(log, encoding="utf-8", errors="replace") as stream:
        return "".join(stream.readlines()[-_TAIL_LINES:])


def _shared_changed(changed: List[LargeFile], action: Action, context: StepContext, log: str) -> StepError:
    """A staging venv that was changed with the release is given up here: the next run fills it anew."""
    from ddtree_deploy.release.sources import give_up_staging

    venvs = [context.plan.base, *(place for place in map(_donor, context.plan.actions) if place)]
    others: List[str] = []
    for file in changed:
        for name in other_names(str(context.partial), file, venvs, context.layout):
            others.append(name)
            give_up_staging(name, context.layout)
    others.sort(key=lambda name: name.startswith(f"{context.root}/"))  # what is not ours first
    elsewhere = some([shown(name) for name in others]) if others else "another place, such as uv's cache"
    return StepError(
        "shared-file-changed",
        f"{action.summary!r} wrote into {some([shown(file.path) for file in changed])}. Files of more than "
        f"{human_bytes(LARGE)} are shared, not copied, so this changed {elsewhere} too",
        where=shown(others[0]) if others else log,
        hint="reinstall the file's package there, and take it out of uv's cache where it came from that "
        "(`uv cache clean PACKAGE`); let the command write a new file and rename it over the old one "
        "(cp FILE NEW, change NEW, mv NEW FILE)",
        details={"files": [file.path for file in changed], "also": others, "log": log, "output": _tail(log)},
    )


def _donor(action: Action) -> Optional[str]:
    """A donor on the host itself, whose files a release shares."""
    source = action.params.get("source") or {}
    return str(source["location"]) if source.get("kind") == "donor" and not source.get("host") else None


def _wait(process: subprocess.Popen[bytes], timeout: float, action: Action, context: StepContext) -> Any:
    """The exit status, or None when it took longer than ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while True:
        left = end - time.monotonic()
        if left <= 0:
            return None
        try:
            return process.wait(timeout=min(left, 0.5))
        except subprocess.TimeoutExpired:
            context.progress(Progress("command", action.summary))
