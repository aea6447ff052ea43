"""Write a minimal example of a comparison as a test case of its pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.comparison.minimal_example import Event, MinimalExample, select_events, to_event
from tidemark.comparison.multiset_diff import STREAM
from tidemark.comparison.result import Cause
from tidemark.config import Pipeline
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import UserError
from tidemark.pipeline_tests.case_file import find_case_file
from tidemark.pipeline_tests.chain import Chain
from tidemark.pipeline_tests.new_case import (
    ArrivedRow,
    CaseDraft,
    NewCase,
    create_new_rows,
    draft_case,
    require_new_case,
    select_relevant_columns,
)
from tidemark.pipeline_tests.outputs import Values
from tidemark.timegrid.time_columns import to_plain_row


def name_case(number: int) -> str:
    """Return the name of the test case for a difference."""
    return f"difference {number}"


def describe_case(cause: Cause, pipeline: Pipeline, table: str) -> str:
    """Describe the test case for a difference to a table."""
    is_extra = cause.missing_in == STREAM
    name = pipeline.name
    difference = f"{name} emits a row that {table} lacks" if is_extra else f"{table} has a row that {name} lacks"
    return f"{difference}: {cause.cause}"


def check_case_file(pipeline_file: Path, file: Path, number: int) -> None:
    """Check that `tidemark test` finds the pipeline's cases in a file, and that it has none for this difference.

    Raises:
        UserError: It is another file, or it is invalid or has the case.
    """
    expected = find_case_file(pipeline_file)
    if file.resolve() != expected.resolve():
        raise UserError(
            f"--output {file}: the test cases of {pipeline_file} are in {expected}. Pass --output {expected}."
        )
    require_new_case(pipeline_file, name_case(number))


def write_test_case(example: MinimalExample, table: str, pipeline_file: Path) -> int:
    """Add a minimal example to the test file of its pipeline, with the rows that the pipeline emits for it.

    Args:
        example: The example.
        table: Table of the stream, for the description.
        pipeline_file: File of the pipeline.

    Returns:
        The number of given rows.

    Raises:
        UserError: The rows do not show the difference in the order of their arrivals, or the file is invalid.
    """
    view = example.view
    columns = {side: _choose_columns(example, side) for side in SIDES}
    sections = ["emissions", "late"]
    if view.pipeline.join.type != "inner":
        sections.append("padded")
    rows = list(create_new_rows(_list_arrived_rows(example, columns)))
    types = {str(side): {field.name: field.dataType for field in schema} for side, schema in columns.items()}
    case = NewCase(name_case(example.number), describe_case(example.cause, view.pipeline, table), rows, types, sections)
    draft = draft_case(view.spark, view.pipeline, pipeline_file, case)
    _require_same_output(example, draft)
    draft.write()
    return len(rows)


def _choose_columns(example: MinimalExample, side: SideName) -> T.StructType:
    """Return the columns of an input that matter, in the order of the pipeline's settings."""
    schema = example.view.inputs[SIDES.index(side)].side.schema
    chain = Chain.from_pipeline(example.view.pipeline)
    return next(select_relevant_columns(chain, source, schema) for source in chain.inputs if source.name == side)


def _list_arrived_rows(example: MinimalExample, columns: dict[SideName, T.StructType]) -> Iterator[ArrivedRow]:
    """Yield the rows of an example in order of arrival."""
    values = {side: _read_values(example, side, columns[side]) for side in SIDES}
    view = example.view
    for event in example.events:
        arrival = getattr(view.pipeline, event.side).arrival
        number = view.grid.number_at(event.clock)
        yield ArrivedRow(event.side, values[event.side][event], arrival, view.grid, number)


def _read_values(example: MinimalExample, side: SideName, columns: T.StructType) -> dict[Event, Values]:
    """Read the columns of an input's rows in an example, as plain values. Rows that are equal are read once."""
    events = [event for event in example.events if event.side == side]
    if not events:
        return {}
    source = example.view.inputs[SIDES.index(side)]
    rows = select_events(example.view, source, example.ignore_columns, columns.names)
    is_in_example = F.col("row_hash").isin([event.row_hash for event in events])
    is_at_time = F.col("clock").isin([event.clock for event in events])
    collected = rows.where(is_in_example & is_at_time).orderBy("clock", "tiebreak").collect()
    values = {to_event(row): to_plain_row(row["row"], columns) for row in reversed(collected)}
    return {event: values[event] for event in events}


def _require_same_output(example: MinimalExample, draft: CaseDraft) -> None:
    """Check that the case has as much output as the rows have in the order in which they show the difference.

    Raises:
        UserError: It has more or less, because rows arrive at the same time.
    """
    late = [row for row in draft.output.rows["late"] if row["reason"] == "late"]
    if (len(draft.output.rows["emissions"]), len(late)) != example.check.count_output(example.events):
        raise UserError(
            f"{name_case(example.number)}: rows arrive at the same time, and show the difference in one order only. "
            "Choose another difference, or write a vector (--output FILE.jsonl)."
        )
