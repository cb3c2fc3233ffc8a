"""Two hosts on loopback, each with an sshd, a HOME and folders of its own, and an inventory of both."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import venvs
from e2e.program import Program
from hosts.sshd import Sshd
from processes import largest

PROFILE = """\
name: small
engine: engine
engine_version: "1.0"
abi_tag: cpu
gpu: false
requires_python: ">=3.9"
machine: [x86_64, aarch64]
lock: small.lock
"""
PLAYBOOK = "name: short\nsteps: [clone, overlay, activate]\n"
HOST = """\
  {name}:
    connection:
      {{address: 127.0.0.1, port: {port}, user: {user}, identity: {identity}, python: {python}, connect_timeout: 30}}
    root: {root}
    base: {base}
    profile: small
"""
SLOWLY = """
import os, time
while data := os.read(0, 1 << 16):
    time.sleep(0.001)
    os.write(1, data)
"""


@dataclass
class Hosts:
    """``target`` and ``donor`` are servers; ``program`` is the command line with an inventory of both."""

    target: Sshd
    donor: Sshd
    program: Program
    folder: Path
    bin: Path  # in front of PATH in the target's sessions

    @property
    def root(self) -> Path:
        return self.folder / "target-root"

    @property
    def current(self) -> Path:
        return (self.root / "current").resolve()

    def arriving(self) -> int:
        """Bytes of the largest file that has come in part."""
        return largest((self.root / "cache" / "donor").glob("*.partial"))

    def allow_directly(self, host_key: bool = True, slowly: bool = False) -> None:
        """Let the target log in to the donor by itself: a key of its own, and the donor's host key. ``slowly``: at most
        64 MiB a second arrive, so that every machine sees a big file come in part."""
        home = self.target.home
        known = home / "known_hosts"
        known.write_text(self.donor.known_hosts_lines() if host_key else "")
        config = home / "ssh_config"
        config.write_text(f"Host *\n  IdentityFile {self.donor.identity}\n  UserKnownHostsFile {known}\n")
        # OpenSSH looks for its files in the home folder of the passwd entry, which both hosts here share.
        script = self.bin / "ssh"
        command = f'/usr/bin/ssh -F "{config}" "$@"'
        command = f"{command} | {sys.executable} -c '{SLOWLY}'" if slowly else f"exec {command}"
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)


def make_hosts(folder: Path, packages: list[tuple[str, str, Path]], base: Path, donor: Path) -> Hosts:
    """``packages``: name, version, wheel: what the profile locks."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    refused = bin_folder / "ssh"  # without keys nor known hosts of its own the target gets nowhere
    refused.write_text(
        "#!/bin/sh\nexec /usr/bin/ssh -F /dev/null -o IdentityFile=none -o IdentityAgent=none"
        ' -o UserKnownHostsFile=/dev/null -o GlobalKnownHostsFile=/dev/null "$@"\n'
    )
    refused.chmod(0o755)
    path = f"{bin_folder}:/usr/local/bin:/usr/bin:/bin"
    target = Sshd(folder / "target", environment={"PATH": path})
    giver = Sshd(folder / "giver")
    entries = []
    for name, server, venv in (("target", target, base), ("giver", giver, donor)):
        values = {"port": server.port, "user": server.user, "identity": server.identity, "python": sys.executable}
        entries.append(HOST.format(name=name, root=folder / f"{name}-root", base=venv, **values))
    values = {"port": target.port, "user": target.user, "identity": target.identity, "python": sys.executable}
    packed = HOST.format(name="packed", root=folder / "packed-root", base=base, **values)
    entries.append(f"{packed}    source: {{donor: giver, compress: true}}\n")
    here = "  here: {{connection: local, root: {root}, base: {base}, profile: small}}\n"
    entries.append(here.format(root=folder / "here-root", base=donor))
    entries.append(here.format(root=folder / "local-root", base=base).replace("here:", "local-target:", 1))
    (folder / "hosts.yaml").write_text("hosts:\n" + "".join(entries))
    (folder / "small.yaml").write_text(PROFILE)
    (folder / "short.yaml").write_text(PLAYBOOK)
    lock = [f"{name}=={version} --hash=sha256:{venvs.sha256(wheel)}\n" for name, version, wheel in packages]
    (folder / "small.lock").write_text("".join(lock))
    known = folder / "known_hosts"
    known.write_text(target.known_hosts_lines() + giver.known_hosts_lines())
    home = folder / "home"
    home.mkdir()
    environment = {"HOME": str(home), "XDG_CACHE_HOME": str(home / ".cache"), "DDTREE_KNOWN_HOSTS": str(known)}
    program = Program(folder / "hosts.yaml", environment)
    return Hosts(target, giver, program, folder, bin_folder)
