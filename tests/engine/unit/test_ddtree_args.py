from types import SimpleNamespace

import pytest
import torch
from sglang.srt.speculative.ddtree_args import check_ddtree_target, parse_ddtree_budget
from sglang.srt.speculative.ddtree_utils import MAX_DDTREE_BUDGET
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


@pytest.mark.parametrize("value", ["1", 7, "63", MAX_DDTREE_BUDGET])
def test_budget(value):
    assert parse_ddtree_budget(value) == int(value)


@pytest.mark.parametrize("value", ["0", -1, 100000, "many", "1.5", ""])
def test_bad_budget_names_the_flag(value):
    with pytest.raises(ValueError, match="--speculative-ddtree-budget"):
        parse_ddtree_budget(value)


def test_algorithm():
    ddtree = SpeculativeAlgorithm.from_string("DDTREE")
    assert ddtree.is_ddtree() and ddtree.is_dflash()
    assert not SpeculativeAlgorithm.DFLASH.is_ddtree()
    assert not ddtree.supports_spec_v2()


@pytest.fixture
def runner():
    """A target that is accepted."""
    return SimpleNamespace(
        server_args=SimpleNamespace(
            model_path="models/target",
            device="cpu",
            speculative_ddtree_budget=31,
            speculative_num_draft_tokens=32,
            speculative_dflash_block_size=16,
            page_size=1,
        ),
        gpu_id=0,
        model_config=SimpleNamespace(is_encoder_decoder=False, is_multimodal=False),
        mambaish_config=None,
        use_mla_backend=False,
        is_hybrid_swa=False,
        sliding_window_size=None,
        model=torch.nn.Module(),
        max_total_num_tokens=1000,
        dtype=torch.bfloat16,
        kv_cache_dtype=torch.bfloat16,
    )


def test_kv_cache_of_another_dtype_is_refused(runner):
    """Also where a checkpoint asks for it, which no argument shows."""
    check_ddtree_target(runner)
    runner.kv_cache_dtype = torch.float8_e4m3fn
    with pytest.raises(ValueError, match=r"models/target: its KV cache is torch.float8_e4m3fn.*--kv-cache-dtype"):
        check_ddtree_target(runner)


def test_a_tree_that_the_gpu_cannot_build_is_refused(runner, monkeypatch):
    """99 KB of shared memory, as Blackwell workstation cards have, and a draft block of 32 tokens."""
    card = SimpleNamespace(shared_memory_per_block_optin=99 << 10)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu_id: card)
    args, runner.max_total_num_tokens = runner.server_args, 10000
    args.device, args.speculative_ddtree_budget, args.speculative_num_draft_tokens = "cuda", 511, 512
    check_ddtree_target(runner)
    args.speculative_dflash_block_size = 32
    with pytest.raises(ValueError, match=r"--speculative-ddtree-budget 511 .* of 32 tokens needs 128 KB .* has 99 KB"):
        check_ddtree_target(runner)
    card.shared_memory_per_block_optin = 227 << 10
    check_ddtree_target(runner)
