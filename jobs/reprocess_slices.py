"""What is submitted to Spark: `tidemark reprocess` with the arguments of the application."""

import sys

from tidemark.cli.app import main
from tidemark.errors import submitted_code

if __name__ == "__main__":
    sys.exit(submitted_code(main(["reprocess", *sys.argv[1:]])))
