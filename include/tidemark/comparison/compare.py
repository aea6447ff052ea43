"""Compare a pipeline's emissions with a table that a stream wrote, row by row, and say why they differ."""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import count
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.comparison.causes import CAUSES, DETAILS, Sides, with_causes, with_other_settings
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.multiset_diff import BATCH, STREAM, align
from tidemark.comparison.setting_search import PROVENANCE, WINDOWS, Tried
from tidemark.config import Budget, Pipeline
from tidemark.config.sides import SIDES
from tidemark.config.types import format_instant, from_micros, micros
from tidemark.delta.pipeline_tables import DeltaInput
from tidemark.errors import InputError, UserError, nearest
from tidemark.formatting import quoted
from tidemark.joins.window_output import HALVES

NOT_COMPARED = ("_slice", "_pane", "_result_time")
"""What Tidemark adds to emissions and an engine does not tell."""
_TIMES = (T.TimestampType, T.TimestampNTZType, T.DateType)
_Counts = Mapping[int | None, Counter[tuple[str, str]]]
"""Rows that differ: by the start of their slice in microseconds (None where that is not known), then by cause and the
side that they are missing in."""


@dataclass(frozen=True)
class Asked:
    """What a user wants compared."""

    table: str
    """The stream's table: a Delta path relative to the lake root, or a catalog name."""
    start: datetime | None = None
    """First slice (inclusive); the first committed one by default."""
    end: datetime | None = None
    """End of the last slice (exclusive); of the last committed one by default."""
    until: datetime | None = None
    """The clock up to which the stream has come (exclusive); as far as the batch by default."""
    identity: tuple[str, ...] = ()
    """Columns by which rows are the same but for a changed value; keys, event times and windows by default, and all
    columns where none of the first two is there."""
    ignored: tuple[str, ...] = ()
    """Columns that are not compared."""
    within: float = 0.0
    """How much floating point and decimal numbers may differ."""
    examples: int = 3
    """Rows to show for each cause."""
    try_settings: bool = True
    """Whether other settings are tried for rows without a cause: replays of all slices."""
    budget: Budget = field(default_factory=Budget)
    """How many rows may differ."""


@dataclass(frozen=True)
class Cause:
    """Rows that differ for one reason."""

    cause: str
    missing_in: str
    """`stream` or `batch`."""
    rows: int
    examples: tuple[dict[str, Any], ...]
    """Rows, each with its `_number` among all examples, the columns `_changed` of a changed value, and `_left` and
    `_right`: the hashes of its input rows."""


@dataclass(frozen=True)
class Agreement:
    """One slice: emissions on both sides, and those that only one has, pending ones left out."""

    slice: str | None
    """The slice's start; None for rows of the stream that no slice can be told of."""
    run: str | None
    """The ledger's run that was compared; None where the slice is not committed."""
    same: int
    only_batch: int
    only_stream: int
    unexplained: int
    pending: int
    causes: dict[str, int]
    """Rows by their cause, pending ones too."""


@dataclass(frozen=True)
class Comparison:
    """The answer: how many rows agree, and why each of the others does not."""

    pipeline: str
    table: str
    reference: str | None
    """The pipeline that tells how the stream ran."""
    start: str
    end: str
    same: int
    causes: tuple[Cause, ...]
    agreement: tuple[Agreement, ...]
    notes: tuple[str, ...]
    seconds: float
    leading: tuple[str, ...] = ()
    """The columns that tell most about a row: keys and event times, of windows their bounds."""
    tried: tuple[Tried, ...] = ()
    """Other settings that were tried for rows without a cause, the best first; one that `holds` is named."""
    over_budget: tuple[str, ...] = ()
    """A line for each part of the budget that is exceeded."""

    @property
    def settings(self) -> Tried | None:
        """The other settings under which the stream ran, if it as a whole speaks for some."""
        return self.tried[0] if self.tried and self.tried[0].holds else None

    def brief(self, example: Mapping[str, Any]) -> dict[str, Any]:
        """What an example shows where there is no room for all: the leading columns, and those that differ."""
        names = dict.fromkeys((*self.leading, *example.get("_changed", ()))) or ("_slice",)
        return {name: example[name] for name in names if name in example}

    @property
    def differences(self) -> int:
        """Rows that only one side has, but for those not due yet."""
        return sum(cause.rows for cause in self.causes if cause.cause != "pending")

    @property
    def unexplained(self) -> int:
        """The headline: rows that differ and have no cause."""
        return sum(cause.rows for cause in self.causes if cause.cause == "unexplained")

    def describe(self) -> dict[str, Any]:
        """Give it to scripts: JSON-ready."""
        return {
            **asdict(self),
            "story": self.reference,
            "differences": self.differences,
            "unexplained": self.unexplained,
        }


