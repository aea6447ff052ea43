"""Compare a pipeline's emissions with a table that a stream wrote, row by row, and explain the differences."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.comparison.cause_descriptions import CAUSES, UNEXPLAINED
from tidemark.comparison.causes import DETAIL_COLUMNS, ComparedViews
from tidemark.comparison.chain_causes import StreamedRows, find_causes
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.compared_columns import (
    ComparedColumns,
    align_columns,
    find_key_columns,
    find_leading_columns,
)
from tidemark.comparison.multiset_diff import BATCH, OTHER_TABLE, STREAM, diff_multisets
from tidemark.comparison.result import CHANGED_VALUE, Agreement, Cause, Comparison, ComparisonRequest, check_budget
from tidemark.comparison.setting_trials import SettingTrial
from tidemark.comparison.window_shift import describe_window_shift, find_window_shift
from tidemark.config import Pipeline
from tidemark.config.candidate_version import is_live_table
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant, from_micros, to_micros
from tidemark.delta.table_reader import DeltaInput
from tidemark.errors import UserError, prefix_errors
from tidemark.formatting import quote_identifier
from tidemark.ledger.adoption import find_adoption
from tidemark.ledger.row_content import list_unordered_columns
from tidemark.timegrid.time_columns import as_example_json, parse_example_json

_Counts = Mapping[int | None, Counter[tuple[str, str]]]
"""Number of differing rows: by the start of their slice in microseconds UTC (None if unknown), then by cause and by the
only table that has them."""


def compare(
    spark: SparkSession, pipeline: Pipeline, lake: str, request: ComparisonRequest, reference: Pipeline | None
) -> Comparison:
    """Compare the committed slices of a pipeline with a stream's table; nothing is written.

    Args:
        reference: A pipeline that describes how the stream ran, with committed slices of its own.

    Raises:
        InputError: A table or column is missing, or column types are incompatible.
        SliceOrderError: Nothing is committed, or the range is off the grid.
    """
    began = time.monotonic()
    view = CommittedView.read(spark, pipeline, lake)
    reference_view = CommittedView.read(spark, reference, lake) if reference else None
    slices = _select_range(view, request)
    batch = view.read_emissions()
    with prefix_errors(request.origin):
        table = DeltaInput.find(spark, lake, request.table, request.version)
        stored = table.read()
    stream, names, notes = align_columns(stored, batch, view, request)
    notes += _list_range_notes(view, request, slices)
    tolerances = {
        name: request.float_tolerance
        for name in names
        if request.float_tolerance and isinstance(batch.schema[name].dataType, T.FractionalType)
    }
    diff = diff_multisets(batch, stream, names, tolerances, list_unordered_columns(pipeline))
    leading = find_leading_columns(view, names)
    causes: tuple[Cause, ...] = ()
    trials: tuple[SettingTrial, ...] = ()
    counts: _Counts = {}
    if not diff.is_empty:
        views = ComparedViews(view, reference_view, to_micros(request.until) if request.until else None)
        columns = ComparedColumns(names, find_key_columns(leading, names, request), tolerances)
        is_in_range = _is_in_range(view, request, slices)
        can_search = reference_view is None and request.try_settings
        searched = StreamedRows(stream, columns.exact, is_in_range) if can_search else None
        rows, trials = find_causes(diff.differing, views, columns, searched)
        if trials and not trials[0].is_supported:
            notes.append(f"no other settings explain more rows than they contradict; the best: {trials[0].summary}")
        rows = rows.where(is_in_range)
        counts = _count_by_slice(rows)
        if any(cause == UNEXPLAINED for in_slice in counts.values() for cause, _ in in_slice):
            unexplained = rows.where(F.col("_cause") == UNEXPLAINED)
            if shift := find_window_shift(unexplained, columns.exact, list_unordered_columns(pipeline)):
                notes.append(describe_window_shift(shift))
        causes = _collect_causes(rows, counts, names, request.examples)
    agreement = _compute_agreement(counts, view, slices)
    label = view.grid.label
    return Comparison(
        pipeline=pipeline.name,
        table=request.table,
        reference=reference.name if reference else None,
        start=label(slices[0]),
        end=label(slices[-1] + 1),
        same=sum(of_slice.same for of_slice in agreement),
        causes=causes,
        agreement=agreement,
        notes=tuple(notes),
        seconds=round(time.monotonic() - began, 1),
        table_version=table.version,
        ignore_columns=(*request.ignore_columns, *tolerances),
        leading_columns=leading,
        setting_trials=trials,
        over_budget=check_budget(request.budget, agreement),
        labels=("candidate", "live") if is_live_table(request.table, pipeline) else (BATCH, STREAM),
    )


def _select_range(view: CommittedView, request: ComparisonRequest) -> range:
    """Return the committed slices in the requested range.

    Raises:
        UserError: There is none.
    """
    grid, first = view.grid, view.first_published
    start = grid.parse_boundary(request.start, "--from") if request.start else first
    end = min(grid.parse_boundary(request.end, "--to"), view.end) if request.end else view.end
    slices = range(max(start, first), end)
    if not any(number in view.ledger.entries for number in slices):
        raise UserError(
            f"{view.pipeline.name} has no committed slice from {grid.label(start)} to {grid.label(end)} (exclusive). "
            f"Choose a range within {grid.label(first)} to {grid.label(view.end)}."
        )
    return slices


def _list_range_notes(view: CommittedView, request: ComparisonRequest, slices: range) -> Iterator[str]:
    """Yield a note for requested slices without emissions of the pipeline: adopted or skipped ones."""
    label = view.grid.label
    adoption = find_adoption(view.ledger.entries)
    first = slices[0]
    begins_later = not request.start or request.start < view.grid.datetime_of(slices[0])
    if begins_later and adoption:
        yield f"slices before {label(first)} are not compared: they are adopted from {adoption.source.table}"
    elif begins_later and first > 0:
        yield f"slices before {label(first)} are not compared: they are not committed"
    for skipped in view.skipped_slices:
        if skipped.start <= slices[-1] and skipped.stop > first:
            start, end = label(skipped.start), label(skipped.stop)
            yield f"slices from {start} to {end} (exclusive) are not compared: they are not committed"


def _is_in_range(view: CommittedView, request: ComparisonRequest, slices: range) -> Column:
    """Return True for rows of the compared slices, of slices that are not due yet, and of unknown slices."""
    slice_start = F.col("_slice")
    in_range = slice_start >= F.lit(view.grid.datetime_of(slices[0]))
    if request.end:
        in_range = in_range & (slice_start < F.lit(request.end))
    return view.is_comparable(slice_start) & F.coalesce(in_range, F.lit(True))


def _count_by_slice(rows: DataFrame) -> _Counts:
    by_cause = rows.groupBy(F.unix_micros("_slice").alias("start"), "_cause", "_only_in")
    counts: defaultdict[int | None, Counter[tuple[str, str]]] = defaultdict(Counter)
    for row in by_cause.agg(F.sum("_copies").alias("rows")).collect():
        counts[row["start"]][row["_cause"], row["_only_in"]] = row["rows"]
    return counts


def _collect_causes(rows: DataFrame, counts: _Counts, names: list[str], examples: int) -> tuple[Cause, ...]:
    """Return the causes in the order of `CAUSES`, each with so many examples."""
    changed = F.when(F.col("_cause") == CHANGED_VALUE, F.col("_changed")).alias("_changed")
    hashes = (f"_{side}" for side in SIDES)
    shown_columns = dict.fromkeys(map(quote_identifier, (*names, "_emission", "_slice", *DETAIL_COLUMNS[1:])))
    content = as_example_json(F.struct(*shown_columns, changed, *hashes))
    by_cause = Window.partitionBy("_cause", "_only_in").orderBy("_slice", content)
    first = rows.withColumn("_rank", F.row_number().over(by_cause)).where(F.col("_rank") <= examples)
    collected = first.select("_cause", "_only_in", "_rank", content.alias("row")).collect()
    shown: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(collected, key=lambda row: row["_rank"]):
        shown.setdefault((row["_cause"], row["_only_in"]), []).append(parse_example_json(row["row"], rows.schema))
    order = list(CAUSES)
    totals = sum(counts.values(), Counter[tuple[str, str]]())
    causes = (
        Cause(cause, OTHER_TABLE[only_in], number, tuple(shown.get((cause, only_in), ())))
        for (cause, only_in), number in totals.items()
    )
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
        surplus = Counter({BATCH: 0, STREAM: 0})
        for (cause, only_in), rows in in_slice.items():
            causes[cause] += rows
            surplus[only_in] += rows if cause != "pending" else 0
        return Agreement(
            slice=None if start is None else format_instant(from_micros(start)),
            run=entry.output_version if entry else None,
            same=starts[start] - sum(rows for (_, only_in), rows in in_slice.items() if only_in == BATCH),
            only_batch=surplus[BATCH],
            only_stream=surplus[STREAM],
            unexplained=causes["unexplained"],
            pending=causes["pending"],
            causes=dict(causes),
            changed=min(in_slice[CHANGED_VALUE, table] for table in (BATCH, STREAM)),
        )

    return tuple(map(summarize, starts))
