from abi.fixtures import venv

__all__ = ["venv"]
