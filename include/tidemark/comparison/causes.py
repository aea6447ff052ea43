"""Assign one cause to each row that differs, from what happened to its input rows.

The *batch* is what the pipeline has committed. The *reference* is another pipeline's committed output that describes
how the stream ran, such as the replay of its trace. It counts for the rows that it emits as often as the stream did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from tidemark.comparison.cause_descriptions import CAUSES, LEFT_OUT, LOST, MISSING, PADDED, UNEXPLAINED
from tidemark.comparison.committed_view import ROW_LABEL, CommittedView
from tidemark.comparison.compared_columns import ComparedColumns
from tidemark.comparison.multiset_diff import BATCH, STREAM, is_close
from tidemark.comparison.result import CHANGED_VALUE
from tidemark.comparison.setting_search import replay_emissions, search_settings
from tidemark.comparison.setting_trials import SettingTrial
from tidemark.config import Pipeline
from tidemark.config.diff import flatten_settings, format_setting
from tidemark.config.sides import SIDES, SideName
from tidemark.config.types import format_instant, to_micros
from tidemark.errors import UserError
from tidemark.formatting import quote_identifier
from tidemark.joins.join_type import PADDING_TYPES
from tidemark.ledger.row_content import content_hash, list_unordered_columns, to_comparable_columns
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize

DETAIL_COLUMNS = ("_cause", "_input", "_watermark", "_lateness_ms", "_limiting_side", "_detail", "_pipeline")
"""Columns of `assign_causes`. If known: `_input`, the side of the input row responsible; `_watermark` (ms UTC), which
made it late by `_lateness_ms`, and the input that determined it, `_limiting_side`; and a `_detail` in words. In chains,
`chain_causes.find_causes` adds the `_pipeline` whose join has the cause, and whose inputs these are."""
_DROPPED = ("late", "late_for_window")
_LATE = (*_DROPPED, "late_but_processed")
_LOSSES = {LOST: "lost_at_end_of_input", LEFT_OUT: "no_event_time_for_window"}
"""Reason in a label's `losses` by cause."""
_MATCHED = ("matched", "semi")
_INPUT_SETTINGS = ("watermark_delay", "recorded_watermark", "partition", "idle_timeout", "where", "filter")
"""Settings of an input, without its table and clock, that affect the output."""


@dataclass(frozen=True)
class ComparedViews:
    """The committed output of the pipeline and of the reference."""

    batch: CommittedView
    reference: CommittedView | None
    until: int | None
    """Clock up to which the stream has read, in microseconds, exclusive; None for as far as the batch."""

    @cached_property
    def upstreams(self) -> dict[SideName, ComparedViews]:
        """The same of the pipelines whose output the inputs are."""
        references = self.reference.upstreams if self.reference else {}
        return {
            side: ComparedViews(view, references.get(side), self.until) for side, view in self.batch.upstreams.items()
        }

    @property
    def settings_difference(self) -> str | None:
        """Settings of the reference that differ from the batch, but for tables and clocks; None if there are none."""
        differences = self._differing_settings.items()
        return "; ".join(f"{name} is {theirs} ({ours} in the pipeline)" for name, (ours, theirs) in differences) or None

    @property
    def restarts_difference(self) -> str | None:
        """Restarts that only the reference or only the batch has; None without any, or if other settings differ."""
        if self.reference is None or not self._differing_settings:
            return None
        if not all(name.startswith("restarts.") for name in self._differing_settings):
            return None
        ours, theirs = (view.pipeline.restarts for view in (self.batch, self.reference))
        sides = (("the reference", theirs, ours), ("the pipeline", ours, theirs))
        extra_restarts = {
            role: [format_instant(restart) for restart in own if restart not in other] for role, own, other in sides
        }
        return ", ".join(
            f"{role} restarts at {' and '.join(instants)}" if instants else f"{role} does not"
            for role, instants in sorted(extra_restarts.items(), key=lambda item: not item[1])
        )

    @cached_property
    def _differing_settings(self) -> dict[str, tuple[str, str]]:
        """Settings that differ, with the values of the batch and of the reference."""
        if self.reference is None:
            return {}
        ours, theirs = (_select_settings(view.pipeline) for view in (self.batch, self.reference))
        values = {name: (ours.get(name), theirs.get(name)) for name in ours | theirs}
        return {
            name: (format_setting(our_value), format_setting(their_value))
            for name, (our_value, their_value) in values.items()
            if our_value != their_value
        }


