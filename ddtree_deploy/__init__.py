"""ddtree-deploy: provision GPU hosts with a patched SGLang runtime and serve DDTree on every GPU."""

__version__ = "0.1.0"
