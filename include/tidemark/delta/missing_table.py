"""Explain that there is no Delta table at a path, by what is there instead."""

from __future__ import annotations

import os
from pathlib import Path

from tidemark.delta.filesystem import is_uri

_FORMATS = {".parquet": "Parquet", ".csv": "CSV", ".gz": "compressed", ".json": "JSON", ".jsonl": "JSON", ".orc": "ORC"}
"""Formats of files that users take for tables, by the ending of the name."""
_GUIDE = "docs/init.md#tables-of-csv-or-parquet-files"
_MAX_FOLDERS = 100
"""Number of folders in which files are searched."""


def explain_missing_table(name: str, path: str, remedy: str) -> str:
    """Return the text of an error: there is no table of this name.

    Args:
        name: The name in the pipeline file or the command.
        path: Its path or URI. Only local ones are searched for other files.
        remedy: Sentence on what to do if there are no other files.
    """
    if (files := _find_other_files(path)) is None:
        return f"there is no Delta table {name} at {path}. {remedy}"
    return f"{name} at {path} is {files}, not a Delta table. Write a table from it as in {_GUIDE}, or name another one."


def _find_other_files(path: str) -> str | None:
    """Describe a file, or a folder with files of a known format; None for anything else."""
    if is_uri(path):
        return None
    if Path(path).is_file():
        kind = _FORMATS.get(Path(path).suffix.lower())
        return f"{'an' if kind == 'ORC' else 'a'} {kind} file" if kind else "a file"
    for _, (_, _, files) in zip(range(_MAX_FOLDERS), os.walk(path), strict=False):
        for file in files:
            if (kind := _FORMATS.get(Path(file).suffix.lower())) is not None:
                return f"a folder of {kind} files"
    return None
