"""What the agent can do: op names and the functions behind them. Standard library only (agent-safe).

A function takes ``(params: dict, progress: ProgressSink)`` and returns a dict of plain JSON values. Its module is
imported when the op is first called, so that asking for facts does not pay for everything else. ``STREAMS`` have
raw bytes before or after their result, and get ``(params, requests, emit, progress)``: the stream of requests, to read
from, and what sends bytes. ``blob.put`` is not here, see ``main``.
"""

from __future__ import annotations

import importlib
import platform
import sys
from typing import Any, BinaryIO, Callable, Dict

from ddtree_deploy import __version__
from ddtree_deploy.agent.protocol import PROTOCOL, ProgressSink
from ddtree_deploy.errors import StepError

Operation = Callable[[Dict[str, Any], ProgressSink], Dict[str, Any]]
Emit = Callable[[bytes], None]
Stream = Callable[[Dict[str, Any], BinaryIO, Emit, ProgressSink], Dict[str, Any]]

OPERATIONS: Dict[str, str] = {
    "hello": "ddtree_deploy.agent.operations:hello",
    "facts": "ddtree_deploy.facts.probe:collect",
    "blob.missing": "ddtree_deploy.agent.blobs:op_missing",
    "plan.apply": "ddtree_deploy.release.executor:apply_plan",
    "releases.list": "ddtree_deploy.release.store:op_list",
    "releases.rollback": "ddtree_deploy.release.store:op_rollback",
    "releases.prune": "ddtree_deploy.release.store:op_prune",
    "donor.inventory": "ddtree_deploy.donor.inventory:op_inventory",
    "donor.want": "ddtree_deploy.donor.store:op_want",
    "donor.pull": "ddtree_deploy.donor.pull:op_pull",
    "abi.audit": "ddtree_deploy.abi.audit:op_audit",
    "abi.preview": "ddtree_deploy.abi.preview:op_preview",
    "abi.diff": "ddtree_deploy.abi.diff:op_diff",
    "verify.gpu": "ddtree_deploy.verify.on_gpu:op_gpu",
    "verify.run": "ddtree_deploy.verify.checks:op_verify",
    "survey.run": "ddtree_deploy.survey.scan:op_survey",
    "service.launch": "ddtree_deploy.serve.operations:op_launch",
    "service.restart": "ddtree_deploy.serve.operations:op_restart",
    "service.status": "ddtree_deploy.serve.operations:op_status",
    "service.logs": "ddtree_deploy.serve.operations:op_logs",
    "service.stop": "ddtree_deploy.serve.operations:op_stop",
}

STREAMS: Dict[str, str] = {
    "donor.send": "ddtree_deploy.donor.send:stream_send",
    "donor.receive": "ddtree_deploy.donor.receive:stream_receive",
}


def hello(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Who answers: protocol number, our version, Python."""
    return {
        "protocol": PROTOCOL,
        "version": __version__,
        "python": platform.python_version(),
        "executable": sys.executable,
    }


def find(op: str) -> Operation:
    """The function behind ``op``; StepError ``agent-unknown-op`` if there is none."""
    target = OPERATIONS.get(op)
    if target is None:
        known = sorted([*OPERATIONS, *STREAMS])
        raise StepError("agent-unknown-op", f"the agent has no operation {op!r}", details={"known": known})
    return _load(target)  # type: ignore[no-any-return]


def find_stream(op: str) -> Stream:
    """The function behind one of ``STREAMS``."""
    return _load(STREAMS[op])  # type: ignore[no-any-return]


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
