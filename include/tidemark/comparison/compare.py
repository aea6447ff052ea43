"""Compare a pipeline's emissions with a table that a stream wrote, row by row, and explain the differences."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.comparison.causes import (
    CAUSES,
    DETAIL_COLUMNS,
    ComparedViews,
    assign_causes,
    attribute_to_settings,
)
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.multiset_diff import BATCH, STREAM, diff_multisets
from tidemark.comparison.result import CHANGED_VALUE, Agreement, Cause, Comparison, ComparisonRequest, check_budget
from tidemark.comparison.setting_search import PROVENANCE_COLUMNS, WINDOW_COLUMNS
from tidemark.comparison.setting_trials import SettingTrial
from tidemark.config import Pipeline
from tidemark.config.candidate_version import is_live_table
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant, from_micros, to_micros
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import InputError, UserError, prefix_errors, suggest_name
from tidemark.formatting import quote_identifier
from tidemark.joins.window_output import SEMI_ANTI_TYPES
from tidemark.ledger.adoption import find_adoption
from tidemark.timegrid.time_columns import as_example_json, parse_example_json

NOT_COMPARED = ("_slice", "_pane", "_result_time")
"""Columns of emissions that only Tidemark can provide."""
_TIME_TYPES = (T.TimestampType, T.TimestampNTZType, T.DateType)
_Counts = Mapping[int | None, Counter[tuple[str, str]]]
"""Number of differing rows: by the start of their slice in microseconds UTC (None if unknown), then by cause and by the
table that they are missing in."""


def compare(
    spark: SparkSession, pipeline: Pipeline, lake: str, request: ComparisonRequest, reference: Pipeline | None
) -> Comparison:
    """Compare the committed slices of a pipeline with a stream's table; nothing is written.

    Args:
        reference: a pipeline that describes how the stream ran, with committed slices of its own.

    Raises:
        InputError: a table or column is missing, or column types are incompatible.
        SliceOrderError: nothing is committed, or the range is off the grid.
    """
    began = time.monotonic()
    view = CommittedView.read(spark, pipeline, lake)
    reference_view = CommittedView.read(spark, reference, lake) if reference else None
    request, adoption_notes = _exclude_adopted_slices(view, request)
    slices = _select_range(view, request)
    batch = view.read_emissions()
    with prefix_errors(request.origin):
        stored = DeltaInput.find(spark, lake, request.table, request.version).read()
    stream, names, notes = _align_columns(stored, batch, view, request)
    notes += adoption_notes
    tolerances = {
        name: request.float_tolerance
        for name in names
        if request.float_tolerance and isinstance(batch.schema[name].dataType, T.FractionalType)
    }
    diff = diff_multisets(batch, stream, names, tolerances)
    leading = _find_leading_columns(view, names)
    causes: tuple[Cause, ...] = ()
    trials: tuple[SettingTrial, ...] = ()
    counts: _Counts = {}
    if not diff.is_empty:
        views = ComparedViews(view, reference_view, to_micros(request.until) if request.until else None)
        rows = assign_causes(diff.differing, views, names, _find_key_columns(leading, names, request))
        can_search = reference_view is None and request.try_settings
        if can_search and not rows.where(_is_in_range(request) & (F.col("_cause") == "unexplained")).isEmpty():
            exact = [name for name in names if name not in tolerances]
            rows, trials = attribute_to_settings(rows, views, stream, exact)
            if trials and not trials[0].is_supported:
                notes.append(f"no other settings explain more rows than they contradict; the best: {trials[0].summary}")
        rows = rows.where(_is_in_range(request))
        counts = _count_by_slice(rows)
        causes = _collect_causes(rows, counts, names, request.examples)
    agreement = _compute_agreement(counts, view, slices)
    label = view.grid.label
    return Comparison(
        pipeline=pipeline.name,
        table=request.table,
        reference=reference.name if reference else None,
        start=label(slices[0]),
        end=label(slices[-1] + 1),
        same=sum(each.same for each in agreement),
        causes=causes,
        agreement=agreement,
        notes=tuple(notes),
        seconds=round(time.monotonic() - began, 1),
        leading_columns=leading,
        setting_trials=trials,
        over_budget=check_budget(request.budget, agreement),
        labels=("candidate", "live") if is_live_table(request.table, pipeline) else (BATCH, STREAM),
    )


def _select_range(view: CommittedView, request: ComparisonRequest) -> range:
    """Return the committed slices in the requested range.

    Raises:
        UserError: there is none.
    """
    grid, first = view.grid, view.first_published
    start = grid.parse_boundary(request.start, "--from") if request.start else first
    end = min(grid.parse_boundary(request.end, "--to"), view.end) if request.end else view.end
    if end <= start:
        raise UserError(
            f"{view.pipeline.name} has no committed slice from {grid.label(start)} to {grid.label(end)} (exclusive). "
            f"Choose a range within {grid.label(first)} to {grid.label(view.end)}."
        )
    return range(start, end)


def _exclude_adopted_slices(
    view: CommittedView, request: ComparisonRequest
) -> tuple[ComparisonRequest, tuple[str, ...]]:
    """Begin the requested range after adopted slices, which have no emissions, and return a note."""
    adoption = find_adoption(view.ledger.entries)
    if adoption is None:
        return request, ()
    end = view.grid.datetime_of(adoption.end)
    if request.start and request.start >= end:
        return request, ()
    note = f"slices before {view.grid.label(adoption.end)} are not compared: they are adopted from"
    return replace(request, start=end), (f"{note} {adoption.source.table}",)


def _is_in_range(request: ComparisonRequest) -> Column:
    """Return True for rows of slices in the requested range, and for rows of unknown slices."""
    slice_start, in_range = F.col("_slice"), F.lit(True)
    if request.start:
        in_range = in_range & (slice_start >= F.lit(request.start))
    if request.end:
        in_range = in_range & (slice_start < F.lit(request.end))
    return F.coalesce(in_range, F.lit(True))


def _align_columns(
    stream: DataFrame, batch: DataFrame, view: CommittedView, request: ComparisonRequest
) -> tuple[DataFrame, list[str], list[str]]:
    """Cast the stream's rows to the types of the batch.

    Returns:
        The rows, the columns to compare, and notes for the user.

    Raises:
        UserError: a column to ignore does not exist.
        InputError: a column is missing or has an incompatible type.
    """
    ignored, notes = {*NOT_COMPARED, *request.ignore_columns}, []
    setting = "select" if view.pipeline.explode is None else "explode"
    for name in request.ignore_columns:
        if name not in batch.columns:
            raise UserError(f"ignore_columns: {_describe_missing('the emissions', name, batch.columns)}")
    names = [name for name in batch.columns if name not in ignored]
    if "_emission" in names and "_emission" not in stream.columns:
        emission = _derive_emission(stream, view)
        stream = stream if emission is None else stream.withColumn("_emission", emission)
    for name in [name for name in names if name not in stream.columns]:
        if name not in PROVENANCE_COLUMNS:
            missing = _describe_missing(f"table {request.table}", name, stream.columns)
            raise InputError(f"{missing} Or pass --set ignore_columns={name}, or leave it out of `{setting}`.")
        names.remove(name)
        notes.append(f"{name} is not compared: {request.table} does not contain it")
    extra = sorted(set(stream.columns) - set(batch.columns))
    if extra:
        notes.append(f"not compared, because only {request.table} contains it: {', '.join(extra)}")
    columns = [_cast(stream, name, batch.schema[name].dataType, request.table) for name in names]
    return stream.select(*columns), names, notes


def _derive_emission(stream: DataFrame, view: CommittedView) -> Column | None:
    """Derive `_emission` from null columns; None if the stream's columns do not allow it."""
    join_type = view.pipeline.join.type
    if join_type in SEMI_ANTI_TYPES:
        return F.lit({"semi": "semi", "anti": "anti"}[join_type])
    emission = F.lit("matched")
    for side, other in zip(SIDES, reversed(SIDES), strict=True):
        columns = [name for name in view.map_columns(other) if name in stream.columns]
        if join_type in {side, "full"}:
            if not columns:
                return None
            is_absent = F.coalesce(*(F.col(quote_identifier(name)).cast("string") for name in columns)).isNull()
            emission = F.when(is_absent, F.lit(f"padded_{side}")).otherwise(emission)
    return emission


