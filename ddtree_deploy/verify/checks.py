"""The smoke checks of a release, in the environment that a service would have: ``verify.run`` of the agent."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ddtree_deploy import codec
from ddtree_deploy.agent.protocol import Progress, ProgressSink, silent
from ddtree_deploy.errors import InputError
from ddtree_deploy.release.layout import Layout
from ddtree_deploy.serve.environment import release_python, release_record, resolve_release, service_environment
from ddtree_deploy.verify import on_gpu
from ddtree_deploy.verify.model import CheckResult, VerifyReport
from ddtree_deploy.verify.noise import classify, load_rules
from ddtree_deploy.verify.runner import Outcome, run_probe

TITLES = {
    "torch": "torch and its CUDA",
    "torchvision": "torchvision and its operators",
    "algorithm": "DDTREE is known to the engine",
    "modules": "dflash_worker and ddtree_utils",
    "kernel": "sgl_kernel loads",
    "server": "the server's modules import",
}
LIMIT_S = 180.0  # for one check; a cold import of the engine from a slow disk takes a minute

_HINTS_BY_TEXT: List[Tuple[str, str]] = [
    (r"undefined symbol", "built for another torch: `ddtree-deploy abi` names the symbol's owner; provision again"),
    (r"libcuda\.so\.1", "the host has no NVIDIA driver library: install the driver, or use a CPU profile"),
    (r"libcudart|libcublas|libnvrtc|libcudnn", "a CUDA library of this version is missing: run verify --static"),
    (r"operator torchvision::|operator .* does not exist", "torchvision and torch do not belong together"),
    (r"no kernel image is available", "this build has no code for this GPU's architecture: use another profile"),
    (
        r"driver version is insufficient|driver .* is too old|forward compatibility",
        "the driver is too old for this CUDA: update the driver",
    ),
    (
        r"_find_cuda_home|assert cuda_home",
        "deep_gemm wants a CUDA toolkit: install one, or set CUDA_HOME in the host's environment",
    ),
    (r"GLIBC_|GLIBCXX_", "built for a newer system library than this host has"),
]
_HINTS_BY_CAUSE = {
    "python-missing": "the release's base interpreter was removed or moved: provision again",
    "missing-module": "the release lacks it: provision again; a package of your own belongs in the base venv",
    "import-error": "the traceback names the package; `ddtree-deploy verify --static` looks at how it was built",
    "wrong-value": "its parts do not belong together: `ddtree-deploy verify --static` looks for the mix",
    "outside-release": "PYTHONPATH, an editable install or a .pth file leads out of the release",
    "engine-failed": "the end of the engine's log says why; a service of this release would fail in the same way",
    "check-error": "the check itself could not be run; the traceback says where",
    "crash": "a crash on import is nearly always a mix of builds: `ddtree-deploy verify --static` looks for it",
    "hang": "the output shows where it waits: often the driver, or a network file system",
}
_HINT_GPU = (
    "do not serve DDTREE with this release on this GPU (`launch --algorithm none` is plain decoding); "
    "tell us the GPU, the driver and this report"
)
_HINT_ALGORITHM = "the patch set is not applied to this release: provision with a profile that has one"


def run_checks(
    release: Path,
    environment: Optional[Mapping[str, str]] = None,
    progress: ProgressSink = silent,
    limit_s: float = LIMIT_S,
) -> List[CheckResult]:
    """The smoke checks of the release at ``release`` (also one still being built), one result each, in order.

    ``environment`` goes over the profile's variables, as it does for a service. ``limit_s``: seconds for one check.
    What a release does never raises: a crash, a hang, a missing or foreign module are results. A folder that is missing
    raises InputError ``release-missing``.
    """
    try:
        python = release_python(release)
    except InputError as error:
        if error.id == "release-missing":
            raise
        return [
            CheckResult(check, title, "failed", error.message, cause="python-missing", hint=error.hint)
            for check, title in TITLES.items()
        ]
    outcomes = run_probe(python, release, service_environment(release, environment), list(TITLES), limit_s, progress)
    _judge_cuda(outcomes[0], str(release_record(release).get("abi_tag") or ""))
    facts = {"torch_cuda": torch_cuda(release), "gpus": _gpus(outcomes[0])}
    progress(Progress("verify", "done", done_files=len(outcomes), total_files=len(outcomes), finished=True))
    return _results(outcomes, TITLES, facts)


def _gpus(torch: Outcome) -> Optional[str]:
    """How many GPUs torch saw, for the rules about output."""
    gpus = torch.data.get("gpus")
    return None if gpus is None else str(gpus)


def _results(
    outcomes: Sequence[Outcome], titles: Mapping[str, str], facts: Mapping[str, Optional[str]]
) -> List[CheckResult]:
    rules = load_rules()
    results = []
    for outcome in outcomes:
        output = classify(outcome.output, facts, rules)
        warned = any(line.kind == "warning" for line in output)
        results.append(
            CheckResult(
                id=outcome.check,
                title=titles[outcome.check],
                status="warning" if warned and outcome.status == "ok" else outcome.status,
                summary=outcome.summary,
                seconds=outcome.seconds,
                cause=outcome.cause,
                hint=_hint(outcome),
                detail=outcome.detail,
                output=output,
                data=outcome.data,
            )
        )
    return results


def gpu_results(
    release: Path, before: Sequence[CheckResult], params: Mapping[str, Any], progress: ProgressSink
) -> List[CheckResult]:
    """The checks on a GPU of this host; all skipped where one of those ``before`` has failed."""
    failed = [check.id for check in before if check.status == "failed"]
    if failed:
        said = f"{', '.join(failed)} failed"
        return [CheckResult(check, title, "skipped", said) for check, title in on_gpu.TITLES.items()]
    outcomes = on_gpu.run_gpu_checks(
        release,
        params["pair"],
        params["gpu_index"],
        params.get("environment"),
        params.get("engine_arguments") or [],
        progress,
    )
    progress(Progress("verify", "done", done_files=len(outcomes), total_files=len(outcomes), finished=True))
    return _results(outcomes, on_gpu.TITLES, {"torch_cuda": torch_cuda(release), "gpus": "1"})


def op_verify(params: Dict[str, Any], progress: ProgressSink) -> Dict[str, Any]:
    """Verify a release. Result: ``VerifyReport`` as a dict.

    params: ``{"root", "release": id or path, None for the current one, "environment": {name: text}, "static": bool,
    "gpu": bool}``, with ``gpu`` also ``gpu_index`` (of ``verify.gpu``), ``pair`` ({name: path on this host}) and
    ``engine_arguments``. ``static`` reads files only (audit and recorded hashes), without it the smoke checks run, and
    with ``gpu`` those of ``verify/gpu`` after them. Raises InputError ``no-current-release``, ``release-missing``.
    """
    began = time.monotonic()
    layout = Layout(params.get("root") or "/opt/ddtree")
    release = resolve_release(layout.root, params.get("release"))
    if params.get("static"):
        from ddtree_deploy.verify.static import static_checks  # the audit is not needed otherwise

        checks = static_checks(release, progress, layout.root / "cache" / "abi")
    else:
        checks = run_checks(release, params.get("environment"), progress)
        if params.get("gpu"):
            checks += gpu_results(release, checks, params, progress)
    failed = any(check.status == "failed" for check in checks)
    report = VerifyReport(release.name, str(release), not failed, round(time.monotonic() - began, 3), checks)
    return codec.to_dict(report)


def _judge_cuda(torch: Outcome, tag: str) -> None:
    """A torch that loads but was built for another CUDA than the release's profile has failed."""
    built = "cu" + str(torch.data.get("cuda") or "").replace(".", "")
    if torch.status != "failed" and tag.startswith("cu") and built != tag:
        found = f"CUDA {torch.data['cuda']}" if torch.data.get("cuda") else "no CUDA"
        torch.status, torch.cause = "failed", "wrong-value"
        torch.summary = f"torch {torch.data.get('version')} was built for {found}, the profile for {tag}"


def torch_cuda(release: Path) -> Optional[str]:
    """The CUDA version that the release's torch was built for, from its files; None without torch or CUDA."""
    for path in release.glob("lib/python3*/site-packages/torch/version.py"):
        match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", path.read_text("utf-8", "replace"), re.MULTILINE)
        if match:
            return match.group(1)
    return None


def _hint(outcome: Outcome) -> Optional[str]:
    if outcome.status != "failed":
        return None
    text = f"{outcome.summary}\n{outcome.detail or ''}"
    for pattern, hint in _HINTS_BY_TEXT:
        if re.search(pattern, text):
            return hint
    unpatched = outcome.cause == "wrong-value" or "ddtree_utils" in outcome.summary
    if outcome.check in ("algorithm", "modules") and unpatched:
        return _HINT_ALGORITHM
    if outcome.check in on_gpu.TITLES and outcome.cause == "wrong-value":
        return _HINT_GPU
    return _HINTS_BY_CAUSE.get(outcome.cause or "")