def assign_causes(differing: DataFrame, views: ComparedViews, columns: ComparedColumns) -> DataFrame:
    """Add `DETAIL_COLUMNS` to differing rows, and `_slice` if their own clocks determine it.

    Args:
        differing: Rows of `MultisetDiff.differing`. `_stream` is null if the number of copies is unknown.
        views: The pipeline and the reference.
        columns: The compared columns.

    Raises:
        UserError: The reference does not emit a compared column.
    """
    names = columns.exact
    unordered = list_unordered_columns(views.batch.pipeline)
    # Materialised where several columns depend on the rows, to cut off their lineage.
    rows = materialize(differing.withColumn("_id", F.monotonically_increasing_id()), eager=True)
    for side in SIDES:
        rows = _add_labels(rows, side, views, names)
    if views.reference:
        emissions = _read_reference(views.reference, names)
        rows = add_count(rows, emissions, names, unordered, "_reference")
    rows = rows.withColumn("_as_reference", _is_as_reference() if views.reference else F.lit(False))
    if (quarantined := views.batch.read_quarantined()) is not None:
        rows = add_count(rows, _add_missing_columns(quarantined, rows, names), names, unordered, "_quarantined")
    if views.batch.has_hidden_firings:
        panes = replay_emissions(views.batch, {"join.emit": "every-pane"})
        rows = materialize(add_count(rows, panes, names, unordered, "_every_pane"), eager=True)
    rows = materialize(
        rows.withColumn("_clock", F.greatest(*(F.col(f"_{side}_batch.clock") for side in SIDES))), eager=True
    )
    only_batch = F.col("_only_in") == BATCH
    is_out_of_tolerance = F.coalesce(F.col("_stream") <= F.col("_batch"), F.lit(False))
    is_candidate = only_batch | is_out_of_tolerance | _is_foreign(views)
    rows = add_changed_columns(rows, columns, unordered, is_candidate)
    rows = _add_changed_expressions(rows, columns, unordered, views)
    rows = rows.withColumn("_counterpart", _has_counterpart())
    grid = views.batch.grid
    slice_of_clock = grid.timestamp_column(grid.number_column(F.col("_clock")))
    rows = rows.withColumn("_slice", F.coalesce("_slice", slice_of_clock))
    rules = list(_list_rules(views, rows))
    positions = [list(CAUSES).index(rule.cause) for rule in rules]
    assert positions == sorted(positions), "the rules are in the order of CAUSES"
    return materialize(_add_details(rows, rules), eager=True)


def attribute_to_settings(
    rows: DataFrame, views: ComparedViews, stream: DataFrame, names: Sequence[str]
) -> tuple[DataFrame, tuple[SettingTrial, ...]]:
    """Search other settings that explain rows without a cause, in slices with output of the pipeline's own.

    Returns:
        The rows, with cause `other settings` if the best trial is supported by the stream as a whole; and the trials,
        the best first.
    """
    is_open = is_unexplained_here(views.batch)
    trials, explained = search_settings(rows.where(is_open), views.batch, stream, names, views.until)
    if explained is None or not trials[0].is_supported:
        return rows, trials
    rows = rows.join(explained.withColumn("_explained", F.lit(True)), "_id", "left")
    is_explained = is_open & F.col("_explained").isNotNull()
    columns = {
        "_cause": F.when(is_explained, "other settings").otherwise(F.col("_cause")),
        "_detail": F.when(is_explained, F.lit(trials[0].summary)).otherwise(F.col("_detail")),
    }
    return materialize(rows.transform(with_columns, columns).drop("_explained"), eager=True), trials


