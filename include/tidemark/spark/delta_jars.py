"""Find the jars of Delta Lake that Spark needs."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.errors import FaultError, UserError

JARS_VARIABLE = "TIDEMARK_JARS"
"""Environment variable with the folder of the jars."""
_PROJECT = Path(__file__).resolve().parents[3]


def find_delta_jars() -> list[Path]:
    """Return the paths of Delta's jars on this machine.

    Raises:
        UserError: The folder that the variable names has no such jars.
        FaultError: The jars have not been fetched.
    """
    named_folder = os.environ.get(JARS_VARIABLE)
    folder = Path(named_folder or _PROJECT / ".jars")
    jars = sorted(folder.glob("*.jar"))
    if not any("delta-spark" in jar.name for jar in jars):
        if named_folder:
            raise UserError(
                f"{JARS_VARIABLE} names {folder}, which has no jars of Delta. Correct it, or copy them there as in "
                "docs/quickstart.md#install."
            )
        raise FaultError(
            f"Delta's jars are not in {folder}. Run python bin/fetch-jars in the clone, and set {JARS_VARIABLE} to the "
            "folder."
        )
    return jars
