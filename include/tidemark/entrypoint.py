"""Start the `tidemark` command, or name the missing pip extra."""

from __future__ import annotations

import sys

from tidemark.errors import missing_extra_error


def main() -> int:
    """Run the command and return its exit code."""
    try:
        from tidemark.cli import main as run  # noqa: PLC0415 - its imports need extras that the base does not install
    except ModuleNotFoundError as error:
        user_error = missing_extra_error(error)
        if user_error is None:
            raise
        sys.stderr.write(f"error: {user_error}\n")
        return user_error.exit_code
    return run()
