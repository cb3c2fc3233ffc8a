"""How long the audit of an environment takes, cold and warm, beside ``ldd -r`` over the same shared objects.

    python benchmarks/abi_audit.py /opt/venv [--drop-caches] [--capability 9.0] [--wheel FILE.whl]

Each audit runs in a process of its own, as on a host. ``--drop-caches`` (root) empties the page cache before the cold
run; ``--capability`` audits for a GPU of that compute capability, which reads the architectures of all GPU code, also
where there is no such GPU; ``--wheel`` also times ``auditwheel show`` on a wheel, where auditwheel is on the PATH.
``ldd -r`` runs the dynamic loader on every file, in a fresh process each, and knows neither torch's preloads nor
anything but linking.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

_AUDIT = """
import json, resource, sys, time
from dataclasses import replace
start = time.monotonic()
from ddtree_deploy.abi.audit import audit_environment
from ddtree_deploy.abi.host import probe_host
host = replace(probe_host(), compute_capabilities=sys.argv[3:]) if sys.argv[3:] else None
report = audit_environment(sys.argv[1], host, cache_dir=sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
cpu = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
print(json.dumps({"seconds": time.monotonic() - start, "cpu": cpu, "mib": peak, "counts": report.counts,
                  "files": report.files, "objects": report.shared_objects, "packages": report.distributions}))
"""


def audit(venv: str, cache: str, capability: str | None) -> dict[str, object]:
    command = [sys.executable, "-c", _AUDIT, venv, cache, *([capability] if capability else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def shared_objects(venv: str) -> list[Path]:
    return [path for path in Path(venv, "lib").rglob("*.so*") if path.is_file() and not path.is_symlink()]


def ldd(paths: list[Path]) -> tuple[float, int]:
    """(seconds, files with something not found) for ``ldd -r`` on each file."""
    start, broken = time.monotonic(), 0
    for path in paths:
        done = subprocess.run(["ldd", "-r", str(path)], capture_output=True, text=True, check=False)
        broken += "not found" in done.stdout or "undefined symbol" in done.stdout + done.stderr
    return time.monotonic() - start, broken


def drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv")
    parser.add_argument("--drop-caches", action="store_true")
    parser.add_argument("--capability", metavar="X.Y")
    parser.add_argument("--wheel")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold" if arguments.drop_caches else "first", "warm", "warm"):
            if name == "cold":
                drop_caches()
            found = audit(arguments.venv, cache, arguments.capability)
            print(
                f"abi, {name:5}  {found['seconds']:6.2f} s  {found['cpu']:6.2f} s CPU  {found['mib']:6.0f} MiB   "
                f"{found['files']} files, {found['objects']} shared objects, {found['packages']} packages, "
                f"{found['counts']}"
            )
    paths = shared_objects(arguments.venv)
    if arguments.drop_caches:
        drop_caches()
    seconds, broken = ldd(paths)
    print(f"ldd -r       {seconds:6.2f} s  {len(paths)} files, {broken} of them with something not found")
    if arguments.wheel and shutil.which("auditwheel"):
        start = time.monotonic()
        subprocess.run(["auditwheel", "show", arguments.wheel], capture_output=True, check=False)
        print(f"auditwheel   {time.monotonic() - start:6.2f} s  {Path(arguments.wheel).name}")


if __name__ == "__main__":
    main()
