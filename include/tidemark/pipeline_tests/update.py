"""Write the output of test cases into their file as the expected rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from math import isfinite, isnan
from pathlib import Path
from typing import Any

from pyspark.sql import types as T

from tidemark.config.safe_yaml import Span, YamlDocument
from tidemark.config.types import format_instant, to_micros
from tidemark.errors import UserError
from tidemark.pipeline_tests.case_file import Case, CaseFile
from tidemark.pipeline_tests.case_settings import Section
from tidemark.pipeline_tests.chain import Chain, split_name
from tidemark.pipeline_tests.outputs import CaseOutput, Types, Values
from tidemark.pipeline_tests.runner import CaseRun
from tidemark.timegrid.slices import Grid

_PLAIN_TEXT = re.compile(r"[A-Za-z_][\w .-]*|\d{4}-\d\d-\d\dT[\d:.]+Z?")
_WORDS = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
_DEFAULT_COLUMNS = {"late": ("reason",), "carried": ("side",)}


def update_case_file(file: CaseFile, runs: Sequence[CaseRun], grid: Grid) -> int:
    """Replace the expected rows of failed cases by their output; other lines of the file stay.

    Cases that were refused, or whose rows depend on the cut, are not changed.

    Args:
        file: The test file.
        runs: Runs of its cases.
        grid: Grid of the pipeline.

    Returns:
        The number of changed cases.

    Raises:
        UserError: The file cannot be written, or several keys share the rows of an anchor.
    """
    text, updated = render_updates(file, runs, grid)
    if updated:
        write_case_file(file.path, text)
    return updated


def render_updates(file: CaseFile, runs: Sequence[CaseRun], grid: Grid) -> tuple[str, int]:
    """Return the text of a test file with the output of failed cases as expected rows, and the number of these cases.

    Args: as `update_case_file`.

    Raises:
        UserError: Several keys share the rows of an anchor.
    """
    edits: list[tuple[Span, str]] = []
    updated = 0
    for run in runs:
        if run.output is None or run.result.status == "passed" or any(part.note for part in run.result.differences):
            continue
        if case_edits := list(_edit_case(file, run.case, run.output, grid)):
            edits += case_edits
            updated += 1
    if len({span.start for span, _ in edits}) < len(edits):
        raise UserError(f"{file.path} cannot be updated: an anchor and its alias share rows. Write the rows twice.")
    text = file.document.text
    for span, replacement in sorted(edits, key=lambda edit: edit[0].start, reverse=True):
        text = text[: span.start] + replacement + text[span.end :]
    return text, updated


def write_case_file(path: Path, text: str) -> None:
    """Write a test file; its folder is created.

    Raises:
        UserError: The file cannot be written.
    """
    try:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}. Check its permissions.") from None


def _edit_case(file: CaseFile, case: Case, output: CaseOutput, grid: Grid) -> Iterable[tuple[Span, str]]:
    """Yield the parts of the file with a case's expected rows, and their replacement."""
    document = file.document
    for section in case.expected:
        span = document.spans["cases", case.name, "expect", section]
        extent = trim_extent(document, span)
        columns = _choose_columns(file.chain, case, section, output)
        is_in_braces = document.text[document.spans["cases", case.name, "expect"].start] == "{"
        text = _render_section(case, section, output, columns, grid, None if is_in_braces else span.indent)
        is_after_comment = document.text[extent.start - 1] != ":" and not text.startswith("\n")
        yield extent, f"\n{' ' * (span.indent + 2)}{text.strip()}" if is_after_comment else text


def trim_extent(document: YamlDocument, span: Span) -> Span:
    """Return the extent of a block without the blank lines and comments after it, which the parser includes."""
    content = document.text[span.start : span.end]
    lines = content.splitlines(keepends=True)
    while len(lines) > 1 and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    start = len(document.text[: span.start].rstrip())  # a block begins in the line after its key
    text = "".join(lines).rstrip()
    return Span(start, span.start + len(text), span.line, span.indent)


