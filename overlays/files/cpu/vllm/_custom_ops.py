"""Names that SGLang 0.5.11 imports from vLLM without a GPU.

They are imported, never called: the layers use their native torch forward there.
"""


def _missing(name: str):
    def op(*args, **kwargs):
        raise NotImplementedError(
            f"vllm._custom_ops.{name} is a stand-in without kernels; "
            "install vLLM or use a layer with a native forward."
        )

    op.__name__ = name
    return op


rotary_embedding = _missing("rotary_embedding")
rms_norm = _missing("rms_norm")
fused_add_rms_norm = _missing("fused_add_rms_norm")
silu_and_mul = _missing("silu_and_mul")
gelu_and_mul = _missing("gelu_and_mul")
