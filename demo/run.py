"""The main job on this machine, with a small pair of models and no GPU: plan, provision, verify, launch, compare, stop.

Every step is a command that you can run yourself; the demo prints it first. Work folder: ``.demo/`` in the project, or
the one given as argument. Exit code 0 only if DDTree's answers are those of plain decoding, in fewer steps.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

PROJECT = Path(__file__).resolve().parent.parent
PAIR = PROJECT / "pairs" / "nano"
HOST = "localhost"
BUDGET = 31  # nodes of the draft tree verified per step
MAX_TOKENS = 128
BASE_PACKAGES = ["packaging==23.2", "iniconfig==2.0.0"]  # one that the overlay replaces, one that stays
BEGIN = "<|endoftext|>"  # every document that the model was trained on begins with it

INVENTORY = """# Written by 'make demo'. In float32 answers can be compared to the letter: rounding flips no token.
hosts:
  {host}:
    connection: local
    profile: sglang-0.5.11-cpu
    root: {work}/root
    base: {work}/base
    model: {pair}/target
    draft: {pair}/draft
    engine_arguments:
      dtype: float32
"""


@dataclass(frozen=True)
class Answer:
    """One completion; ``steps`` are the target's forward passes after the prompt's, which gives the first token."""

    text: str
    tokens: int
    steps: int
    seconds: float


class Failed(Exception):
    """The demo cannot go on; the message says why."""


class Demo:
    def __init__(self, console: Console, work: Path) -> None:
        self.console = console
        self.work = work
        self.inventory = work / "inventory.yaml"
        self.program = Path(sys.executable).with_name("ddtree-deploy")
        self.prompts: list[dict[str, str]] = json.loads((PROJECT / "demo" / "prompts.json").read_text("utf-8"))

    def run(self) -> bool:
        self.prepare()
        self.title("Plan", "what would change, before anything does")
        self.command("plan", HOST, allowed=(0, 2))
        self.title("Provision", "clone the base, overlay the profile, patch, audit, smoke test, activate")
        self.command("provision", HOST)
        self.title("Verify", "in the release, with the environment that the service will have")
        self.command("verify", HOST)
        self.command("stop", HOST, quiet=True)  # of an earlier demo that was interrupted
        self.title("Launch without drafts", "plain decoding, to compare with")
        plain = self.serve("--algorithm", "none")
        self.title(f"Launch with DDTree, {BUDGET} nodes a step", "the same model, a draft beside it")
        tree = self.serve("--budget", str(BUDGET))
        return self.compare(plain, tree)

    def prepare(self) -> None:
        """The base venv (what a host has before us) and the inventory."""
        base = self.work / "base"
        self.title("A host", f"this machine; its base venv is a small one, {self.shown(base)}")
        self.work.mkdir(parents=True, exist_ok=True)
        inventory = INVENTORY.format(host=HOST, work=self.work, pair=PAIR)
        self.inventory.write_text(inventory, "utf-8")
        python, ready = base / "bin" / "python", base / ".ready"
        if not ready.exists():
            maker = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
            self.shell([str(maker), "-m", "venv", "--clear", str(base)])
            self.shell([str(python), "-m", "pip", "install", "--quiet", *BASE_PACKAGES])
            ready.touch()
        self.console.print(Text(inventory.rstrip(), style="dim"))

    def serve(self, *arguments: str) -> list[Answer]:
        """Launch, ask every prompt, stop; the service is stopped whatever happens."""
        try:
            self.command("launch", HOST, *arguments)
            status = json.loads(self.command("status", HOST, "--json", quiet=True))
            (service,) = [s for s in status["hosts"][0]["services"] if s["state"] == "ready"]
            with self.console.status("three completions …"):
                answers = [complete(int(service["port"]), prompt["text"]) for prompt in self.prompts]
            tokens, seconds = sum(a.tokens for a in answers), sum(a.seconds for a in answers)
            self.console.print(f"{len(answers)} completions, {tokens} tokens in {seconds:.1f} s")
            return answers
        finally:
            self.command("stop", HOST)

    def compare(self, plain: list[Answer], tree: list[Answer]) -> bool:
        self.title("The answers", "prompt dim, completion as both wrote it")
        good = True
        table = Table("prompt", "same text", "tokens", "plain steps", "verify steps", "tokens per step", "steps saved")
        for prompt, one, other in zip(self.prompts, plain, tree, strict=True):
            same = one.text == other.text and one.tokens == other.tokens
            good = good and same and other.steps < one.steps
            body = Text.assemble((prompt["text"], "dim"), (other.text.rstrip(), "green" if same else "red"))
            parts = [body] if same else [body, Rule("plain decoding", style="red"), Text(one.text)]
            self.console.print(Panel(Group(*parts), title=prompt["name"], title_align="left"))
            table.add_row(prompt["name"], *row(one, other, same))
        total = table_total(plain, tree)
        same_all = all(one.text == other.text for one, other in zip(plain, tree, strict=True))
        table.add_section()
        table.add_row("all", *row(*total, same_all), style="bold")
        self.console.print(table)
        return good

    def shown(self, path: Path) -> str:
        """``path`` as one would type it in the project's folder, where the commands run."""
        return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else str(path)

    def title(self, text: str, subtitle: str) -> None:
        self.console.print()
        self.console.rule(Text.assemble((text, "bold cyan"), (f"  {subtitle}", "dim")), align="left")

    def command(self, *arguments: str, allowed: tuple[int, ...] = (0,), quiet: bool = False) -> str:
        """Run ``ddtree-deploy`` with the demo's inventory; its output is shown, or with ``quiet`` returned."""
        shown = ["ddtree-deploy", "--inventory", self.shown(self.inventory), *arguments]
        return self.shell([str(self.program), *shown[1:]], shown, allowed, quiet)

    def shell(
        self, command: list[str], shown: list[str] | None = None, allowed: tuple[int, ...] = (0,), quiet: bool = False
    ) -> str:
        if not quiet:
            self.console.print(Text.assemble(("$ ", "bold green"), (" ".join(shown or command), "bold")))
        began = time.monotonic()
        done = subprocess.run(command, cwd=PROJECT, stdout=subprocess.PIPE if quiet else None, text=True, check=False)
        if done.returncode not in allowed:
            raise Failed(f"{' '.join(shown or command)} ended with exit code {done.returncode}")
        if not quiet:
            self.console.print(f"({time.monotonic() - began:.0f} s)", style="dim")
        return done.stdout or ""


