"""Whether two processes that commit to a table at the same time are kept apart where it lies.

On this machine a file is made by one process alone; an object store has to refuse the second that puts an object of a
name (a conditional put). One that does not would lose commits without a word.
"""

from __future__ import annotations

import os
from uuid import uuid4

from pyspark.sql import SparkSession

from tidemark.delta.filesystem import is_uri
from tidemark.errors import ForbiddenPathError
from tidemark.spark.engine import engine_of

SAFE_SCHEMES = ("s3a", "gs", "abfss")
"""URI schemes of stores with conditional puts that both Spark and delta-rs support."""
_UNSAFE_SETTINGS = {"AWS_S3_ALLOW_UNSAFE_RENAME": {"true", "1"}, "AWS_CONDITIONAL_PUT": {"disabled"}}
"""Environment variables and values that make delta-rs commit without conditional puts."""


def check_store(root: str) -> None:
    """Check, by URI scheme and environment variables, that the store can prevent conflicting commits.

    Raises:
        ForbiddenPathError: The scheme is not supported, or a variable disables conditional puts.
    """
    if not is_uri(root):
        return
    scheme = root.partition("://")[0]
    if scheme not in SAFE_SCHEMES:
        schemes = ", ".join(f"{one}://" for one in SAFE_SCHEMES)
        reason = (
            "is S3 to delta-rs alone, and Spark has it as s3a://" if scheme == "s3" else "keeps no two writers apart"
        )
        raise ForbiddenPathError(
            f"tables cannot be written to {root}: {scheme}:// {reason}; let the lake be a path, or {schemes}"
        )
    for variable, values in _UNSAFE_SETTINGS.items():
        if scheme == "s3a" and os.environ.get(variable, "").lower() in values:
            raise ForbiddenPathError(
                f"tables cannot be written to {root}: {variable}={os.environ[variable]} lets two drivers overwrite "
                "each other's commits; unset it"
            )


def probe_conditional_put(spark: SparkSession, root: str) -> None:
    """Check that an S3 store rejects the second of two conditional puts to the same key.

    The check is skipped on Spark Connect, which gives no access to the file system.

    Raises:
        ForbiddenPathError: The store accepts both.
    """
    if root.startswith("s3a://") and engine_of(spark).keeps_first_put(f"{root}/probe-{uuid4().hex}") is False:
        raise ForbiddenPathError(
            f"tables cannot be written to {root}: its store passes over conditional puts (If-None-Match), so that two "
            "drivers would overwrite each other's commits; take a store that does not"
        )
