"""A blown-up pair computes what the small one does: logits of the target, and hidden states of the draft."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from engine.support import PROJECT, cpu_env, engine_python

# The draft's own class needs the engine's distributed state; its layers are those of a Qwen3 without embeddings.
CHECK = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

small, big = map(Path, sys.argv[1:])
ids = torch.tensor([json.loads(Path(sys.argv[0]).with_name("prompt.json").read_text())])


def target(folder):
    return Qwen3ForCausalLM.from_pretrained(folder / "target", dtype=torch.float32)(ids).logits


a, b = target(small), target(big)
print("target", (a - b[..., : a.shape[-1]]).abs().max().item(), a.abs().max().item())
print("added", b.shape[-1], b[..., a.shape[-1] :].max().item())


def draft(folder, features):
    folder = folder / "draft"
    config = Qwen3Config.from_dict(json.loads((folder / "config.json").read_text()))
    weights = {k: v for f in folder.glob("*.safetensors") for k, v in load_file(f).items()}
    model = Qwen3Model(config).float()
    model.load_state_dict({k: v for k, v in weights.items() if k.startswith(("layers.", "norm."))}, strict=False)
    hidden = features @ weights["fc.weight"].float().T
    scale = weights["hidden_norm.weight"].float()
    hidden = hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + config.rms_norm_eps) * scale
    return model(inputs_embeds=hidden).last_hidden_state


torch.manual_seed(0)
h = json.loads((small / "draft" / "config.json").read_text())["hidden_size"]
H = json.loads((big / "draft" / "config.json").read_text())["hidden_size"]
count = load_file(small / "draft" / "model.safetensors")["fc.weight"].shape[1] // h
features = torch.randn(1, 12, count, h)
wide = torch.zeros(1, 12, count, H)
wide[..., :h] = features
a, b = draft(small, features.flatten(2)), draft(big, wide.flatten(2))
print("draft", (a - b[..., :h]).abs().max().item(), a.abs().max().item())
print("behind", b[..., h:].abs().max().item())
"""


@pytest.mark.e2e
@pytest.mark.engine
def test_the_function_stays(tmp_path: Path):
    python, small, big = engine_python(), PROJECT / "pairs" / "nano", tmp_path / "big"
    shape = "--hidden 1024 --intermediate 1536 --heads 12 --kv-heads 3 --layers 7 --draft-layers 3 --vocabulary 5000"
    program = str(PROJECT / "benchmarks" / "inflate_pair.py")
    subprocess.run([python, program, small, big, *shape.split()], check=True, env=cpu_env(tmp_path), timeout=100)
    (tmp_path / "check.py").write_text(CHECK)
    (tmp_path / "prompt.json").write_text("[5, 99, 1003, 7, 2048, 31, 8, 640, 12, 77, 301, 4000]")
    done = subprocess.run(
        [python, tmp_path / "check.py", small, big],
        env=cpu_env(tmp_path), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = {words[0]: [float(x) for x in words[1:]] for words in map(str.split, done.stdout.splitlines())}
    # 1024 is 4 times the hidden size, so norms are halved without rounding.
    for part in ("target", "draft"):
        difference, largest = rows[part]
        assert largest > 1 and difference < 1e-3 * largest, rows
    assert rows["behind"] == [0.0]
    vocabulary, best = rows["added"]
    assert vocabulary == 5000 and best < -100, "they take no probability"


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.parametrize(
    ("option", "message"),
    [("--hidden 128", "smaller than the model"), ("--vocabulary 4000", "more than 4000 tokens")],
)
def test_a_smaller_shape_is_refused(tmp_path: Path, option: str, message: str):
    program = str(PROJECT / "benchmarks" / "inflate_pair.py")
    done = subprocess.run(
        [engine_python(), program, PROJECT / "pairs" / "nano", tmp_path / "big", *option.split()],
        env=cpu_env(tmp_path), capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 1 and message in done.stderr
