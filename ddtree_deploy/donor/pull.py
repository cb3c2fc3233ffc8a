"""Host to host: the target's agent starts the donor's over the system's ssh and reads its files. Agent-safe.

Only what ``ssh`` can do without asking anybody is tried: keys of the user on the target, and host keys that are known
there. A host that answers and is not the donor is not taken for it, and every file is checked anyway.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import tempfile
import threading
from typing import IO, Any, Dict, List

from ddtree_deploy.agent.protocol import ProgressSink
from ddtree_deploy.donor.model import Manifest, parse_manifest
from ddtree_deploy.donor.receive import receive
from ddtree_deploy.donor.records import HELLO, LAST, encode_json, next_record
from ddtree_deploy.donor.send import MARKER
from ddtree_deploy.donor.store import want
from ddtree_deploy.errors import StepError
from ddtree_deploy.release.hashes import HashCache
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.release.lock import Lock

CONNECT_TIMEOUT = 10  # seconds
_START_TIMEOUT = 40.0  # seconds until the donor's agent must have said its first word
_NOISE = 1 << 16  # bytes of a login shell's own output before it
_ROUNDS = 3


def op_pull(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Op ``donor.pull``. params: ``root``, ``base``, ``manifest``; ``route`` {address, port, user} to the donor's host;
    ``donor`` {python, archive, boot_id} of the agent there; ``compress``.

    Returns {staging, site, names, bytes: how many were sent}. Raises StepError ``donor-unreachable`` where the
    way is closed (nothing was sent), ``transfer-interrupted`` where it broke, and what ``donor.receive`` raises.
    """
    layout = Layout(str(params["root"]))
    manifest = parse_manifest(params["manifest"])
    sent = 0
    with Lock(layout.lock, "bring packages of a donor"):
        for _ in range(_ROUNDS):
            hashes = HashCache(str(layout.hashes))
            wanted = want(layout, str(params["base"]), manifest, hashes, progress)
            hashes.save()
            if wanted["ready"]:
                done = {"staging": wanted["digest"], "site": manifest.site, "names": manifest.names}
                return {**done, "bytes": sent}
            done = _fetch(layout, manifest, wanted, params, progress)
            sent += wanted["bytes"]
            if "again" not in done:
                return {**done, "bytes": sent}
    raise StepError("transfer-garbled", "files of the donor arrive otherwise than they are sent, again and again")


def ssh_command(route: Dict[str, Any], remote: List[str]) -> List[str]:
    """The argument vector of ssh; host keys are checked whatever the user's configuration says."""
    options = ["BatchMode=yes", "StrictHostKeyChecking=yes", f"ConnectTimeout={CONNECT_TIMEOUT}"]
    options += ["UpdateHostKeys=no", "ClearAllForwardings=yes", "ForwardAgent=no", "ForwardX11=no"]
    options += ["PermitLocalCommand=no", "ControlMaster=no", "ControlPath=none", "RequestTTY=no", "LogLevel=ERROR"]
    command = ["ssh", "-T", *(word for option in options for word in ("-o", option))]
    command += ["-p", str(route["port"])] if route.get("port") else []
    command += ["-l", str(route["user"])] if route.get("user") else []
    return [*command, "--", str(route["address"]), shlex.join(remote)]


def _fetch(
    layout: Layout, manifest: Manifest, wanted: Dict[str, Any], params: Dict[str, Any], progress: ProgressSink
) -> Dict[str, Any]:
    if not wanted["files"]:
        return receive(layout, wanted["digest"], _nothing(), progress)
    agent = params["donor"]
    command = ssh_command(
        params["route"],
        [str(agent["python"]), "-I", "-S", str(agent["archive"]), "donor-send"],
    )
    if shutil.which(command[0]) is None:
        raise _unreachable(params, "there is no ssh on the target")
    request = {"venv": manifest.venv, "files": wanted["files"], "compress": params.get("compress")}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=False
        )
        try:
            _start(process, request, params, errors)
            assert process.stdout is not None
            expected = (len(wanted["files"]), int(wanted["bytes"]))
            return receive(layout, wanted["digest"], process.stdout, progress, expected)
        finally:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):  # a request that ssh never took is flushed once more
                        stream.close()


def _start(
    process: subprocess.Popen[bytes], request: Dict[str, Any], params: Dict[str, Any], errors: IO[bytes]
) -> None:
    """Send the request and read up to the donor's greeting. Raises StepError ``donor-unreachable``."""
    assert process.stdin is not None and process.stdout is not None
    timer = threading.Timer(_START_TIMEOUT, process.kill)
    timer.start()
    try:
        try:
            process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # what ssh has to say about it comes below
        noise = 0
        while True:
            line = process.stdout.readline(_NOISE)
            noise += len(line)
            if line.endswith(MARKER):
                break
            if not line or noise > _NOISE:
                raise _unreachable(params, _last_words(process, errors))
        try:
            kind, payload = next_record(process.stdout)
        except (EOFError, StepError):
            raise _unreachable(params, _last_words(process, errors)) from None
        if kind != HELLO or json.loads(payload)["boot_id"] != params["donor"]["boot_id"]:
            raise _unreachable(params, "another machine answers at that address")
    finally:
        timer.cancel()


def _last_words(process: subprocess.Popen[bytes], errors: IO[bytes]) -> str:
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    errors.seek(0)
    lines = [line.strip() for line in errors.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else f"ssh ended with status {process.returncode}"


def _unreachable(params: Dict[str, Any], why: str) -> StepError:
    route = params["route"]
    place = f"{route.get('user') or ''}@{route['address']}".lstrip("@")
    return StepError("donor-unreachable", f"the target does not reach {place} by ssh: {why}", where=place)


def _nothing() -> Any:
    import io

    return io.BytesIO(encode_json(LAST, {"problem": None}))
