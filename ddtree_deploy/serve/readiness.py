"""Is the engine ready? Only a real completion says so: a health route may answer 200 before the model can
(sglang#6624), and a closed port or a slow prefill says nothing about the process, which is asked apart (liveness).
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Optional, Set, Tuple

from ddtree_deploy.serve.process import ProcessIdentity
from ddtree_deploy.serve.spec import ServiceSpec
from ddtree_deploy.serve.state import ProbeResult, timestamp

_SPECULATIVE_TOKENS = 4


def probe_address(listen: str) -> str:
    """The address under which a server that listens on ``listen`` is reached from its own host."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(listen, listen)


def request(
    spec: ServiceSpec, method: str, path: str, body: Optional[Dict[str, Any]], api_key: Optional[str], timeout: float
) -> Any:
    """JSON of one HTTP request to the service; raises OSError, ValueError or HTTPException."""
    address = probe_address(spec.listen)
    arguments = [*spec.profile_arguments, *spec.engine_arguments]
    connection: http.client.HTTPConnection
    if any(argument.startswith("--ssl-certfile") for argument in arguments):
        context = ssl.create_default_context()
        context.check_hostname = False  # the certificate is for the outside name; this is our own process
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(address, spec.port, timeout=timeout, context=context)
    else:
        connection = http.client.HTTPConnection(address, spec.port, timeout=timeout)
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    with contextlib.closing(connection):
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        text = response.read(4 * 1024 * 1024).decode("utf-8", "replace")
    if response.status != 200:
        raise ValueError(f"HTTP {response.status}: {text.strip()[:300]}")
    return json.loads(text)


def complete(spec: ServiceSpec, api_key: Optional[str], timeout: float) -> ProbeResult:
    """Ask the engine for one token, greedily; for a few of a speculative one, whose first comes from the prefill alone,
    so that draft and verification run too. Never raises: what went wrong is in the result."""
    began = time.monotonic()
    tokens = 1 if spec.algorithm == "none" else _SPECULATIVE_TOKENS
    body: Dict[str, Any] = {"text": "def", "sampling_params": {"max_new_tokens": tokens, "temperature": 0.0}}
    if "--skip-tokenizer-init" in [*spec.profile_arguments, *spec.engine_arguments]:
        body["input_ids"] = [10, 11, 12]
        del body["text"]
    text, error = None, None
    try:
        answer = request(spec, "POST", "/generate", body, api_key, timeout)
        text, error = _judge(answer)
    except (OSError, ValueError, http.client.HTTPException) as problem:
        error = str(problem) or type(problem).__name__
    return ProbeResult(error is None, timestamp(), round(time.monotonic() - began, 3), text, error)


def _judge(answer: Any) -> Tuple[Optional[str], Optional[str]]:
    """(text, None) for a completion with a token in it, else (None, why not)."""
    meta = answer.get("meta_info") if isinstance(answer, dict) else None
    if not isinstance(meta, dict):
        return None, f"no completion in the answer: {json.dumps(answer)[:200]}"
    reason = meta.get("finish_reason")
    if isinstance(reason, dict) and reason.get("type") == "abort":
        return None, f"the engine gave the request up: {reason.get('message', 'abort')}"
    if not isinstance(meta.get("completion_tokens"), int) or meta["completion_tokens"] < 1:
        return None, "the engine answered without a token"
    return str(answer.get("text", answer.get("output_ids", ""))), None


def listener_pids(port: int, processes: Iterable[ProcessIdentity]) -> Set[int]:
    """Those of ``processes`` that hold a listening TCP socket on ``port``: another program may have taken it."""
    inodes = _listening_inodes(port)
    owners: Set[int] = set()
    for identity in processes:
        with contextlib.suppress(OSError):
            for descriptor in Path(f"/proc/{identity.pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if str(descriptor.readlink()) in inodes:
                        owners.add(identity.pid)
    return owners


def _listening_inodes(port: int) -> Set[str]:
    found: Set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text("ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == "0A" and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    found.add(f"socket:[{fields[9]}]")
    return found


def can_connect(spec: ServiceSpec, timeout: float = 1.0) -> bool:
    try:
        socket.create_connection((probe_address(spec.listen), spec.port), timeout).close()
    except OSError:
        return False
    return True


def tokens_per_step(spec: ServiceSpec, api_key: Optional[str], timeout: float) -> Optional[float]:
    """The engine's own moving average of tokens per verify step; None if it has none or does not answer in time."""
    try:
        answer = request(spec, "GET", "/server_info", None, api_key, timeout)
        value = answer["internal_states"][0]["avg_spec_accept_length"]
    except (OSError, ValueError, KeyError, IndexError, TypeError, http.client.HTTPException):
        return None
    return float(value) if isinstance(value, (int, float)) else None
