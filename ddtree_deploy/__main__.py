"""``python -m ddtree_deploy``: the program where its script is not on the PATH."""

import sys

from ddtree_deploy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
