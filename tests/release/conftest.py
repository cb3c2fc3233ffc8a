from venv_fixtures import base, root, wheels

__all__ = ["base", "root", "wheels"]