def is_unexplained_here(view: CommittedView) -> Column:
    """Return True for comparable rows without a cause, unless a join before is known to be the place of the cause."""
    return (F.col("_cause") == UNEXPLAINED) & F.col("_pipeline").isNull() & view.is_comparable(F.col("_slice"))


def _read_reference(reference: CommittedView, names: Sequence[str]) -> DataFrame:
    """Read the emissions of the reference.

    Raises:
        UserError: They lack a compared column.
    """
    emissions = reference.read_emissions()
    for name in names:
        if name not in emissions.columns:
            raise UserError(
                f"reference {reference.pipeline.name} does not emit column {name}. Emit it there too, or pass "
                f"--set ignore_columns={name}."
            )
    return emissions


def _add_missing_columns(quarantined: DataFrame, rows: DataFrame, names: Sequence[str]) -> DataFrame:
    """Add columns of `rows` as nulls. Rows that were quarantined under another `select` lack them."""
    dtypes = {field.name: field.dataType for field in rows.schema}
    missing = {name: F.lit(None).cast(dtypes[name]) for name in names if name not in quarantined.columns}
    return quarantined.transform(with_columns, missing)


def add_count(
    rows: DataFrame, emissions: DataFrame, names: Sequence[str], unordered: Sequence[str], column: str
) -> DataFrame:
    """Add a column with the number of emissions of equal content."""
    rows = rows.withColumn("_content", content_hash(rows, names, unordered))
    contents = emissions.select(content_hash(emissions, names, unordered).alias("_content"))
    contents = contents.join(rows.select("_content").distinct(), "_content", "semi")
    counts = contents.groupBy("_content").agg(F.count("*").alias(column))
    return rows.join(counts, "_content", "left").withColumn(column, F.coalesce(column, F.lit(0))).drop("_content")


def _is_as_reference() -> Column:
    """Return True if the stream has a row as often as the reference, or if both have it and the number is unknown."""
    return F.coalesce(F.col("_reference") == F.col("_stream"), F.col("_reference") > 0)


def _add_labels(rows: DataFrame, side: SideName, views: ComparedViews, names: Sequence[str]) -> DataFrame:
    """Add `_SIDE`, the hash of that input's row (null if absent), with labels `_SIDE_batch` and `_SIDE_reference`."""
    columns = {name: source for name, source in views.batch.map_columns(side).items() if name in names}
    no_label = F.lit(None).cast(ROW_LABEL)
    if not columns:
        labels = {f"_{side}_{name}": no_label for name in ("batch", "reference")}
        return rows.withColumns({f"_{side}": F.lit(None).cast("long"), **labels})
    is_absent = _is_absent(side, views.batch.pipeline.join.type, columns)
    rows = rows.withColumn(f"_{side}", F.when(~is_absent, content_hash(rows, columns)))
    hashes = rows.select(F.col(f"_{side}").alias("_hash")).where("_hash IS NOT NULL").distinct()
    for name, view in (("batch", views.batch), ("reference", views.reference)):
        if view is None:
            rows = rows.withColumn(f"_{side}_{name}", no_label)
            continue
        by_hash = view.label_rows(side, list(columns.values()), hashes)
        by_hash = by_hash.select(F.col("_hash").alias(f"_{side}"), F.col("label").alias(f"_{side}_{name}"))
        rows = rows.join(by_hash, f"_{side}", "left")
    return rows


def _is_absent(side: SideName, join_type: str, columns: Iterable[str]) -> Column:
    """Return True if an emission has no row of an input.

    Args:
        side: The input.
        join_type: Type of the join.
        columns: The input's columns in the emission, which decide if its kind is not known.
    """
    other: SideName = "right" if side == "left" else "left"
    if join_type not in PADDING_TYPES[other]:
        return F.lit(False)
    is_null = reduce(Column.__and__, (F.col(quote_identifier(name)).isNull() for name in columns))
    return F.coalesce(F.col("_emission") == f"padded_{other}", is_null)


