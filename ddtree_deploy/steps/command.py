"""Step ``command``: a user's own command on the host, for the release under construction. Agent-safe."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import Any, Dict, List

from ddtree_deploy.agent.protocol import Progress
from ddtree_deploy.children import die_with_parent
from ddtree_deploy.errors import StepError
from ddtree_deploy.plan.draft import PlanDraft
from ddtree_deploy.plan.inputs import PlanInputs
from ddtree_deploy.plan.model import Action
from ddtree_deploy.serve.environment import service_environment
from ddtree_deploy.steps.context import StepContext

_TAIL_LINES = 20


def plan(inputs: PlanInputs, draft: PlanDraft) -> List[Action]:
    """One action, or none where the playbook says ``when`` it is for the other kind of profile."""
    options = draft.options
    when = options.get("when", "always")
    if (when == "gpu" and not inputs.profile.gpu) or (when == "cpu" and inputs.profile.gpu):
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

    Returns {status, log}. Raises StepError ``command-failed``, ``command-timeout``, ``command-missing``.
    """
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
    with open(log, encoding="utf-8", errors="replace") as stream:
        tail = "".join(stream.readlines()[-_TAIL_LINES:])
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
    return {"status": status, "log": str(log)}


def undo(action: Action, context: StepContext) -> None:
    """Nothing that we know of: what a command does outside of the release is the playbook's affair."""


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
