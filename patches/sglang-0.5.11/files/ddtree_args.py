"""Server arguments of DDTREE: what is derived, and what is refused at start."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Union

import torch
from torch import nn

from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.speculative.ddtree_budget import AUTO_BUDGETS
from sglang.srt.speculative.ddtree_utils import MAX_DDTREE_BUDGET

if TYPE_CHECKING:
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.server_args import ServerArgs

# Without the flag: `auto` on a GPU, where steps are captured for several sizes, and this
# many nodes on a CPU.
DEFAULT_CPU_BUDGET = 31
DDTREE_BUDGET_FLAG = "--speculative-ddtree-budget"
# The engine wants room for a prompt of one token and five more.
_MIN_REQ_LEN = 7
# Attention backends whose TARGET_VERIFY can take a tree: torch_native through its
# custom mask, the others through the DDTree attention backend.
DDTREE_ATTENTION_BACKENDS = {
    "cpu": ("torch_native",),
    "cuda": ("triton", "flashinfer", "fa3"),
}


def parse_ddtree_budget(
    value: Union[str, int, None], auto_allowed: bool = True
) -> Union[int, str]:
    """Parse `--speculative-ddtree-budget`.

    Args:
        value: of the flag; None if it is not given.
        auto_allowed: whether steps are captured, which `auto` needs.
    Raises:
        ValueError: naming the flag, unless the value is `auto` or an integer in
            1..MAX_DDTREE_BUDGET.
    """
    if value is None:
        return "auto" if auto_allowed else DEFAULT_CPU_BUDGET
    if value == "auto":
        if not auto_allowed:
            raise ValueError(
                f"{DDTREE_BUDGET_FLAG} auto needs CUDA graphs, which this server does not capture; "
                f"give a number, for example {DDTREE_BUDGET_FLAG} {DEFAULT_CPU_BUDGET}."
            )
        return "auto"
    try:
        budget = int(str(value))
    except ValueError:
        raise ValueError(
            f"{DDTREE_BUDGET_FLAG} must be an integer or auto, got {value!r}."
        ) from None
    if budget < 1:
        raise ValueError(
            f"{DDTREE_BUDGET_FLAG} must be at least 1, got {budget}. It counts the draft-tree "
            "nodes verified per step, the root not included. For plain decoding leave out "
            "--speculative-algorithm."
        )
    if budget > MAX_DDTREE_BUDGET:
        raise ValueError(
            f"{DDTREE_BUDGET_FLAG} must be at most {MAX_DDTREE_BUDGET}, got {budget}. The target "
            "verifies budget + 1 tokens per request in every step."
        )
    return budget


def max_ddtree_budget(server_args: ServerArgs) -> int:
    """Nodes of the largest tree that can occur, the root not counted."""
    if server_args.speculative_ddtree_budget == "auto":
        return AUTO_BUDGETS[-1]
    return int(server_args.speculative_ddtree_budget)


def ddtree_reserved_slots(server_args: ServerArgs) -> int:
    """KV slots a request holds past its committed length.

    The step that runs ahead of the host starts up to one draft block further on, and
    needs room for a tree (or a draft block) from there.
    """
    return (
        server_args.speculative_num_draft_tokens
        + server_args.speculative_dflash_block_size
    )


def check_ddtree_draft_tokens(server_args: ServerArgs) -> None:
    """Run before DFLASH resolves its block size.

    Raises:
        ValueError: if the number of verified tokens is given twice.
    """
    if (
        server_args.speculative_num_draft_tokens is not None
        and server_args.speculative_dflash_block_size is None
    ):
        raise ValueError(
            "DDTREE derives --speculative-num-draft-tokens from "
            f"{DDTREE_BUDGET_FLAG}; leave it out. To change the draft block, set "
            "--speculative-dflash-block-size."
        )


def resolve_ddtree_server_args(server_args: ServerArgs) -> None:
    """Derive the tree's sizes and refuse what DDTREE does not support.

    Runs after DFLASH resolved its block size into `speculative_num_draft_tokens`. Then
    `speculative_dflash_block_size` holds the draft block, and
    `speculative_num_draft_tokens` the tokens of the largest forward of a request: one per
    tree node (budget + 1), and never fewer than the draft block.

    Raises:
        ValueError: naming the argument and the remedy.
    """
    server_args.speculative_ddtree_budget = parse_ddtree_budget(
        server_args.speculative_ddtree_budget,
        server_args.device == "cuda" and not server_args.disable_cuda_graph,
    )
    block_size = int(server_args.speculative_num_draft_tokens)
    if block_size < 2:
        raise ValueError(
            "DDTREE needs a draft block of at least 2 tokens, got "
            f"--speculative-dflash-block-size={block_size}."
        )
    server_args.speculative_dflash_block_size = block_size
    server_args.speculative_num_draft_tokens = max(
        max_ddtree_budget(server_args) + 1, block_size
    )

    # Prefills need the target's features, which piecewise graphs are not captured with:
    # they would take time and memory at start and never run.
    server_args.disable_piecewise_cuda_graph = True

    device = server_args.device
    supported = DDTREE_ATTENTION_BACKENDS.get(device)
    if supported is None:
        raise ValueError(
            f"DDTREE does not support --device {device}; use one of "
            f"{', '.join(DDTREE_ATTENTION_BACKENDS)}."
        )
    for backend in server_args.get_attention_backends():
        if backend is not None and backend not in supported:
            raise ValueError(
                f"DDTREE cannot verify a draft tree with the attention backend {backend!r} "
                f"on {device}; use --attention-backend {' or '.join(supported)}."
            )

    for refused, what, remedy in (
        (
            server_args.speculative_dflash_draft_window_size is not None,
            "--speculative-dflash-draft-window-size",
            "leave it out",
        ),
        (
            server_args.kv_cache_dtype not in ("auto", "bf16", "bfloat16"),
            f"--kv-cache-dtype {server_args.kv_cache_dtype}",
            "use --kv-cache-dtype auto",
        ),
        (
            server_args.disaggregation_mode not in (None, "null"),
            f"--disaggregation-mode {server_args.disaggregation_mode}",
            "serve prefill and decode in one server",
        ),
        (server_args.enable_lora, "--enable-lora", "merge the adapter"),
        (
            server_args.enable_hierarchical_cache,
            "--enable-hierarchical-cache",
            "leave it out; the draft KV is not offloaded",
        ),
        (
            server_args.enable_two_batch_overlap,
            "--enable-two-batch-overlap",
            "leave it out",
        ),
        (server_args.enable_pdmux, "--enable-pdmux", "leave it out"),
        (server_args.enable_torch_compile, "--enable-torch-compile", "leave it out"),
        (
            server_args.enable_deterministic_inference,
            "--enable-deterministic-inference",
            "leave it out",
        ),
    ):
        if refused:
            raise ValueError(f"DDTREE does not support {what} yet; {remedy}.")


def _unsupported_attention(model: nn.Module) -> Optional[str]:
    """What an attention layer needs that a tree verify does not do, or None."""
    for name, _ in model.named_parameters():
        if name.endswith(".sinks"):
            return "its attention has sinks"
    for layer in model.modules():
        if not isinstance(layer, RadixAttention):
            continue
        if layer.logit_cap:
            return "its attention caps logits"
        if layer.sliding_window_size > 0:
            return "it uses sliding-window attention"
        if layer.is_cross_attention or layer.use_irope:
            return "it uses cross or chunked attention"
        if layer.qk_head_dim != layer.v_head_dim:
            return "its key and value head sizes differ"
    return None


def check_ddtree_target(model_runner: ModelRunner) -> None:
    """Refuse targets whose layers or KV pool cannot be verified with a tree.

    Raises:
        ValueError: naming the model and what is in the way.
    """
    server_args = model_runner.server_args
    reason: Optional[str] = None
    if model_runner.mambaish_config is not None:
        reason = "it has linear-attention or mamba layers, whose state cannot branch"
    elif model_runner.use_mla_backend:
        reason = "it uses multi-head latent attention (MLA)"
    elif model_runner.is_hybrid_swa or (model_runner.sliding_window_size or 0) > 0:
        reason = "it uses sliding-window attention"
    elif model_runner.model_config.is_encoder_decoder:
        reason = "it is an encoder-decoder model"
    elif model_runner.model_config.is_multimodal:
        reason = "it is a multimodal model"
    elif model_runner.kv_cache_dtype != model_runner.dtype:
        # As the flag says, or a quantised checkpoint.
        reason = (
            f"its KV cache is {model_runner.kv_cache_dtype}, not {model_runner.dtype} as the "
            "model (--kv-cache-dtype)"
        )
    else:
        reason = _unsupported_attention(model_runner.model)
    if reason is not None:
        raise ValueError(
            f"DDTREE does not support the target {server_args.model_path}: {reason}. "
            "Use --speculative-algorithm DFLASH or no speculative decoding."
        )

    if ddtree_max_req_len(model_runner) < _MIN_REQ_LEN:
        num_slots = ddtree_reserved_slots(server_args)
        raise ValueError(
            f"{DDTREE_BUDGET_FLAG} {server_args.speculative_ddtree_budget} needs {num_slots} KV "
            f"slots per request beside its tokens, but the KV pool holds "
            f"{model_runner.max_total_num_tokens} tokens. Lower the budget or raise "
            "--max-total-tokens / --mem-fraction-static."
        )
    if server_args.device == "cuda":
        _check_shared_memory(server_args, model_runner.gpu_id)


def _check_shared_memory(server_args: ServerArgs, gpu_id: int) -> None:
    """Refuse trees that the GPU cannot build, before its kernel is compiled for them."""
    from sglang.srt.speculative.ddtree_kernels import build_ddtree_shared_bytes

    num_depths = server_args.speculative_dflash_block_size - 1
    needed = build_ddtree_shared_bytes(num_depths, max_ddtree_budget(server_args))
    there = torch.cuda.get_device_properties(gpu_id).shared_memory_per_block_optin
    if needed > there:
        raise ValueError(
            f"{DDTREE_BUDGET_FLAG} {server_args.speculative_ddtree_budget} with a draft block of "
            f"{num_depths + 1} tokens needs {needed >> 10} KB of shared memory, and the GPU has "
            f"{there >> 10} KB. Lower the budget or --speculative-dflash-block-size."
        )


def ddtree_max_req_len(model_runner: ModelRunner) -> int:
    """Longest request, prompt and answer, whose last step still finds KV slots for its tree.

    A longer one could be served by plain decoding, but would be aborted in the middle of
    its answer here. The scheduler, which rounds prompts up to pages, would never start a
    request within a page of the whole pool.
    """
    page_size = model_runner.server_args.page_size
    num_slots = model_runner.max_total_num_tokens // page_size * page_size
    reserved = ddtree_reserved_slots(model_runner.server_args)
    return num_slots - max(reserved, page_size)
