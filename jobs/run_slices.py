"""What is submitted to Spark: `tidemark run` with the arguments of the application."""

import sys

from tidemark.cli.app import main
from tidemark.errors import submitted_code

if __name__ == "__main__":
    sys.exit(submitted_code(main(["run", *sys.argv[1:]])))
