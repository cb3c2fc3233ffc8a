"""A small engine in the shape of the real one: a registry, backends of every kind, algorithms, arguments."""

from pathlib import Path

from ddtree_deploy.release.files import record_hash

FILES = {
    "sglang/_version.py": "version = '0.5.11'\n__commit_id__ = commit_id = 'gabcdef1'\n",
    "sglang/srt/server_args.py": """
class ServerArgs:
    speculative_algorithm: Optional[str] = None
    speculative_size: int = dataclasses.field(default=10 * 1000, metadata={})
    other: int = 1
""",
    "sglang/srt/speculative/spec_info.py": '''
from enum import Enum, auto


class SpeculativeAlgorithm(Enum):
    """Doc."""

    DFLASH = auto()
    DDTREE = auto()
    EAGLE = auto()
    NONE = auto()

    def is_none(self):
        return self == SpeculativeAlgorithm.NONE

    def is_some(self):
        return not self.is_none()

    def is_dflash(self):
        """Doc."""
        return self in (SpeculativeAlgorithm.DFLASH, SpeculativeAlgorithm.DDTREE)

    def is_ddtree(self):
        return self == SpeculativeAlgorithm.DDTREE and self.is_dflash()

    def is_odd(self):
        return unknown(self)
''',
    "sglang/srt/speculative/plugin.py": """
@SpeculativeAlgorithm.register("my_spec", supports_overlap=False)
def factory(server_args):
    return MyWorker
""",
    "sglang/srt/speculative/dflash_worker.py": "class DFlashWorker:\n    pass\n",
    "sglang/srt/speculative/ngram_worker.py": "class NGRAMWorker(BaseSpecWorker):\n    pass\n",
    "sglang/srt/speculative/dflash_utils.py": """
_DFLASH_VERIFY_SKIP_CUSTOM_MASK_BACKENDS = frozenset({"AlphaBackend", "BetaBackend"})


def build_tree_kernel():
    pass
""",
    "sglang/srt/layers/attention/attention_registry.py": """
def register_attention_backend(name):
    return lambda fn: fn


@register_attention_backend("plain")
def make_plain(runner):
    from sglang.srt.layers.attention.plain_backend import PlainBackend
    return PlainBackend(runner)


@register_attention_backend("plain_alias")
def make_alias(runner):
    return make_plain(runner)


@register_attention_backend("gated")
def make_gated(runner):
    from sglang.srt.layers.attention.gated_backend import GatedBackend as Gated
    return Gated(runner)


@register_attention_backend("dropping")
def make_dropping(runner):
    if runner.inherits:
        from sglang.srt.layers.attention.dropping_backend import InheritingBackend
        return InheritingBackend(runner)
    from sglang.srt.layers.attention.dropping_backend import DroppingBackend
    return DroppingBackend(runner)


@register_attention_backend("chosen")
def make_chosen(runner):
    from sglang.srt.layers.attention.chain_backend import ChainBackend
    cls = ChainBackend
    return cls(runner)


@register_attention_backend("blind")
def make_blind(runner):
    from sglang.srt.hardware import BlindBackend
    return BlindBackend(runner)


@register_attention_backend("lost")
def make_lost(runner):
    from somewhere.else_ import LostBackend
    return LostBackend(runner)


@register_attention_backend("updater")
def make_updater(runner):
    from sglang.srt.layers.attention.updater_backend import UpdaterBackend
    return UpdaterBackend(runner)
""",
    "sglang/srt/layers/attention/plain_backend.py": """
class PlainBackend(AttentionBackend):
    def init_forward_metadata(self, forward_batch):
        if forward_batch.forward_mode.is_target_verify():
            self.mask = forward_batch.spec_info.custom_mask

    def init_forward_metadata_replay_cuda_graph(self, spec_info):
        if getattr(spec_info, "custom_mask", None) is not None:
            self.mask[:] = 1
""",
    "sglang/srt/layers/attention/gated_backend.py": """
class GatedBackend(AttentionBackend):
    def __init__(self, runner):
        self.topk = runner.server_args.speculative_eagle_topk or 0

    def init_forward_metadata(self, forward_batch):
        if forward_batch.forward_mode.is_target_verify():
            if self.topk <= 1:
                return
            self.mask = forward_batch.spec_info.custom_mask[3]


class GatedMultiStepBackend:
    def go(self, spec_info):
        return spec_info.custom_mask
""",
    "sglang/srt/layers/attention/dropping_backend.py": """
class DroppingBackend(AttentionBackend):
    def init_forward_metadata(self, forward_batch):
        if forward_batch.forward_mode.is_target_verify():
            a, b, mask = forward_batch.spec_info.generate_attn_arg_prefill(1)
            self.plan(a, b)


class InheritingBackend(DroppingBackend):
    def forward(self):
        pass
""",
    "sglang/srt/layers/attention/chain_backend.py": """
class ChainBackend(AttentionBackend):
    def init_forward_metadata(self, forward_batch):
        if forward_batch.forward_mode == ForwardMode.TARGET_VERIFY:
            # Here we only support topk = 1 for now.
            pass


class WrapperBackend(AttentionBackend):
    def __init__(self, inner: AttentionBackend):
        self.inner = inner
""",
    "sglang/srt/layers/attention/updater_backend.py": """
class UpdaterBackend(AttentionBackend):
    def init_forward_metadata(self, forward_batch):
        if forward_batch.forward_mode.is_target_verify():
            Updater().update(forward_batch.spec_info)


class Updater:
    def update(self, spec_info):
        a, mask = spec_info.generate_attn_arg_prefill(1)
        plan(a, mask=mask)
""",
    "sglang/srt/hardware/__init__.py": "from .blind import BlindBackend\n",
    "sglang/srt/hardware/blind.py": "class BlindBackend(AttentionBackend):\n    pass\n",
}


def lay_out(site: Path, files: dict[str, str], version: str = "0.5.11") -> Path:
    info = f"sglang-{version}.dist-info"
    everything = {**files, f"{info}/METADATA": f"Name: sglang\nVersion: {version}\n"}
    lines = []
    for path, text in everything.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
        lines.append(f"{path},{record_hash(text.encode())},{len(text)}")
    (site / info / "RECORD").write_text("\n".join([*lines, f"{info}/RECORD,,"]) + "\n")
    return site