def compare(spark: SparkSession, pipeline: Pipeline, lake: str, asked: Asked, reference: Pipeline | None) -> Comparison:
    """Compare the committed slices of a pipeline with a stream's table.

    `reference` is a pipeline that says how the stream ran, and has run itself. Nothing is written.

    Raises:
        InputError: a table or column is missing, or types do not go together.
        SliceOrderError: nothing is committed, or the range is off the grid.
    """
    began = time.monotonic()
    batch = CommittedView.read(spark, pipeline, lake)
    told_by = CommittedView.read(spark, reference, lake) if reference else None
    slices = _range(batch, asked)
    ours = batch.emissions()
    stream, names, notes = _stream(DeltaInput.find(spark, lake, asked.table).read(), ours, batch, asked)
    within = {name: asked.within for name in names if asked.within and _is_fraction(ours.schema[name].dataType)}
    aligned = align(ours, stream, names, within)
    leading = _leading(batch, names)
    causes: tuple[Cause, ...] = ()
    tried: tuple[Tried, ...] = ()
    counts: _Counts = {}
    if not aligned.alike:
        sides = Sides(batch, told_by, micros(asked.until) if asked.until else None)
        rows = with_causes(aligned.differing, sides, names, _identity(leading, names, asked))
        if told_by is None and asked.try_settings and not rows.where("_cause = 'unexplained'").isEmpty():
            exact = [name for name in names if name not in within]
            rows, tried = with_other_settings(rows, sides, stream, exact)
            if tried and not tried[0].holds:
                among = "of other settings none tried explains more rows than it contradicts"
                notes.append(f"{among}; the best, {tried[0].told}")
        rows = rows.where(_inside(asked))
        counts = _counted(rows)
        causes = _causes(rows, counts, names, asked.examples)
    agreement = _agreement(counts, batch, slices)
    label = batch.grid.name
    return Comparison(
        pipeline.name,
        asked.table,
        reference.name if reference else None,
        label(slices[0]),
        label(slices[-1] + 1),
        sum(one.same for one in agreement),
        causes,
        agreement,
        tuple(notes),
        round(time.monotonic() - began, 1),
        leading,
        tried,
        over(asked.budget, agreement),
    )


def _range(batch: CommittedView, asked: Asked) -> range:
    """The slices to compare, of those that are committed."""
    grid, first = batch.grid, next(iter(batch.ledger.entries))
    start = grid.boundary(asked.start, "--from") if asked.start else first
    end = min(grid.boundary(asked.end, "--to"), batch.end) if asked.end else batch.end
    if end <= start:
        raise UserError(
            f"no slice from {grid.name(start)} to {grid.name(end)} (exclusive) is committed; "
            f"{batch.pipeline.name} has {grid.name(first)} to {grid.name(batch.end)}"
        )
    return range(start, end)


def _inside(asked: Asked) -> Column:
    """Whether a row is of the slices that the user has named, or perhaps is."""
    slice_of, inside = F.col("_slice"), F.lit(True)
    if asked.start:
        inside = inside & (slice_of >= F.lit(asked.start))
    if asked.end:
        inside = inside & (slice_of < F.lit(asked.end))
    return F.coalesce(inside, F.lit(True))