def complete(port: int, prompt: str) -> Answer:
    """The greedy completion of ``prompt``, from the engine's own endpoint, which also counts verify steps."""
    body = {"text": BEGIN + prompt, "sampling_params": {"temperature": 0.0, "max_new_tokens": MAX_TOKENS}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    began = time.monotonic()
    with urllib.request.urlopen(request, timeout=300) as response:
        answer: dict[str, Any] = json.load(response)
    meta = answer["meta_info"]
    tokens = int(meta["completion_tokens"])
    steps = int(meta.get("spec_verify_ct") or tokens - 1)
    return Answer(answer["text"], tokens, steps, time.monotonic() - began)


def row(plain: Answer, tree: Answer, same: bool) -> list[str]:
    saved = 1 - tree.steps / plain.steps
    counts = [str(tree.tokens), str(plain.steps), str(tree.steps)]
    return ["yes" if same else "NO", *counts, f"{tree.tokens / tree.steps:.2f}", f"{saved:.0%}"]


def table_total(plain: list[Answer], tree: list[Answer]) -> tuple[Answer, Answer]:
    """Both lists summed up; the texts are left out."""

    def add(answers: list[Answer]) -> Answer:
        return Answer(
            "", sum(a.tokens for a in answers), sum(a.steps for a in answers), sum(a.seconds for a in answers)
        )

    return add(plain), add(tree)


def main(arguments: list[str]) -> int:
    work = Path(arguments[0]).resolve() if arguments else PROJECT / ".demo"
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)
    began = time.monotonic()
    try:
        good = Demo(console, work).run()
    except Failed as problem:
        console.print(f"The demo failed: {problem}", style="bold red")
        return 1
    except KeyboardInterrupt:
        console.print("interrupted", style="bold red")
        return 130
    verdict = "The same text, in fewer steps." if good else "DDTree's answers differ, or no step was saved."
    console.print(f"\n{verdict}  ({time.monotonic() - began:.0f} s in all)", style="bold green" if good else "bold red")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
