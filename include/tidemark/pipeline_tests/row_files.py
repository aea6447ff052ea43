"""Read rows of a test case from CSV or JSON lines."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from io import StringIO
from pathlib import Path
from typing import Any

from tidemark.errors import PipelineFileError

_NAME = re.compile(r"\w[\w.-]*")
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d\S*)?")
_JSON_VALUE = re.compile(r"null|true|false|-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?|NaN|-?Infinity")
_DATE_LENGTH = len("2013-01-01")
_MAX_CHARACTERS = 1_000_000


@dataclass(frozen=True)
class Line:
    """A row of a file."""

    number: int
    """Number of the row's last line, from 1."""
    values: dict[str, Any]
    cells: dict[str, str]
    """Texts of the values in a CSV file; empty for JSON lines."""


@dataclass(frozen=True)
class RowFile:
    """Rows of a file."""

    path: Path
    rows: tuple[Line, ...]


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
        with path.open(encoding="utf-8-sig", newline="") as file:
            text = file.read(_MAX_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise PipelineFileError(f"{path} cannot be read: {reason}. Check the path and its permissions.") from None
    if len(text) > _MAX_CHARACTERS:
        raise PipelineFileError(f"{path} has more than {_MAX_CHARACTERS:,} characters. Test with fewer rows.")
    return RowFile(path, tuple(readers[path.suffix](path, text)))


def _read_csv(path: Path, text: str) -> Iterator[Line]:
    """Yield the rows of a CSV file with a header."""
    reader = csv.DictReader(StringIO(text, newline=""))
    try:
        header = reader.fieldnames or ()
        if len(set(header)) < len(header):
            raise PipelineFileError(f"{path}:1: a column is twice in the header. Remove one of them.")
        for row in reader:
            if None in row or None in row.values():
                raise PipelineFileError(
                    f"{path}:{reader.line_num}: has more or fewer cells than the header. Write one per column."
                )
            yield Line(reader.line_num, {name: _parse_cell(cell) for name, cell in row.items()}, row)
    except csv.Error as error:
        raise PipelineFileError(f"{path}:{reader.line_num + 1}: is not CSV: {error}") from None


def _parse_cell(cell: str) -> Any:
    """Parse a cell: null, true, false, a decimal number, or a date or time in ISO 8601; else it is text.

    >>> [_parse_cell(cell) for cell in ("", "null", "true", "1.5", "2013-01-01", "#1001", "0123", "12:30", "NO")]
    [None, None, True, 1.5, datetime.date(2013, 1, 1), '#1001', '0123', '12:30', 'NO']
    """
    if not cell:
        return None
    try:
        if _TIME.fullmatch(cell):
            return date.fromisoformat(cell) if len(cell) == _DATE_LENGTH else datetime.fromisoformat(cell)
        return json.loads(cell) if _JSON_VALUE.fullmatch(cell) else cell
    except ValueError:
        return cell


def _read_json_lines(path: Path, text: str) -> Iterator[Line]:
    for number, line in enumerate(text.split("\n"), 1):  # text can contain other line breaks, such as U+2028
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict):
            raise PipelineFileError(f'{path}:{number}: is not a JSON object. Write a row such as {{"k": 1}}.')
        yield Line(number, row, {})
