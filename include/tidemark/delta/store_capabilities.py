"""Check that a store prevents concurrent writers from overwriting each other's commits.

A local file system lets only one process create a file. An object store must reject the second put to a key (a
conditional put), or commits would be lost silently.
"""

from __future__ import annotations

import os
from uuid import uuid4

from pyspark.sql import SparkSession

from tidemark.delta.filesystem import is_uri
from tidemark.errors import ForbiddenPathError
from tidemark.spark.engine import get_engine

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
        supported = ", ".join(f"{safe_scheme}://" for safe_scheme in SAFE_SCHEMES)
        reason = (
            "is unknown to Spark, which accesses S3 by s3a://"
            if scheme == "s3"
            else "does not prevent conflicting commits"
        )
        raise ForbiddenPathError(
            f"tables cannot be written to {root}: {scheme}:// {reason}. Let the lake be a path, or {supported}."
        )
    for variable, values in _UNSAFE_SETTINGS.items():
        if scheme == "s3a" and os.environ.get(variable, "").lower() in values:
            raise ForbiddenPathError(
                f"tables cannot be written to {root}: {variable}={os.environ[variable]} lets two drivers overwrite "
                "each other's commits. Unset it."
            )


def probe_conditional_put(spark: SparkSession, root: str) -> None:
    """Check that an S3 store rejects the second of two conditional puts to the same key.

    The check is skipped on Spark Connect, which gives no access to the file system.

    Raises:
        ForbiddenPathError: The store accepts both.
    """
    if root.startswith("s3a://") and get_engine(spark).supports_conditional_put(f"{root}/probe-{uuid4().hex}") is False:
        raise ForbiddenPathError(
            f"tables cannot be written to {root}: its store ignores conditional puts (If-None-Match), so two drivers "
            "would overwrite each other's commits. Use a store that supports them."
        )