def _cast(stream: DataFrame, name: str, dtype: T.DataType, table: str) -> Column:
    """Cast a column of the stream to the type of the emissions.

    Raises:
        InputError: the types are neither both numbers nor both times.
    """
    given, column = stream.schema[name].dataType, F.col(quote_identifier(name))
    if given.simpleString() == dtype.simpleString():
        return column
    are_numbers = isinstance(given, T.NumericType) and isinstance(dtype, T.NumericType)
    if not are_numbers and not (isinstance(given, _TIME_TYPES) and isinstance(dtype, _TIME_TYPES)):
        raise InputError(
            f"column {name} is {given.simpleString()} in table {table} and {dtype.simpleString()} in the emissions. "
            f"Cast it in either, or pass --set ignore_columns={name}."
        )
    cast = column.try_cast(dtype)
    # A number that the other type cannot represent is a different value.
    return (F.when(cast.try_cast(given) == column, cast) if are_numbers else cast).alias(name)


def _find_leading_columns(view: CommittedView, names: list[str]) -> tuple[str, ...]:
    """Return the compared columns that are keys, event times or bounds of windows."""
    pipeline, leading = view.pipeline, list[str]()
    for side in SIDES:
        keys = (pair.list_column_candidates(side) for pair in pipeline.join.keys)
        sources = {getattr(pipeline, side).event_time.column}.union(*keys)
        leading += [name for name, column in view.map_columns(side).items() if column in sources]
    return tuple(name for name in (*leading, *WINDOW_COLUMNS) if name in names)


