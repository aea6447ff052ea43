"""What the script `tidemark` calls: the command, or in a line which extra brings what it lacks."""

from __future__ import annotations

import sys

from tidemark.errors import lacking


def main() -> int:
    """Run the command; its exit code."""
    try:
        from tidemark.cli import main as run  # noqa: PLC0415 - the base does not bring what it imports
    except ModuleNotFoundError as error:
        mistake = lacking(error)
        if mistake is None:
            raise
        sys.stderr.write(f"error: {mistake}\n")
        return mistake.exit_code
    return run()
