"""What is submitted to Spark: `tidemark run` with the arguments of the application."""

import sys

from tidemark.cli.app import main
from tidemark.errors import to_submit_exit_code

if __name__ == "__main__":
    sys.exit(to_submit_exit_code(main(["run", *sys.argv[1:]])))
