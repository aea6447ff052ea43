"""Read rows of a test case from CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tidemark.errors import PipelineFileError

_NAME = re.compile(r"\w[\w.-]*")
_MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class RowFile:
    """Rows of a file, each with its line."""

    path: Path
    rows: tuple[tuple[int, dict[str, Any]], ...]


def read_row_file(folder: Path, name: str) -> RowFile:
    """Read a file of rows in the folder of a test file.

    Raises:
        PipelineFileError: The name is not that of a .csv or .jsonl file in the folder, or the file is invalid.
    """
    path = folder / name
    readers = {".csv": _read_csv, ".jsonl": _read_json_lines}
    if not _NAME.fullmatch(name) or path.suffix not in readers:
        raise PipelineFileError(f"{name!r} should be the name of a .csv or .jsonl file in {folder}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PipelineFileError(f"{path} cannot be read: {reason}") from None
    if len(text) > _MAX_BYTES:
        raise PipelineFileError(f"{path} has more than {_MAX_BYTES:,} characters. Test with fewer rows.")
    return RowFile(path, tuple(readers[path.suffix](path, text)))


def _read_csv(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a CSV file with a header. Cells are values of YAML; an empty cell is null."""
    reader = csv.DictReader(text.splitlines())
    for row in reader:
        if None in row or None in row.values():
            raise PipelineFileError(f"{path}:{reader.line_num}: has more or fewer cells than the header")
        yield reader.line_num, {name: _parse_cell(cell) for name, cell in row.items()}


def _parse_cell(cell: str) -> Any:
    try:
        value = yaml.safe_load(cell)
    except (yaml.YAMLError, ValueError):
        return cell
    return cell if isinstance(value, dict | list) else value


def _read_json_lines(path: Path, text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise PipelineFileError(f'{path}:{number}: is not a JSON object. Write a row such as {{"k": 1}}.')
        yield number, row