def _is_foreign(views: ComparedViews) -> Column:
    """Return True if an input does not contain a row of it.

    Inputs that are the output of another pipeline do not count: a row may be missing there for other reasons.
    """
    unknown = (
        _is_present(side) & F.col(f"_{side}_batch").isNull() for side in SIDES if side not in views.batch.upstreams
    )
    return reduce(Column.__or__, unknown, F.lit(False))


def _add_changed_expressions(
    rows: DataFrame, columns: ComparedColumns, unordered: Sequence[str], views: ComparedViews
) -> DataFrame:
    """Add to `_changed` the expressions of `select` in which rows differ that stem from the same input rows.

    Args:
        rows: Result of `add_changed_columns`.
        columns: The compared columns.
        unordered: Columns whose arrays have no order.
        views: The pipeline and the reference.
    """
    plain = {name for side in SIDES for name in views.batch.map_columns(side)}
    expressions = [name for name in columns.names if name not in plain and not name.startswith("_")]
    if not expressions:
        return rows
    has_known_inputs = ~_is_foreign(views) & reduce(Column.__or__, map(_is_present, SIDES))
    is_candidate = F.col("_changed_input").isNull() & has_known_inputs
    by_inputs = replace(columns, keys=[*columns.keys, *(f"_{side}" for side in SIDES)])
    rows = add_changed_columns(rows.withColumnRenamed("_changed", "_changed_input"), by_inputs, unordered, is_candidate)
    is_changed = (F.size("_changed") > 0) & F.forall("_changed", lambda name: name.isin(*expressions))
    changed = F.when(is_changed, F.col("_changed")).otherwise(F.col("_changed_input"))
    return rows.withColumn("_changed", changed).drop("_changed_input")


def add_changed_columns(
    rows: DataFrame, columns: ComparedColumns, unordered: Sequence[str], is_candidate: Column
) -> DataFrame:
    """Add `_changed`: the columns in which a stream row that no input contains differs from its row in the batch.

    Such rows are paired with rows that only the batch contains and that have equal keys. Both rows of a pair get the
    columns, and the stream's row gets the slice of the other; rows without a pair get null.

    Args:
        rows: Differing rows with their `_id`.
        columns: The compared columns.
        unordered: Columns whose arrays have no order.
        is_candidate: True for rows that may be paired.
    """
    is_in = {table: F.col("_only_in") == table for table in (BATCH, STREAM)}
    values = to_comparable_columns(rows, dict.fromkeys([*columns.names, *columns.keys]), unordered)
    rows = rows.withColumn("_candidate", is_candidate)
    keys = [*(values[name] for name in columns.keys), F.col("_candidate")]
    order = Window.partitionBy(*keys, "_only_in").orderBy("_id")
    rows = rows.withColumn("_rank", F.row_number().over(order))
    pair = Window.partitionBy(*keys, "_rank")
    content = F.struct(*(values[name].alias(name) for name in columns.names))
    contents = {f"_{side}_row": F.first(F.when(is_in[side], content), ignorenulls=True).over(pair) for side in is_in}
    slice_of_pair = F.first(F.when(is_in[BATCH], F.col("_slice")), ignorenulls=True).over(pair)
    rows = rows.transform(with_columns, {**contents, "_pair_slice": slice_of_pair})
    batch_row, stream_row = F.col(f"_{BATCH}_row"), F.col(f"_{STREAM}_row")
    differing = [
        F.when(~is_close(batch_row[name], stream_row[name], columns.tolerances.get(name)), F.lit(name))
        for name in columns.names
    ]
    is_paired = F.col("_candidate") & batch_row.isNotNull() & stream_row.isNotNull()
    changes = {
        "_changed": F.when(is_paired, F.array_compact(F.array(*differing))),
        "_slice": F.coalesce("_slice", F.when(is_paired, F.col("_pair_slice"))),
    }
    return rows.transform(with_columns, changes).drop("_candidate", "_rank", "_pair_slice", *contents)


