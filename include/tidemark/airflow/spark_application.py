"""What is submitted to Spark: the command `tidemark` with the arguments of the application."""

import sys

from tidemark.cli.app import main
from tidemark.errors import submitted_code

if __name__ == "__main__":
    sys.exit(submitted_code(main(sys.argv[1:])))
