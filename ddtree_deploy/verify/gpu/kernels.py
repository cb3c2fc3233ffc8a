"""The tree kernels against torch on the CPU: building a tree from logits, walking it, attention over prefix and tree.

Runs in the release's Python; ``tests/gpu`` and ``verify --gpu`` share it. A difference raises AssertionError. On the
device ``cpu`` the kernels run in Triton's interpreter (TRITON_INTERPRET=1 before Triton is imported), for small shapes.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, List, Optional, Tuple

KINDS = ("smooth", "ties", "sharp")
SPLITS = (1, 3, 16)
BOUNDS = {"bfloat16": 1e-2, "float16": 2e-3, "float32": 1e-5}  # of the relative error of attention

# Requests, query tokens, query heads, KV heads, size of a head, tokens before the block.
Shape = Tuple[int, int, int, int, int, int]


def _torch() -> Any:
    return importlib.import_module("torch")


def _engine(name: str) -> Any:
    return importlib.import_module(f"sglang.srt.speculative.{name}")


def check_build_and_walk(device: str, kind: str, bs: int, num_depths: int, vocab: int, budget: int) -> int:
    """Trees and walks of draft logits that are ``smooth``, full of ``ties``, or ``sharp`` (q is exactly 1).

    Returns the longest path walked.
    """
    torch, utils, kernels = _torch(), _engine("ddtree_utils"), _engine("ddtree_kernels")
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(bs * num_depths, vocab, generator=generator) * 3
    logits = {"ties": logits.round(), "sharp": logits * 200}.get(kind, logits)
    log_probs, token_ids = utils.ddtree_top_tokens(logits, budget)
    arguments = {
        "log_probs": log_probs.view(bs, num_depths, -1),
        "token_ids": token_ids.view(bs, num_depths, -1),
        "root_tokens": torch.arange(2 * bs).view(bs, 2)[:, 1],  # a column, as between steps that are not captured
    }
    expected = utils.build_ddtree(**arguments, budget=budget)
    moved = {name: tensor.to(device) for name, tensor in arguments.items()}
    got = kernels.build_ddtree_triton(**moved, budget=budget)
    for name in expected._fields:
        assert torch.equal(getattr(expected, name), getattr(got, name).cpu()), f"the tree's {name} differ ({kind})"
    # A target that goes along with some of the drafts, so that there are paths of several nodes.
    target = torch.randint(0, vocab, (bs, budget + 1), generator=generator)
    target.scatter_(1, expected.parents[:, 1:], expected.tokens[:, 1:])
    path_len = utils.ddtree_path_len(num_depths, budget)
    wanted = utils.walk_ddtree(expected, target, path_len)
    walked = kernels.walk_ddtree_triton(got, target.to(device), path_len)
    for name, a, b in zip(("path", "lengths", "tokens"), wanted, walked):
        assert torch.equal(a, b.cpu()), f"the walk's {name} differ ({kind})"
    return int(wanted[1].max())


def check_top_scores(device: str, dtype: str, num_rows: int, vocab: int, num_tokens: int, scale: float = 10.0) -> float:
    """The best tokens of rows of logits are torch's; returns the error of the sums of exp(logits)."""
    torch = _torch()
    generator = torch.Generator().manual_seed(3)
    logits = (torch.randn(num_rows, vocab, generator=generator) * scale).to(getattr(torch, dtype))
    logits[0] = logits[0, :1] + 200 * scale * (torch.arange(vocab) == vocab - 1)  # one token takes all
    found = _engine("ddtree_top_scores").ddtree_top_scores_triton(logits.to(device), num_tokens)
    scores, token_ids, lse = (tensor.cpu() for tensor in found)
    what = f"of {vocab} {dtype} logits"
    expected = logits.topk(min(num_tokens, vocab)).values.float()
    assert torch.equal(scores, expected), f"the {num_tokens} best {what} are others"
    assert torch.equal(logits.gather(1, token_ids).float(), scores), f"the tokens {what} are not those of their scores"
    assert all(len(set(row)) == len(row) for row in token_ids.tolist()), f"a token {what} is there twice"
    assert bool((lse >= scores[:, :1]).all()), "a token is more probable than 1"
    errors = (lse.double() - logits.double().logsumexp(1, keepdim=True)).abs()
    bounds = 2e-7 * logits.double().abs().amax(1, keepdim=True) + 4e-6
    assert bool((errors <= bounds).all()), f"sums {what} are off by {float(errors.max()):.1e}"
    return float(errors.max())