def _has_counterpart() -> Column:
    """Return True if among the differing rows the other table pads a row that this one matches, or vice versa."""
    is_matched = F.col("_emission").isin(*_MATCHED)

    def is_in_other_table(side: SideName, condition: Column) -> Column:
        same_row = Window.partitionBy(F.coalesce(f"_{side}", "_id"))
        is_in = {table: F.bool_or(condition & (F.col("_only_in") == table)).over(same_row) for table in (BATCH, STREAM)}
        return F.when(F.col("_only_in") == BATCH, is_in[STREAM]).otherwise(is_in[BATCH])

    counterparts = [
        F.when(is_matched, is_in_other_table(side, ~is_matched)).otherwise(is_in_other_table(side, is_matched))
        for side in SIDES
    ]
    has_any = reduce(
        Column.__or__,
        (_is_present(side) & counterpart for side, counterpart in zip(SIDES, counterparts, strict=True)),
    )
    return F.coalesce(has_any, F.lit(False))


@dataclass(frozen=True)
class _Rule:
    """Condition and details of a cause."""

    cause: str
    condition: Column
    side: Column | None = None
    """The input of the row responsible."""
    view: str | None = None
    """The view with that row's lateness: `batch` or `reference`."""
    detail: Column | None = None


def _list_rules(views: ComparedViews, rows: DataFrame) -> Iterator[_Rule]:
    """Yield the rules in the order of `CAUSES`; the first that applies counts."""
    only_batch, only_stream = (F.col("_only_in") == table for table in (BATCH, STREAM))
    is_matched, as_reference = F.col("_emission").isin(*_MATCHED), F.col("_as_reference")
    batch = views.batch
    grid = views.batch.grid
    no_reference = F.lit(views.reference is None)

    # Flink's windows emit their pairs at their end, which may be in a later slice than both rows.
    join = batch.pipeline.join
    emits_at_arrival = join.window is None or batch.pipeline.dialect == "spark"
    # If it is not known whether a row is matched, a timer may have emitted it.
    is_at_arrival = F.coalesce(is_matched, F.lit(False)) & F.lit(emits_at_arrival)
    due = F.when(is_at_arrival, F.col("_clock")).otherwise(grid.end_column(F.unix_micros("_slice")) - 1)
    # An interval join pads no row that it has matched. In a window join the counterpart may be of another window.
    may_be_emitted = ~is_at_arrival if join.window else ~is_at_arrival & ~F.col("_counterpart")
    buffered = _find_side("batch", lambda label: label["buffered"])
    not_run = F.col("_clock") >= grid.start_of(batch.end)
    yield _Rule("pending", only_stream & F.coalesce(not_run | (may_be_emitted & buffered.isNotNull()), F.lit(False)))
    if views.until is not None:
        yield _Rule("pending", only_batch & (due >= views.until))
    if reference := views.reference:
        clock = F.greatest(*(F.col(f"_{side}_reference.clock") for side in SIDES))
        waiting = _find_side("reference", lambda label: label["buffered"])
        not_run = (clock >= reference.grid.start_of(reference.end)) | (may_be_emitted & waiting.isNotNull())
        detail = F.lit(f"{reference.pipeline.name} has not reached this slice")
        yield _Rule("pending", only_batch & F.coalesce(not_run, F.lit(False)), detail=detail)
    if "_quarantined" in rows.columns:
        yield _Rule("quarantined", only_stream & (F.col("_quarantined") >= F.col("_copies")))
    if batch.has_hidden_firings:
        yield _Rule("re-fired pane", only_stream & (F.col("_every_pane") == F.col("_stream")))
    is_emitted_twice = (F.col("_batch") > 0) & (F.col("_stream") > F.col("_batch"))
    yield _Rule("emitted twice", only_stream & ~as_reference & is_emitted_twice)
    yield _Rule(CHANGED_VALUE, F.size("_changed") > 0, detail=F.concat_ws(", ", "_changed"))
    for in_table, view, is_described in (
        (only_stream, "batch", F.lit(True)),
        (only_batch, "reference", ~no_reference),
    ):
        unknown = reduce(
            F.coalesce, (F.when(_is_present(side) & F.col(f"_{side}_{view}").isNull(), side) for side in SIDES)
        )
        yield _Rule(MISSING, in_table & is_described & unknown.isNotNull(), unknown)
    late_arriving = _find_side("batch", lambda label: label["late_arriving"])
    yield _Rule("late-arriving row", (only_stream | no_reference) & late_arriving.isNotNull(), late_arriving)
    restarts = views.restarts_difference
    by_restarts = F.lit(f"only because of a restart: {restarts}") if restarts else None
    for table, condition, view, reasons in (
        ("stream", only_batch & as_reference, "reference", _DROPPED),
        ("batch", only_stream & as_reference, "batch", _LATE),
    ):
        late = _find_side(view, _has_reason(*reasons))
        yield _Rule(f"late in the {table}", condition & late.isNotNull(), late, view, by_restarts)
    late = _find_side("reference", _has_reason("late_but_processed"))
    is_late_match = only_batch & as_reference & is_matched & late.isNotNull()
    yield _Rule("partner already evicted", is_late_match, late, "reference")
    not_emitted = (("stream", only_batch & as_reference, "reference"), ("batch", only_stream, "batch"))
    yield from _list_rejection_rules(not_emitted, is_at_arrival, rows)
    if views.settings_difference:
        yield _Rule("other settings", as_reference, detail=F.lit(views.settings_difference))
    yield _Rule(PADDED, F.col("_counterpart"))
    yield from _list_unexplained_rules(views, only_stream, only_batch)


