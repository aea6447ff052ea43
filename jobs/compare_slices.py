"""What is submitted to Spark: `tidemark compare --record` with the arguments of the application."""

import sys

from tidemark.cli.app import main

if __name__ == "__main__":
    sys.exit(main(["compare", "--record", *sys.argv[1:]]))
