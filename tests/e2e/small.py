"""A profile of two tiny wheels: provisioned in a second, for everything that does not need the engine."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from e2e.base_venv import make_plain_venv
from e2e.fixtures import PAIR
from e2e.program import Program
from profiles.small_wheels import sha256, wheel

PROFILE = """\
name: small
engine: sglang
engine_version: {version}
abi_tag: cpu
gpu: false
requires_python: ">=3.9"
machine: [x86_64, aarch64]
lock: small.lock
"""
HOST = """\
hosts:
  box:
    connection: local
    root: {root}
    base: {base}
    profile: small
    source: {{wheelhouse: wheels}}
    model: {pair}/target
    draft: {pair}/draft
    budget: 31
    ports: 18020-18029
    launch_timeout: 60
"""


@dataclass(frozen=True)
class Small:
    """A folder with an inventory for ``box``, the profile ``small``, its wheels, the playbook ``quick`` and a base."""

    folder: Path
    base: Path

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def wheels(self) -> Path:
        return self.folder / "wheels"

    def program(self, *changes: tuple[str, str], prefix: tuple[str, ...] = (), **environment: str) -> Program:
        """With an inventory in which the text of each change's first part is replaced by its second."""
        text = HOST.format(root=self.root, base=self.base, pair=PAIR)
        for old, new in changes:
            assert old in text, old
            text = text.replace(old, new)
        inventory = self.folder / "hosts.yaml"
        inventory.write_text(text, "utf-8")
        return Program(inventory, environment, prefix)


def make_small(folder: Path, version: str = "0.5.11") -> Small:
    """Everything that ``Small`` says, below ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    small = Small(folder, make_plain_venv(folder / "base"))
    wheels = [wheel(small.wheels, "sglang", version), wheel(small.wheels, "torch", "2.11.0")]
    (folder / "overlays").mkdir()
    (folder / "overlays" / "small.yaml").write_text(PROFILE.format(version=version), "utf-8")
    lines = [f"{path.name.split('-')[0]}=={path.name.split('-')[1]} --hash=sha256:{sha256(path)}\n" for path in wheels]
    (folder / "overlays" / "small.lock").write_text("".join(lines), "utf-8")
    (folder / "quick.yaml").write_text("name: quick\nsteps: [clone, overlay, activate]\n", "utf-8")
    return small


def unmount(folder: Path) -> None:
    subprocess.run(["umount", str(folder)], check=True)