def _find_key_columns(leading: Sequence[str], names: list[str], request: ComparisonRequest) -> list[str]:
    """Return the columns that identify a row.

    Raises:
        UserError: a requested one is not compared.
    """
    for name in request.key_columns:
        if name not in names:
            raise UserError(f"key_columns: {_describe_missing('the comparison', name, names)}")
    if request.key_columns:
        return list(request.key_columns)
    # Without keys and event times any row could be another one with changed values.
    is_identifying = any(name not in WINDOW_COLUMNS for name in leading)
    return [name for name in names if name in leading or name in PROVENANCE_COLUMNS] if is_identifying else names


def _describe_missing(table: str, name: str, columns: list[str]) -> str:
    return f"{table} has no column {name}. {suggest_name(name, columns)}"


def _count_by_slice(rows: DataFrame) -> _Counts:
    by_cause = rows.groupBy(F.unix_micros("_slice").alias("start"), "_cause", "_missing_in")
    counts: defaultdict[int | None, Counter[tuple[str, str]]] = defaultdict(Counter)
    for row in by_cause.agg(F.sum("_copies").alias("rows")).collect():
        counts[row["start"]][row["_cause"], row["_missing_in"]] = row["rows"]
    return counts


def _collect_causes(rows: DataFrame, counts: _Counts, names: list[str], examples: int) -> tuple[Cause, ...]:
    """Return the causes in the order of `CAUSES`, each with so many examples."""
    changed = F.when(F.col("_cause") == CHANGED_VALUE, F.col("_changed")).alias("_changed")
    hashes = (f"_{side}" for side in SIDES)
    content = as_example_json(F.struct(*names, "_slice", *DETAIL_COLUMNS[1:], changed, *hashes))
    by_cause = Window.partitionBy("_cause", "_missing_in").orderBy("_slice", content)
    first = rows.withColumn("_rank", F.row_number().over(by_cause)).where(F.col("_rank") <= examples)
    collected = first.select("_cause", "_missing_in", "_rank", content.alias("row")).collect()
    shown: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(collected, key=lambda row: row["_rank"]):
        shown.setdefault((row["_cause"], row["_missing_in"]), []).append(parse_example_json(row["row"], rows.schema))
    order = list(CAUSES)
    totals = sum(counts.values(), Counter[tuple[str, str]]())
    causes = (Cause(*key, number, tuple(shown.get(key, ()))) for key, number in totals.items())
    return _number_examples(sorted(causes, key=lambda cause: (order.index(cause.cause), cause.missing_in)))


def _number_examples(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """Add `_number` to the examples: 1, 2 and so on over all causes, deterministically."""
    numbers = count(1)
    return tuple(
        replace(cause, examples=tuple({"_number": next(numbers), **example} for example in cause.examples))
        for cause in causes
    )


def _compute_agreement(counts: _Counts, view: CommittedView, slices: range) -> tuple[Agreement, ...]:
    """Return the agreement of every committed slice of the range, then of the rows without a slice."""
    emitted = view.ledger.rows.set_index("number")["emissions"].to_dict()
    starts: dict[int | None, int] = {view.grid.start_of(n): int(emitted[n]) for n in slices if n in emitted}
    starts |= {start: 0 for start in counts if start not in starts}

    def summarize(start: int | None) -> Agreement:
        entry = None if start is None else view.ledger.entry(view.grid.number_at(start))
        in_slice, causes = counts.get(start, Counter()), Counter[str]()
        missing = Counter({STREAM: 0, BATCH: 0})
        for (cause, missing_in), rows in in_slice.items():
            causes[cause] += rows
            missing[missing_in] += rows if cause != "pending" else 0
        return Agreement(
            slice=None if start is None else format_instant(from_micros(start)),
            run=entry.output_version if entry else None,
            same=starts[start] - sum(rows for (_, missing_in), rows in in_slice.items() if missing_in == STREAM),
            only_batch=missing[STREAM],
            only_stream=missing[BATCH],
            unexplained=causes["unexplained"],
            pending=causes["pending"],
            causes=dict(causes),
            changed=min(in_slice[CHANGED_VALUE, table] for table in (BATCH, STREAM)),
        )

    return tuple(map(summarize, starts))
