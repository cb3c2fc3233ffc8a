"""`provision` of a tiny profile, through the real operations: what is said at its end."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cli_support import command, run
from e2e.small import HOST, Small, make_small


@pytest.fixture
def small(tmp_path: Path, agent_here: object) -> Small:
    made = make_small(tmp_path / "small")
    (made.folder / "hosts.yaml").write_text(HOST.format(root=made.root, base=made.base, pair="/pair"), "utf-8")
    (made.folder / "build.yaml").write_text("name: build\nsteps: [clone, overlay]\n", "utf-8")
    return made


def test_a_playbook_that_does_not_activate_says_so(small: Small) -> None:
    hosts = str(small.folder / "hosts.yaml")
    ran = run("provision", "box", "--playbook", "build", "-i", hosts)
    (release,) = (path.name for path in (small.root / "releases").iterdir())
    built = f"{release} is built, not activated; `ddtree-deploy rollback box --to {release}` makes it current"
    assert (ran.code, ran.out.splitlines()[-1]) == (0, f"box: {built}")
    for word in ("plan", "provision"):
        again = run(word, "box", "--playbook", "build", "-i", hosts)
        assert (again.code, again.out.splitlines()[-1]) == (0, f"nothing to do: {built}")
    assert not (small.root / "current").is_symlink()

    assert run("rollback", "box", "--to", release, "-i", hosts).code == 0
    again = run("provision", "box", "--playbook", "build", "-i", hosts)
    assert again.out.splitlines()[-1] == f"nothing to do: {release} is current on box"

    ran = run("provision", "box", "--playbook", "quick", "-i", hosts)
    last = ran.out.splitlines()[-1]
    assert last.startswith("box: small-") and last.endswith(f" is current; before it was {release}")
    other = run("plan", "box", "--playbook", "build", "-i", hosts)
    assert "it stays current" in other.out


def test_a_plan_that_cannot_be_shown_is_not_executed(small: Small) -> None:
    inventory = ["-i", str(small.folder / "hosts.yaml")]
    words = command("provision", "box", "--playbook", "quick", *inventory)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 5
    assert "error: output-not-written\n" in done.stderr and "hint: Nothing was done" in done.stderr
    assert not small.root.exists()


def test_a_lock_and_a_profile_may_write_versions_and_names_otherwise(small: Small) -> None:
    lock, profile = (small.folder / "overlays" / name for name in ("small.lock", "small.yaml"))
    lock.write_text(lock.read_text("utf-8").replace("torch==2.11.0", "Torch==2.11"), "utf-8")
    text = profile.read_text("utf-8").replace("engine: sglang", "engine: SGLang").replace("0.5.11", "0.5.11.0")
    profile.write_text(text, "utf-8")
    words = ["box", "--playbook", "quick", "-i", str(small.folder / "hosts.yaml")]
    ran = run("provision", *words)
    assert ran.code == 0, ran.err
    again = run("plan", *words)
    assert again.code == 0 and again.out.splitlines()[-1].startswith("nothing to do: ")