def _list_rejection_rules(
    not_emitted: Sequence[tuple[str, Column, str]], is_at_arrival: Column, rows: DataFrame
) -> Iterator[_Rule]:
    """Yield rules for input rows that a table without the emission rejected or lost.

    Args:
        not_emitted: Tables, conditions for the emissions that they lack, and the view of each table.
        is_at_arrival: True for emissions that no timer emits.
        rows: The differing rows.
    """
    for table, condition, view in not_emitted:
        rejected = _find_side(view, lambda label: ~label["reason"].isin(*_LATE))
        left, right = (F.col(f"_{side}_{view}")["reason"] for side in SIDES)
        reason = F.when(rejected == "left", left).otherwise(right)
        yield _Rule(f"rejected in the {table}", condition & rejected.isNotNull(), rejected, detail=reason)
    for cause, reason_of_loss in _LOSSES.items():
        for _, condition, view in not_emitted:
            lost = _find_side(view, _has_loss(reason_of_loss, rows))
            yield _Rule(cause, condition & ~is_at_arrival & lost.isNotNull(), lost)


def _list_unexplained_rules(views: ComparedViews, only_stream: Column, only_batch: Column) -> Iterator[_Rule]:
    """Yield rules that describe rows without a cause."""
    in_stream, not_in_stream = "and yet in the stream", "and yet not in the stream"
    view = "batch"
    if views.reference:
        view = "reference"
        detail = F.lit(f"{views.reference.pipeline.name} emits it, {not_in_stream}")
        yield _Rule(UNEXPLAINED, only_batch & (F.col("_reference") >= F.col("_batch")), detail=detail)
    late = _find_side(view, _has_reason(*_LATE))
    yield _Rule(UNEXPLAINED, only_stream & late.isNotNull(), late, view, F.lit(in_stream))
    interval = views.batch.pipeline.join.interval
    if interval:
        left, right = (F.col(f"_{side}_{view}")["event_time"] for side in SIDES)
        lower, upper = (None if bound is None else to_micros(bound) for bound in (interval.lower, interval.upper))
        is_outside = F.lit(False) if lower is None else right - left < lower
        is_outside |= F.lit(False) if upper is None else right - left > upper
        detail = F.lit(f"its times are further apart than join.interval, {in_stream}")
        yield _Rule(UNEXPLAINED, only_stream & F.coalesce(is_outside, F.lit(False)), detail=detail)
    on_time = reduce(Column.__and__, (~_is_present(side) | F.col(f"_{side}_{view}").isNotNull() for side in SIDES))
    on_time &= reduce(Column.__or__, map(_is_present, SIDES)) & late.isNull()
    for in_table, suffix in ((only_stream, in_stream), (only_batch, not_in_stream)):
        yield _Rule(UNEXPLAINED, in_table & on_time, detail=F.lit(f"its rows are on time, {suffix}"))
    yield _Rule(UNEXPLAINED, F.lit(True))


