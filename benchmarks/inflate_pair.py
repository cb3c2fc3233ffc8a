"""Blow a Qwen3-type pair up to a larger shape without changing what it computes.

    RELEASE/bin/python benchmarks/inflate_pair.py pairs/nano /tmp/big

writes `target` and `draft` in the shape of a 7B target and a 1B draft (the defaults below; the head size stays). The
small model's weights sit in a corner of the large ones, and whatever would add to it is zero: a target of realistic
cost that accepts exactly what the small one accepts.

- The residual stream carries the small model's values in its first entries and zeros behind them: outputs of
  attention and MLP (o_proj, down_proj) have zero rows there. Weights that only ever meet those zeros, or whose
  result is multiplied by zero, are random, since a GPU multiplies zeros faster than it multiplies numbers.
- RMSNorm divides by the root mean square, which zeros make smaller by sqrt(h / H): its weight makes up for that, and
  epsilon shrinks alike.
- Added layers have o_proj = down_proj = 0: they hand the stream on.
- Added tokens (`--vocabulary`) have logits below -100, so that they take no probability: the entry of the stream behind
  the small model's is a tiny constant, which only the last norm lets through, and which their rows weigh negatively.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple, Sequence

import torch
from safetensors import safe_open
from safetensors.torch import save_file

# The constant, as a share of the embedding's standard deviation: it must not move a norm. What it is multiplied with
# makes up for that, and for a stream that has grown on its way to the last norm.
CONSTANT, LAST_NORM, ADDED_ROW = 1e-3, 1e4, -1e5


class Shape(NamedTuple):
    """What a model is blown up to."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int | None = None  # None: the small model's


class Places:
    """Where the small model's entries sit in the large one, for each kind of dimension."""

    def __init__(self, config: dict[str, Any], shape: Shape):
        dim = config["head_dim"]
        heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        group, large_group = heads // kv_heads, shape.heads // shape.kv_heads
        if group > large_group or kv_heads > shape.kv_heads or config["hidden_size"] > shape.hidden:
            raise ValueError(f"{shape} is smaller than the model in some dimension")
        within = torch.arange(dim)
        # A query head stays in the group of its own KV head.
        head = torch.arange(heads)
        head = head // group * large_group + head % group
        self.hidden = torch.arange(config["hidden_size"])
        self.intermediate = torch.arange(config["intermediate_size"])
        self.queries = (head[:, None] * dim + within).flatten()
        self.keys = torch.arange(kv_heads * dim)


