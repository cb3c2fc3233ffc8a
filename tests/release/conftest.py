from disks import small_disk
from venv_fixtures import base, root, wheels

__all__ = ["base", "root", "small_disk", "wheels"]
