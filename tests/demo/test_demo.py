import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

PROJECT = Path(__file__).resolve().parents[2]


def load():
    spec = importlib.util.spec_from_file_location("demo_run", PROJECT / "demo" / "run.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["demo_run"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def demo(tmp_path):
    module = load()
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115, PTH123
    return module, module.Demo(console, tmp_path)


def answers(module, texts, steps):
    return [module.Answer(text, 20, steps, 1.0) for text in texts]


def test_the_same_text_in_fewer_steps_is_good(demo):
    module, run = demo
    assert run.compare(answers(module, "abc", 19), answers(module, "abc", 5))
    shown = run.console.export_text()
    assert re.search(r"all\s+│ yes\s+│ 60\s+│ 57\s+│ 15\s+│ 4\.00\s+│ 74%", shown)


@pytest.mark.parametrize(("texts", "steps"), [("abX", 5), ("abc", 19)])
def test_another_text_or_no_step_saved_is_bad(demo, texts, steps):
    module, run = demo
    assert not run.compare(answers(module, "abc", 19), answers(module, texts, steps))
    assert ("NO" in run.console.export_text()) == (texts != "abc")


def test_a_command_that_fails_ends_the_demo(demo):
    module, run = demo
    with pytest.raises(module.Failed, match="exit code 3"):
        run.command("plan", "no-such-host", quiet=True)


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_whole_demo(tmp_path, request):
    """What a newcomer runs with ``make demo``."""
    request.addfinalizer(lambda: shutil.rmtree(tmp_path / "demo", ignore_errors=True))  # 8 GB
    program = [sys.executable, str(PROJECT / "demo" / "run.py"), str(tmp_path / "demo")]
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "The same text, in fewer steps." in done.stdout
    total = re.search(r"all\s+│ yes\s+│ 384\s+│ 381\s+│ (\d+)\s+│", done.stdout)
    assert total, done.stdout[-3000:]
    assert 384 / int(total[1]) > 3.5  # a causal instead of an ancestor mask falls below 3
    status = [str(Path(sys.executable).with_name("ddtree-deploy")), "--inventory", f"{tmp_path}/demo/inventory.yaml"]
    left = subprocess.run([*status, "status", "localhost", "--json"], capture_output=True, text=True, check=False)
    assert '"state": "ready"' not in left.stdout
