"""What is submitted to Spark: `tidemark run` with the arguments of the application."""

import sys

from tidemark.cli.app import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))
