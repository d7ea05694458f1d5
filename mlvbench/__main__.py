"""`python -m mlvbench`."""

import sys

from mlvbench.cli import main

if __name__ == "__main__":
    sys.exit(main())