def attention_case(dtype: str, shape: Shape, parents: Optional[List[List[int]]] = None) -> Dict[str, Any]:
    """Arguments of ``tree_attention`` on the CPU, for random trees, or for trees of the given ``parents``."""
    torch, utils = _torch(), _engine("ddtree_utils")
    bs, num_q, heads, kv_heads, dim, prefix = shape
    generator = torch.Generator().manual_seed(1)
    width = prefix + num_q
    slots = bs * width + 1

    def randn(*size: int) -> Any:
        return torch.randn(*size, generator=generator).to(getattr(torch, dtype))

    if parents is None:
        nodes = torch.zeros(bs, num_q, dtype=torch.int64)
        for node in range(1, num_q):
            nodes[:, node] = torch.randint(0, node, (bs,), generator=generator)
    else:
        nodes = torch.tensor(parents)
    table = torch.randperm(slots - 1, generator=generator)[: bs * width].view(bs, width) + 1
    return {
        "q": randn(bs * num_q, heads, dim),
        "k": randn(bs * num_q, kv_heads, dim),
        "v": randn(bs * num_q, kv_heads, dim),
        "k_cache": randn(slots, kv_heads, dim),
        "v_cache": randn(slots, kv_heads, dim),
        "req_to_token": table.int(),
        "req_pool_indices": torch.arange(bs),
        "prefix_lens": torch.full((bs,), prefix) - torch.arange(bs),
        "mask": utils.build_ancestor_mask(nodes, num_q),
        "scale": dim**-0.5,
    }


def attend(device: str, case: Dict[str, Any], num_splits: int) -> Any:
    """What the kernel says, on the CPU."""
    moved = {name: value.to(device) if hasattr(value, "to") else value for name, value in case.items()}
    return _engine("ddtree_attention").tree_attention(**moved, num_splits=num_splits).cpu()


def dense(case: Dict[str, Any]) -> Any:
    """The same attention in float64, with the mask written out."""
    torch = _torch()
    q, k, v = case["q"].double(), case["k"].double(), case["v"].double()
    bs = len(case["prefix_lens"])
    num_q, group = q.shape[0] // bs, q.shape[1] // k.shape[1]
    out = []
    for b in range(bs):
        prefix = int(case["prefix_lens"][b])
        slots = case["req_to_token"][b, :prefix].long()
        rows = slice(b * num_q, (b + 1) * num_q)
        keys = torch.cat([case["k_cache"][slots].double(), k[rows]]).repeat_interleave(group, 1)
        values = torch.cat([case["v_cache"][slots].double(), v[rows]]).repeat_interleave(group, 1)
        scores = torch.einsum("qhd,nhd->hqn", q[rows], keys) * case["scale"]
        allowed = torch.ones(num_q, len(keys), dtype=torch.bool)
        if case["mask"] is not None:
            allowed[:, prefix:] = case["mask"][b]
        scores = scores.masked_fill(~allowed, float("-inf"))
        out.append(torch.einsum("hqn,nhd->qhd", scores.softmax(-1), values))
    return torch.cat(out).flatten(1)


def check_attention(device: str, dtype: str, shape: Shape, num_splits: int, masked: bool = True) -> float:
    """The kernel's relative error, which is within the dtype's bound."""
    case = attention_case(dtype, shape)
    if not masked:
        case["mask"] = None
    expected = dense(case)
    error = float((attend(device, case, num_splits).double() - expected).norm() / expected.norm())
    assert error < BOUNDS[dtype], f"attention of {shape}, {dtype}, {num_splits} splits is off by {error:.1e}"
    return error


def check_poisoned_sibling(device: str, dtype: str = "bfloat16") -> None:
    """A branch of huge keys and values changes its own nodes and no others."""
    torch = _torch()
    case = attention_case(dtype, (1, 4, 4, 2, 64, 50), [[0, 0, 0, 1]])
    clean = attend(device, case, 4)
    case["k"][1], case["v"][1] = 1e4, -1e4
    dirty = attend(device, case, 4)
    same = [torch.equal(clean[node], dirty[node]) for node in range(4)]
    assert same == [True, False, True, False], f"a poisoned node reaches the wrong nodes: unchanged are {same}"


