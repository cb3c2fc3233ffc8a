"""Stand-in for vLLM on hosts without a GPU: only `vllm._custom_ops` can be imported.

SGLang 0.5.11 imports it on its generic path, where no CUDA kernels are built.
"""