def put(small: torch.Tensor | None, large: torch.Tensor, rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """Write `small` into `large` at rows x columns; nothing for an added layer."""
    if small is not None:
        rows, columns = rows.to(large.device), columns.to(large.device)
        large[rows[:, None], columns] = small.to(large.device, large.dtype)
    return large


class Inflated:
    """Makes the tensors of a blown-up model, a layer at a time."""

    def __init__(self, small: Any, config: dict[str, Any], shape: Shape, device: str):
        self.small, self.config, self.shape, self.device = small, config, shape, device
        self.names = set(small.keys())
        self.places = Places(config, shape)
        self.norm_scale = math.sqrt(config["hidden_size"] / shape.hidden)
        self.generator = torch.Generator(device=device).manual_seed(0)

    def tensor(self, name: str) -> torch.Tensor | None:
        return self.small.get_tensor(name) if name in self.names else None

    def zeros(self, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=torch.bfloat16, device=self.device)

    def noise(self, *shape: int) -> torch.Tensor:
        return self.zeros(*shape).normal_(0, 0.02, generator=self.generator)

    def norm(self, name: str, constant: float = 0.0) -> torch.Tensor:
        """With added tokens, `constant` is the weight of the stream's constant entry."""
        weight = torch.full((self.shape.hidden,), self.norm_scale, device=self.device)
        if self.shape.vocabulary is not None:
            weight[len(self.places.hidden)] = constant
        small = self.tensor(name)
        if small is not None:
            weight[: small.shape[0]] = small.to(self.device).float() * self.norm_scale
        return weight.to(torch.bfloat16)

    def layer(self, prefix: str) -> dict[str, torch.Tensor]:
        shape, places, dim = self.shape, self.places, self.config["head_dim"]
        queries, keys = shape.heads * dim, shape.kv_heads * dim
        head_norm = torch.ones(dim, dtype=torch.bfloat16)
        made = {}
        for name, empty, rows, columns in (
            ("self_attn.q_proj", self.noise(queries, shape.hidden), places.queries, places.hidden),
            ("self_attn.k_proj", self.noise(keys, shape.hidden), places.keys, places.hidden),
            ("self_attn.v_proj", self.noise(keys, shape.hidden), places.keys, places.hidden),
            ("self_attn.o_proj", self.zeros(shape.hidden, queries), places.hidden, places.queries),
            ("mlp.gate_proj", self.noise(shape.intermediate, shape.hidden), places.intermediate, places.hidden),
            ("mlp.up_proj", self.noise(shape.intermediate, shape.hidden), places.intermediate, places.hidden),
            ("mlp.down_proj", self.zeros(shape.hidden, shape.intermediate), places.hidden, places.intermediate),
        ):
            key = f"{prefix}{name}.weight"
            made[key] = put(self.tensor(key), empty, rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            made[f"{prefix}{name}.weight"] = self.norm(f"{prefix}{name}.weight")
        for name in ("self_attn.q_norm", "self_attn.k_norm"):
            key = f"{prefix}{name}.weight"
            small = self.tensor(key)
            made[key] = head_norm.clone() if small is None else small
        return made

    def rest(self, is_target: bool) -> dict[str, torch.Tensor]:
        hidden, every = self.places.hidden, self.shape.hidden
        if is_target:
            embed = self.small.get_tensor("model.embed_tokens.weight")
            known, constant = embed.shape[0], len(hidden)
            large = self.zeros(self.shape.vocabulary or known, every)
            if self.shape.vocabulary is not None:
                large[:known, constant] = CONSTANT * embed.float().std()
                large[known:] = self.noise(large.shape[0] - known, every)
                large[known:, constant] = ADDED_ROW
            return {
                "model.embed_tokens.weight": put(embed, large, torch.arange(known), hidden),
                "model.norm.weight": self.norm("model.norm.weight", LAST_NORM),
            }
        fc = self.small.get_tensor("fc.weight")  # features of several target layers side by side -> hidden
        features = fc.shape[1] // len(hidden)
        columns = (torch.arange(features)[:, None] * every + hidden).flatten()
        return {
            "fc.weight": put(fc, self.zeros(every, features * every), hidden, columns),
            "norm.weight": self.norm("norm.weight", LAST_NORM),
            "hidden_norm.weight": self.norm("hidden_norm.weight"),
        }


def inflate(source: Path, out: Path, shape: Shape, *, is_target: bool, target_layers: int, device: str) -> int:
    """Write the blown-up model of one part; returns its number of parameters.

    Raises:
        ValueError: the shape is smaller than the model, or the model has biases or an LM head of its own.
    """
    config = json.loads((source / "config.json").read_text())
    vocabulary = shape.vocabulary or config["vocab_size"]
    if vocabulary < config["vocab_size"]:
        raise ValueError(f"{source} has more than {vocabulary} tokens")
    if config.get("attention_bias") or (is_target and not config.get("tie_word_embeddings")):
        raise ValueError(f"{source}: biases and an LM head of its own are not supported")
    if config["num_hidden_layers"] > shape.layers:
        raise ValueError(f"{source} has more than {shape.layers} layers")
    out.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            shutil.copyfile(path, out / path.name)
    index: dict[str, str] = {}
    total = 0
    with safe_open(source / "model.safetensors", "pt") as small:
        model = Inflated(small, config, shape, device)
        prefix = "model.layers" if is_target else "layers"
        for i in range(shape.layers + 1):
            tensors = model.layer(f"{prefix}.{i}.") if i < shape.layers else model.rest(is_target)
            name = f"model-{i + 1:05d}-of-{shape.layers + 1:05d}.safetensors"
            save_file({k: t.cpu().contiguous() for k, t in tensors.items()}, out / name, metadata={"format": "pt"})
            index.update(dict.fromkeys(tensors, name))
            total += sum(t.numel() for t in tensors.values())
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    config.update(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        rms_norm_eps=config["rms_norm_eps"] * config["hidden_size"] / shape.hidden,
        layer_types=["full_attention"] * shape.layers,
        max_window_layers=shape.layers,
        vocab_size=vocabulary,
    )
    if not is_target:
        config["num_target_layers"] = target_layers
    (out / "config.json").write_text(json.dumps(config, indent=1))
    return total


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder with target/ and draft/")
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--intermediate", type=int, default=12288)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--kv-heads", type=int, default=16)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--draft-layers", type=int, default=5)
    parser.add_argument("--vocabulary", type=int, help="tokens; default: the small pair's")
    options = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for part in ("target", "draft"):
        layers = options.layers if part == "target" else options.draft_layers
        shape = Shape(options.hidden, options.intermediate, layers, options.heads, options.kv_heads, options.vocabulary)
        count = inflate(
            options.source / part,
            options.out / part,
            shape,
            is_target=part == "target",
            target_layers=options.layers,
            device=device,
        )
        print(f"{part}: {count / 1e9:.2f} B parameters", flush=True)


if __name__ == "__main__":
    main()
