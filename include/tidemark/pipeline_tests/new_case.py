"""Add a case with given rows to a test file, and expect the output that these rows have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import types as T

from tidemark.config import Pipeline, TimeColumn
from tidemark.errors import PipelineFileError, UserError
from tidemark.pipeline_tests.case_file import (
    Case,
    CaseFile,
    find_case_file,
    parse_case_file,
    read_case_file,
)
from tidemark.pipeline_tests.chain import Chain, TableInput
from tidemark.pipeline_tests.columns import create_schemas, list_columns_read_in_chain, list_role_types
from tidemark.pipeline_tests.outputs import CaseOutput, Values
from tidemark.pipeline_tests.runner import run_case_files
from tidemark.pipeline_tests.update import render_row, render_updates, render_value, trim_extent, write_case_file
from tidemark.timegrid.slices import Grid

_INFERRED_TYPES = (T.StringType(), T.LongType(), T.DoubleType(), T.BooleanType())
"""Types that follow from values other than null."""


@dataclass(frozen=True)
class NewRow:
    """A given row of a new case."""

    input_name: str
    """Name of the input in the file."""
    values: Values
    """Plain values by column (`timegrid.time_columns.to_plain_row`)."""
    slice_start: str | None = None
    """Start of the row's slice, if the slice begins with this row and its column has no arrival."""


@dataclass(frozen=True)
class ArrivedRow:
    """A given row of a new case, with its arrival."""

    input_name: str
    values: Values
    arrival: object
    """Setting `arrival` of the input."""
    grid: Grid
    slice_number: int
    """The slice that read the row."""


def create_new_rows(rows: Iterable[ArrivedRow]) -> Iterator[NewRow]:
    """Yield the rows of a case in order of arrival, with their slices where arrivals are no column."""
    current = None
    for row in rows:
        begins_slice = not isinstance(row.arrival, TimeColumn | None) and row.slice_number != current
        current = row.slice_number if begins_slice else current
        yield NewRow(row.input_name, row.values, row.grid.label(row.slice_number) if begins_slice else None)


@dataclass(frozen=True)
class NewCase:
    """A case without expected rows."""

    name: str
    description: str
    rows: Sequence[NewRow]
    """Rows in order of arrival."""
    types: Mapping[str, Mapping[str, T.DataType]]
    """Types of the columns of the inputs, by the names of the inputs."""
    sections: Sequence[str]
    """Names of the sections of expected rows."""


@dataclass(frozen=True)
class CaseDraft:
    """The text of a test file with a new case, and the output of the case."""

    path: Path
    text: str
    output: CaseOutput

    def write(self) -> None:
        """Write the file.

        Raises:
            UserError: The file cannot be written.
        """
        write_case_file(self.path, self.text)


def select_relevant_columns(chain: Chain, source: TableInput, schema: T.StructType) -> T.StructType:
    """Select the columns of an input that the settings of a chain read: those that matter in a case."""
    read = list_columns_read_in_chain(chain, source.join, source.side, schema.names)
    names = dict.fromkeys([*read, *list_role_types(source.pipeline, source.side)])
    return T.StructType([schema[name] for name in names if name in schema.names])


def require_new_case(pipeline_file: Path, name: str) -> None:
    """Check that a test file is valid, if it exists, and has no case of a name.

    Raises:
        UserError: The file is invalid or has the case.
    """
    path = find_case_file(pipeline_file)
    if path.is_file() and name in read_case_file(pipeline_file).settings.cases:
        raise UserError(f"{path} has a case {name!r} already. Rename or remove that case.")


def draft_case(spark: SparkSession, pipeline: Pipeline, pipeline_file: Path, case: NewCase) -> CaseDraft:
    """Run a new case, and add it with its output to the text of the pipeline's test file.

    Args:
        spark: A session.
        pipeline: The pipeline.
        pipeline_file: Its file.
        case: The case.

    Raises:
        UserError: The rows are refused, do not fit the other cases, or have another output under other cuts.
    """
    path = find_case_file(pipeline_file)
    try:
        file = _add_case(spark, pipeline_file, case)
    except PipelineFileError as error:
        raise UserError(f"{case.name} does not fit the other cases of {path}: {error}") from None
    [run] = run_case_files(spark, [replace(file, selection=frozenset({case.name}))])
    if run.output is None:
        raise UserError(f"{case.name} cannot be a test case: {run.result.message}")
    if any(part.note for part in run.result.differences):
        raise UserError(
            f"{case.name} cannot be a test case, because its rows depend on the slices. Report a bug of Tidemark."
        )
    text, _ = render_updates(file, [run], Grid.from_config(pipeline.slices))
    return CaseDraft(path, text, run.output)