def _render_section(
    case: Case, name: str, output: CaseOutput, columns: Sequence[str], grid: Grid, indent: int | None
) -> str:
    """Render the rows of a section as the value of its key, which is indented by `indent`, or in braces if None."""
    join_output, section = output.find_join(name)
    types = join_output.types[section]
    slices = case.list_slices(name)
    if slices is None:
        return _render_rows(section, output.select_rows(name, case.expected), columns, types, indent)
    if section == "carried":
        by_slice = {
            format_instant(start): join_output.carried_by_slice(grid.number_at(to_micros(start))) for start in slices
        }
    else:
        by_slice = {format_instant(start): [] for start in slices}
        for row in output.select_rows(name, case.expected):
            by_slice.setdefault(row["_slice"], []).append(row)
    if indent is None:
        parts = (f"{start}:{_render_rows(section, rows, columns, types, None)}" for start, rows in by_slice.items())
        return f" {{{', '.join(sorted(parts))}}}"
    indent += 2
    lines = [
        f"\n{' ' * indent}{start}:{_render_rows(section, rows, columns, types, indent)}"
        for start, rows in sorted(by_slice.items())
    ]
    return "".join(lines)


def _render_rows(
    section: Section, rows: Sequence[Values], columns: Sequence[str], types: Types, indent: int | None
) -> str:
    if not rows:
        return " []"
    has_sides = section in ("late", "carried")  # a row is of one side, and the columns of the other are null
    lines = sorted(render_row(row, columns, types, omit_nulls=has_sides) for row in rows)
    if indent is None:
        return f" [{', '.join(lines)}]"
    return "".join(f"\n{' ' * (indent + 2)}- {line}" for line in lines)


def _choose_columns(chain: Chain, case: Case, name: str, output: CaseOutput) -> list[str]:
    """Return the columns that a section's rows name, or else those that the given rows have."""
    names = dict.fromkeys(column for row in case.expected[name] for column in row.values)
    if names:
        return list(names)
    join, join_output, section = split_name(name)[0], *output.find_join(name)
    given = dict.fromkeys(
        column
        for row in case.given
        if row.input_name
        for column_in_row in row.values
        for column in chain.find_output_columns(join, row.input_name, column_in_row)
    )
    types = join_output.types[section]
    chosen = [column for column in (*_DEFAULT_COLUMNS.get(section, ()), *given) if column in types]
    return chosen or [column for column in types if not column.startswith("_")]


def render_row(row: Values, columns: Iterable[str], types: Types, *, omit_nulls: bool = False) -> str:
    """Render a row as a map of YAML in one line.

    >>> row = {"left_k": "a", "left_v": None, "right_t": "2013-01-01T05:00Z"}
    >>> render_row(row, row, {"right_t": T.TimestampType()})
    '{left_k: a, left_v: null, right_t: 2013-01-01T05:00Z}'
    """
    values = {name: row.get(name) for name in columns}
    if omit_nulls:
        values = {name: value for name, value in values.items() if value is not None} or values
    cells = (f"{render_value(name)}: {render_value(value, types.get(name))}" for name, value in values.items())
    return f"{{{', '.join(cells)}}}"


def render_value(value: Any, dtype: T.DataType | None = None) -> str:
    """Render a plain value as YAML in one line, so that a test file reads it as a value of its type.

    >>> [render_value(value) for value in ("a b", "no", "1", 1.5, 1e16, None, [{"k": "a"}])]
    ['a b', '"no"', '"1"', '1.5', '1.0e+16', 'null', '[{"k": "a"}]']
    >>> [render_value("2013-01-01T05:00Z", dtype) for dtype in (T.TimestampType(), T.StringType())]
    ['2013-01-01T05:00Z', '"2013-01-01T05:00Z"']
    """
    is_plain = isinstance(value, str) and _PLAIN_TEXT.fullmatch(value) and value.lower() not in _WORDS
    if is_plain and value == value.strip() and not (isinstance(dtype, T.StringType) and value[0].isdigit()):
        return str(value)
    return _render_json(value)


def _render_json(value: Any) -> str:
    """Render a value as JSON that is YAML too: numbers have a dot, and invisible characters are escaped."""
    match value:
        case dict():
            return f"{{{', '.join(f'{_render_json(key)}: {_render_json(item)}' for key, item in value.items())}}}"
        case list():
            return f"[{', '.join(map(_render_json, value))}]"
        case str():
            text = json.dumps(value, ensure_ascii=False)
            return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in text)
        case float() if not isfinite(value):
            return ".nan" if isnan(value) else ".inf" if value > 0 else "-.inf"
        case float():
            text = repr(value)
            return text if "." in text else text.replace("e", ".0e")
    return json.dumps(value)
