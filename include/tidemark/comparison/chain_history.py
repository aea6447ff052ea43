"""Follow one input row through a chain of joins: where it comes from, and what later joins do with its emissions."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import Row, SparkSession

from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.compared_columns import find_leading_columns
from tidemark.comparison.row_history import RowHistory, describe_emission, read_row_history
from tidemark.comparison.row_lookup import MAX_ROWS, RowValues, find_emissions, find_rows, format_row, is_nameable
from tidemark.config import Pipeline
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.chain_files import load_readers
from tidemark.config.output_stream import EMITTED_AT, EMITTED_ORDER
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import UserError


def explain_rows(
    spark: SparkSession, pipeline: Pipeline, lake: str, side: SideName, values: RowValues
) -> tuple[RowHistory, ...]:
    """Return the histories of the rows of an input with these values.

    In a chain the history of each row is followed by the histories of its emissions in the pipelines that read them.

    Args:
        spark: A session.
        pipeline: The pipeline.
        lake: The lake root.
        side: The input.
        values: Texts by column, None for null; `parse_row` reads them.

    Raises:
        UserError: No such column, no such row, or more than `MAX_ROWS` rows.
        SliceOrderError: Nothing is committed.
        PipelineFileError: There is no file of a pipeline whose output is an input.
    """
    view = CommittedView.read(spark, pipeline, lake)
    readers = _Readers.read(view)
    return tuple(history for row in find_rows(view, side, values) for history in _follow_row(view, side, row, readers))


@dataclass(frozen=True)
class _Readers:
    """The pipelines that read a pipeline's output."""

    views: tuple[tuple[CommittedView, SideName, _Readers], ...]
    """Each with the input that is the output, and with the pipelines that read its own output."""
    problems: tuple[str, ...]
    """Why other pipelines that read it cannot be followed."""

    @classmethod
    def read(cls, view: CommittedView) -> _Readers:
        """Read the pipelines, as far as they have committed slices and usable inputs."""
        views, problems = list[tuple[CommittedView, SideName, _Readers]](), list[str]()
        for pipeline, side in load_readers(view.pipeline):
            try:
                reader = CommittedView.read(view.spark, pipeline, view.lake)
            except UserError as error:
                problems.append(f"{pipeline.name} reads these rows, and cannot be followed: {error}")
            else:
                views.append((reader, side, cls.read(reader)))
        return cls(tuple(views), tuple(problems))


def _follow_row(view: CommittedView, side: SideName, row: Row, readers: _Readers) -> Iterator[RowHistory]:
    """Yield the history of a row, then those of its emissions in the pipelines that read them, and so on."""
    history = read_row_history(view, side, row)
    origin = tuple(_describe_origin(view.upstreams[side], history.row)) if side in view.upstreams else ()
    emissions = [
        (reader, reading_side, next_readers, find_emissions(view, side, row, reader, reading_side))
        for reader, reading_side, next_readers in readers.views
    ]
    notes = (
        f"{reader.pipeline.name} reads more than {MAX_ROWS} of these rows; the histories of the first {MAX_ROWS} follow"
        for reader, *_, rows in emissions
        if len(rows) > MAX_ROWS
    )
    yield replace(history, steps=(*origin, *history.steps, *readers.problems, *notes))
    for reader, reading_side, next_readers, rows in emissions:
        for emission in rows[:MAX_ROWS]:
            yield from _follow_row(reader, reading_side, emission, next_readers)


def _describe_origin(upstream: CommittedView, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield which emission of a pipeline a row is and its place in the output, and how to explain its input rows."""
    name = upstream.pipeline.name
    kind = describe_emission(row["_emission"])
    yield f"emitted by {name}: {kind} in slice {row['_slice']}, at {row[EMITTED_AT]}, order {row[EMITTED_ORDER]}"
    if options := "".join(_list_input_options(upstream, row)):
        yield f"its rows there: tidemark explain {format_cli_arguments(upstream.pipeline)}{options}"


def _list_input_options(upstream: CommittedView, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of `tidemark explain` that find the input rows of an emission."""
    leading = find_leading_columns(upstream, list(row))
    for side in SIDES:
        columns = upstream.map_columns(side)
        names = [name for name in leading if name in columns and is_nameable(columns[name])]
        values = {columns[name]: row[name] for name in names if row[name] is not None}
        if values:
            yield f" --{side} {shlex.quote(format_row(values))}"