def check_padding_rows(device: str, dtype: str = "bfloat16") -> None:
    """Rows of a padded batch (pool index -1) disturb nobody and give numbers."""
    torch = _torch()
    case = attention_case(dtype, (3, 8, 8, 2, 64, 40))
    full = attend(device, case, 2)
    case["req_pool_indices"][2], case["prefix_lens"][2] = -1, 0
    padded = attend(device, case, 2)
    assert torch.equal(full[:16], padded[:16]), "a padding row changes other rows"
    assert padded.isfinite().all(), "a padding row gives no numbers"


def check_move(device: str, slot_shape: Tuple[int, int], num_layers: int = 2, rounds: int = 9) -> None:
    """The KV of paths moves to the front of their trees' slots: a slot may be both source and target."""
    torch, kernels = _torch(), _engine("ddtree_kernels")
    generator = torch.Generator().manual_seed(2)
    num_slots, path_len = 64, 16
    for round_ in range(rounds):
        bs = (1, 3, 8)[round_ % 3]
        shape = (1 + bs * num_slots, *slot_shape)
        layers = [torch.randn(*shape, generator=generator).bfloat16().to(device) for _ in range(num_layers)]
        slots = torch.arange(1, 1 + bs * num_slots).view(bs, num_slots)
        path = torch.stack([torch.randperm(num_slots, generator=generator)[:path_len] for _ in range(bs)])
        source, target = slots.gather(1, path.sort().values).to(device), slots[:, :path_len].to(device)
        expected = [layer.clone() for layer in layers]
        for layer in expected:
            layer[target.flatten()] = layer[source.flatten()]
        sizes = [layer[0].numel() * 2 for layer in layers]
        addresses = torch.tensor([layer.data_ptr() for layer in layers], dtype=torch.uint64, device=device)
        kernels.move_path_kv_triton(addresses, torch.tensor(sizes, device=device), max(sizes), source, target)
        same = all(torch.equal(a, b) for a, b in zip(layers, expected))
        assert same, f"the KV of {bs} paths is not what was moved"


def run(device: str) -> str:
    """The checks of ``verify --gpu``, in words. ``tests/gpu`` has more shapes."""
    if device == "cpu":  # the interpreter is slow, and has no bf16 products
        builds = [("smooth", 2, 4, 20, 7), ("ties", 2, 5, 9, 6), ("sharp", 2, 3, 6, 5)]
        shapes: List[Tuple[str, Shape]] = [("float32", (2, 5, 4, 2, 16, 70))]
    else:
        builds = [(kind, 3, 15, 4096, budget) for kind in KINDS for budget in (31, 63)]
        shapes = [
            ("bfloat16", (2, 32, 4, 2, 64, 300)),  # the nano pair's heads
            ("bfloat16", (1, 64, 32, 8, 128, 5000)),  # a large model's
            ("float32", (3, 16, 8, 2, 64, 77)),
        ]
    longest = max(check_build_and_walk(device, *case) for case in builds)
    assert longest > 2, "no walk went deeper than one node: the case shows nothing"
    check_top_scores(device, "float32", 3, 9000, 7)
    for scale in (10.0, 0.01):
        check_top_scores(device, shapes[0][0], 15, 33000 if device == "cpu" else 152000, 31, scale)
    ways = [*((splits, True) for splits in SPLITS), (3, False)]
    worst = [
        check_attention(device, dtype, shape, splits, masked)
        for number, (dtype, shape) in enumerate(shapes)
        for splits, masked in (ways if number == 0 else [(4, True)])  # each is compiled, for a second or two
    ]
    check_poisoned_sibling(device, shapes[0][0])
    check_padding_rows(device, shapes[0][0])
    check_move(device, (2, 64) if device == "cpu" else (8, 128), rounds=3 if device == "cpu" else 30)
    return (
        f"{len(builds)} trees and walks are equal, the best of many logits too, {len(worst)} attentions within "
        f"{max(worst):.1e}, siblings and padding rows disturb nobody, KV moves in place"
    )