def _stream(
    stream: DataFrame, ours: DataFrame, batch: CommittedView, asked: Asked
) -> tuple[DataFrame, list[str], list[str]]:
    """The stream's rows in the types of ours, the columns to compare, and what a user should know of them."""
    ignored, notes = {*NOT_COMPARED, *asked.ignored}, []
    named_by = "select" if batch.pipeline.flatten is None else "flatten"
    for name in asked.ignored:
        if name not in ours.columns:
            raise UserError(f"--ignore {name}: {_no_column('the emissions', name, ours.columns)}")
    names = [name for name in ours.columns if name not in ignored]
    if "_emission" in names and "_emission" not in stream.columns and (kind := _kind(stream, batch)) is not None:
        stream = stream.withColumn("_emission", kind)
    for name in [name for name in names if name not in stream.columns]:
        if name not in PROVENANCE:
            missing = _no_column(f"table {asked.table}", name, stream.columns)
            raise InputError(f"{missing}; pass --ignore {name}, or leave it out of `{named_by}`")
        names.remove(name)
        notes.append(f"{name} is not compared: {asked.table} does not have it")
    extra = sorted(set(stream.columns) - set(ours.columns))
    if extra:
        notes.append(f"not compared, because only {asked.table} has it: {', '.join(extra)}")
    columns = [_cast(stream, name, ours.schema[name].dataType, asked.table) for name in names]
    return stream.select(*columns), names, notes


def _kind(stream: DataFrame, batch: CommittedView) -> Column | None:
    """`_emission` of rows that do not tell it; None where their columns do not either."""
    join_type = batch.pipeline.join.type
    if join_type in HALVES:
        return F.lit({"semi": "semi", "anti": "anti"}[join_type])
    kind = F.lit("matched")
    for side, other in zip(SIDES, reversed(SIDES), strict=True):
        columns = [name for name in batch.columns(other) if name in stream.columns]
        if join_type in {side, "full"}:
            if not columns:
                return None
            absent = F.coalesce(*(F.col(quoted(name)).cast("string") for name in columns)).isNull()
            kind = F.when(absent, F.lit(f"padded_{side}")).otherwise(kind)
    return kind


def _cast(stream: DataFrame, name: str, wanted: T.DataType, table: str) -> Column:
    given, column = stream.schema[name].dataType, F.col(quoted(name))
    if given.simpleString() == wanted.simpleString():
        return column
    numbers = isinstance(given, T.NumericType) and isinstance(wanted, T.NumericType)
    if not numbers and not (isinstance(given, _TIMES) and isinstance(wanted, _TIMES)):
        raise InputError(
            f"column {name} is {given.simpleString()} in table {table} and {wanted.simpleString()} in the emissions; "
            f"cast it in either, or pass --ignore {name}"
        )
    cast = column.try_cast(wanted)
    # What the other type cannot hold is another value.
    return (F.when(cast.try_cast(given) == column, cast) if numbers else cast).alias(name)


def _leading(batch: CommittedView, names: list[str]) -> tuple[str, ...]:
    """Keys, event times and the bounds of windows, of the columns compared."""
    pipeline, found = batch.pipeline, list[str]()
    for side in SIDES:
        wanted = {getattr(pipeline, side).event_time.column}.union(*(pair.columns(side) for pair in pipeline.join.keys))
        found += [name for name, column in batch.columns(side).items() if column in wanted]
    return tuple(name for name in (*found, *WINDOWS) if name in names)


def _identity(leading: Sequence[str], names: list[str], asked: Asked) -> list[str]:
    for name in asked.identity:
        if name not in names:
            raise UserError(f"--on {name}: {_no_column('what is compared', name, names)}")
    if asked.identity:
        return list(asked.identity)
    # Where no column tells a key or an event time, any row could be another one with changed values.
    told = any(name not in WINDOWS for name in leading)
    return [name for name in names if name in leading or name in PROVENANCE] if told else names


def _no_column(what: str, name: str, known: list[str]) -> str:
    hint = nearest(name, known, "there are")
    return f"{what} has no column {name} ({hint})"


