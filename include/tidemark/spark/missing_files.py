"""Tell errors of missing files, for example after VACUUM, from other errors of Spark."""

from __future__ import annotations

_PHRASES = (
    "PATH_NOT_FOUND",
    "FILE_NOT_EXIST",
    "FILE_NOT_FOUND",
    "FileNotFoundException",
    "DELTA_VERSION_NOT_FOUND",
    "Cannot time travel",
)


def is_missing_file_error(error: Exception) -> bool:
    """Return True if Spark failed because a file, or a version of a table, no longer exists."""
    return any(phrase in str(error) for phrase in _PHRASES)