def _add_details(rows: DataFrame, rules: Sequence[_Rule]) -> DataFrame:
    """Add `DETAIL_COLUMNS` by the first rule that applies to each row."""
    number = F.coalesce(*(F.when(rule.condition, F.lit(n)) for n, rule in enumerate(rules)))
    rows = rows.withColumn("_rule", number)

    def select(get_value: Callable[[_Rule], Column | None]) -> Column:
        values = [(n, get_value(rule)) for n, rule in enumerate(rules)]
        branches = (F.when(F.col("_rule") == n, value) for n, value in values if value is not None)
        return F.coalesce(*branches, F.lit(None).cast("string"))

    details = [
        select(lambda rule: F.lit(rule.cause)),
        select(lambda rule: rule.side),
        *(select(partial(_get_lateness, field)) for field in ("watermark", "lateness_ms", "limiting_side")),
        select(lambda rule: rule.detail),
        F.lit(None),
    ]
    dtypes = ("string", "string", "long", "long", "string", "string", "string")
    columns = {name: detail.cast(dtype) for name, detail, dtype in zip(DETAIL_COLUMNS, details, dtypes, strict=True)}
    return rows.transform(with_columns, columns).drop("_rule")


def _get_lateness(field: str, rule: _Rule) -> Column | None:
    if rule.side is None or rule.view is None:
        return None
    left, right = (F.col(f"_{side}_{rule.view}")[field] for side in SIDES)
    return F.when(rule.side == "left", left).otherwise(right)


def _is_present(side: SideName) -> Column:
    return F.col(f"_{side}").isNotNull()


def _find_side(view: str, condition: Callable[[Column], Column]) -> Column:
    """Return the input whose row's label meets a condition; null if neither does."""
    return F.coalesce(*(F.when(condition(F.col(f"_{side}_{view}")), F.lit(side)) for side in SIDES))


def _has_reason(*reasons: str) -> Callable[[Column], Column]:
    return lambda label: label["reason"].isin(*reasons)


def _has_loss(reason: str, rows: DataFrame) -> Callable[[Column], Column]:
    """Return True for a label with a loss from the window of the emission, or from any if the window is not known."""
    start = F.unix_micros(F.col("_window_start").cast("timestamp")) if "_window_start" in rows.columns else F.lit(None)

    def is_lost(loss: Column) -> Column:
        return (loss["reason"] == reason) & F.coalesce(loss["window_start"] == start, F.lit(True))

    return lambda label: F.exists(label["losses"], is_lost)


def _select_settings(pipeline: Pipeline) -> dict[str, Any]:
    """Return the settings that affect the output, by dotted name, without tables and clocks."""
    settings = flatten_settings(pipeline.output_affecting_settings(include_defaults=True))
    inputs = tuple(f"{side}.{name}" for side in SIDES for name in _INPUT_SETTINGS)
    prefixes = ("dialect", "time_bounds", "time_zone", "join.", "explode", "restarts", "watermark_strategy", "spark.")
    selected = {name: value for name, value in settings.items() if name.startswith((*prefixes, *inputs))}
    filters = {side: getattr(pipeline, side) for side in SIDES if getattr(pipeline, side).where}
    return selected | {f"{side}.filter": pipeline.get_filter(source) for side, source in filters.items()}