def _is_fraction(kind: T.DataType) -> bool:
    return isinstance(kind, T.FractionalType)


def over(budget: Budget, agreement: Sequence[Agreement]) -> tuple[str, ...]:
    """A line for each part of a budget that is exceeded, and by how much."""
    unexplained = sum(one.unexplained for one in agreement)
    differing = sum(one.only_batch + one.only_stream for one in agreement)
    compared = sum(one.same for one in agreement) + differing
    lines = []
    for name, rows in (("unexplained", unexplained), ("differing", differing)):
        allowed = getattr(budget, name)
        if allowed is None or rows <= (most := allowed.of(compared)):
            continue
        share = f" ({allowed})" if allowed.is_share else ""
        lines.append(f"{rows:,} of {compared:,} rows {name}, {rows - most:,} more than the budget of {most:,}{share}")
    return tuple(lines)


def _counted(rows: DataFrame) -> _Counts:
    by_cause = rows.groupBy(F.unix_micros("_slice").alias("start"), "_cause", "_missing_in")
    counts: defaultdict[int | None, Counter[tuple[str, str]]] = defaultdict(Counter)
    for row in by_cause.agg(F.sum("_copies").alias("rows")).collect():
        counts[row["start"]][row["_cause"], row["_missing_in"]] = row["rows"]
    return counts


def _causes(rows: DataFrame, counts: _Counts, names: list[str], examples: int) -> tuple[Cause, ...]:
    changed = F.when(F.col("_cause") == "changed value", F.col("_changed")).alias("_changed")
    content = F.to_json(F.struct(*names, "_slice", *DETAILS[1:], changed, *(f"_{side}" for side in SIDES)))
    of_cause = Window.partitionBy("_cause", "_missing_in").orderBy("_slice", content)
    shown = rows.withColumn("_place", F.row_number().over(of_cause)).where(F.col("_place") <= examples)
    examples_of = shown.select("_cause", "_missing_in", "_place", content.alias("row"))
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in sorted(examples_of.collect(), key=lambda row: row["_place"]):
        found.setdefault((row["_cause"], row["_missing_in"]), []).append(json.loads(row["row"]))
    order = list(CAUSES)
    whole = sum(counts.values(), Counter[tuple[str, str]]())
    causes = (Cause(*which, rows, tuple(found.get(which, ()))) for which, rows in whole.items())
    return _numbered(sorted(causes, key=lambda cause: (order.index(cause.cause), cause.missing_in)))


def _numbered(causes: Sequence[Cause]) -> tuple[Cause, ...]:
    """The causes with `_number` in the examples: 1, 2 and so on over all causes, the same each time."""
    numbers = count(1)
    return tuple(
        replace(cause, examples=tuple({"_number": next(numbers), **one} for one in cause.examples)) for cause in causes
    )


def _agreement(counts: _Counts, batch: CommittedView, slices: range) -> tuple[Agreement, ...]:
    """Every committed slice of the range, then what belongs to none."""
    emitted = batch.ledger.rows.set_index("number")["emissions"].to_dict()
    starts: dict[int | None, int] = {batch.grid.start_of(n): int(emitted[n]) for n in slices if n in emitted}
    starts |= {start: 0 for start in counts if start not in starts}

    def agreed(start: int | None) -> Agreement:
        entry = None if start is None else batch.ledger.entry(batch.grid.number_at(start))
        mine, causes = counts.get(start, Counter()), Counter[str]()
        lacking = Counter({STREAM: 0, BATCH: 0})
        for (cause, missing_in), rows in mine.items():
            causes[cause] += rows
            lacking[missing_in] += rows if cause != "pending" else 0
        return Agreement(
            slice=None if start is None else format_instant(from_micros(start)),
            run=entry.answer if entry else None,
            same=starts[start] - sum(rows for (_, missing_in), rows in mine.items() if missing_in == STREAM),
            only_batch=lacking[STREAM],
            only_stream=lacking[BATCH],
            unexplained=causes["unexplained"],
            pending=causes["pending"],
            causes=dict(causes),
        )

    return tuple(map(agreed, starts))