def _add_case(spark: SparkSession, pipeline_file: Path, case: NewCase) -> CaseFile:
    """Add a case to a test file, and declare the types that do not follow from its values.

    Raises:
        PipelineFileError: The file is invalid with this case.
    """
    inputs = Chain.load(pipeline_file).inputs
    few = {
        source.name: _list_other_types(case, source.name, list_role_types(source.pipeline, source.side))
        for source in inputs
    }
    for declared in (few, case.types):
        file = parse_case_file(pipeline_file, _insert_case(pipeline_file, case, declared))
        schemas = create_schemas(spark, file, _find_case(file, case))
        types = ((schemas[name], columns) for name, columns in case.types.items())
        if all(schema[name].dataType == dtype for schema, columns in types for name, dtype in columns.items()):
            break
    for other in file.cases:
        create_schemas(spark, file, other)
    return file


def _find_case(file: CaseFile, new: NewCase) -> Case:
    return next(case for case in file.cases if case.name == new.name)


def _list_other_types(case: NewCase, input_name: str, roles: Mapping[str, T.DataType]) -> dict[str, T.DataType]:
    """Return the types of columns that do not follow from the column's role or values."""
    rows = [row.values for row in case.rows if row.input_name == input_name]
    given = {name for values in rows for name, value in values.items() if value is not None}

    def is_inferred(name: str, dtype: T.DataType) -> bool:
        if name in roles:
            return roles[name] == dtype
        return dtype == T.StringType() or (name in given and dtype in _INFERRED_TYPES)

    return {name: dtype for name, dtype in case.types[input_name].items() if not is_inferred(name, dtype)}


def _insert_case(pipeline_file: Path, case: NewCase, declared: Mapping[str, Mapping[str, T.DataType]]) -> str:
    """Return the text of a test file with a case after its last one."""
    path = find_case_file(pipeline_file)
    if not path.is_file():
        return "cases:\n" + "\n".join(_render_case(case, declared, 2)) + "\n"
    file = read_case_file(pipeline_file)
    document, last = file.document, list(file.settings.cases)[-1:]
    cases = document.spans["cases",]
    if not last or document.text[cases.start] == "{":
        raise PipelineFileError(f"{document.locate('cases')}: cases is written in braces. Write each case in a line.")
    span = document.spans["cases", *last]
    end = trim_extent(document, span).end
    # A comment may follow in the same line.
    line_end = document.text.find("\n", end)
    end = len(document.text) if line_end < 0 else line_end
    lines = "\n".join(_render_case(case, declared, span.indent))
    return f"{document.text[:end]}\n\n{lines}\n{document.text[end + 1 :]}"


def _render_case(case: NewCase, declared: Mapping[str, Mapping[str, T.DataType]], indent: int) -> Iterator[str]:
    """Yield the lines of a case with empty lists of expected rows."""
    first, second, third = (" " * (indent + more) for more in (0, 2, 4))
    yield f"{first}{render_value(case.name)}:"
    yield f"{second}description: {render_value(case.description)}"
    yield f"{second}given:"
    for row in case.rows:
        if row.slice_start:
            yield f"{third}- slice: {row.slice_start}"
        yield f"{third}- {row.input_name}: {render_row(row.values, row.values, case.types[row.input_name])}"
    yield f"{second}drain: true"
    if any(declared.values()):
        yield f"{second}columns:"
    for input_name, types in declared.items():
        if types:
            columns = ", ".join(f"{render_value(name)}: {render_value(t.simpleString())}" for name, t in types.items())
            yield f"{third}{input_name}: {{{columns}}}"
    yield f"{second}expect:"
    yield from (f"{third}{section}: []" for section in case.sections)
