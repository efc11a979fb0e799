"""`python -m prunerecover`: the same as the console script."""

import sys

from prunerecover.recipes.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
