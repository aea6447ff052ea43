"""Find the causes of differing rows in all joins of a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.comparison.cause_descriptions import MISSING, PADDED, UNEXPLAINED
from tidemark.comparison.causes import (
    DETAIL_COLUMNS,
    ComparedViews,
    add_changed_columns,
    assign_causes,
    attribute_to_settings,
    is_unexplained_here,
)
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.compared_columns import ComparedColumns, derive_emission
from tidemark.comparison.multiset_diff import BATCH, STREAM
from tidemark.comparison.result import CHANGED_VALUE
from tidemark.comparison.setting_trials import SettingTrial
from tidemark.config.sides import SideName
from tidemark.formatting import quote_identifier
from tidemark.ledger.row_content import content_hash, list_unordered_columns
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize

_SOURCE_ROW = "_source_row"
"""Hash of the row of an input in the rows of the pipeline that emits it."""


@dataclass(frozen=True)
class StreamedRows:
    """Rows that a stream wrote, by which other settings are evaluated."""

    rows: DataFrame
    names: Sequence[str]
    """The columns to compare."""
    is_in_range: Column
    """True for differing rows that are worth a search."""

    def select_input(self, sources: Mapping[str, str], view: CommittedView) -> StreamedRows:
        """Return the rows of one input that occur in the rows, each once.

        Args:
            sources: Names of the input's columns in the rows, by their names in the input.
            view: The pipeline whose output the input is.
        """
        rows = _rename(self.rows, sources).dropna(how="all")
        # Spark finds no distinct maps.
        rows = rows.withColumn("_content", content_hash(rows, sources)).dropDuplicates(["_content"]).drop("_content")
        rows = _add_emission(rows, view)
        names = [source for source, name in sources.items() if name in self.names]
        return StreamedRows(rows, names, F.lit(True))


def find_causes(
    differing: DataFrame, views: ComparedViews, columns: ComparedColumns, stream: StreamedRows | None
) -> tuple[DataFrame, tuple[SettingTrial, ...]]:
    """Add `DETAIL_COLUMNS` to differing rows, with causes in any join of a chain.

    A row of an input that one table lacks is looked up in the pipeline whose output the input is, in the same way.

    Args:
        differing: Rows of `MultisetDiff.differing`.
        views: The pipeline and the reference.
        columns: The compared columns.
        stream: Rows of the stream, to search the settings under which it ran; None to search none.

    Returns:
        The rows, and the trials of other settings of this pipeline, the best first.
    """
    rows = assign_causes(differing, views, columns)
    for side in views.upstreams:
        rows = _look_up_input(rows, side, views, columns.exact, stream)
    rows = _pair_unknown_rows(rows, columns, views) if views.upstreams else rows
    trials: tuple[SettingTrial, ...] = ()
    if stream and not rows.where(stream.is_in_range & is_unexplained_here(views.batch)).isEmpty():
        rows, trials = attribute_to_settings(rows, views, stream.rows, stream.names)
    if views.upstreams:
        here = F.when(F.col("_input").isNotNull(), F.lit(views.batch.pipeline.name))
        rows = rows.withColumn("_pipeline", F.coalesce("_pipeline", here))
    return rows, trials


def _look_up_input(
    rows: DataFrame, side: SideName, views: ComparedViews, names: Sequence[str], stream: StreamedRows | None
) -> DataFrame:
    """Replace causes that only the pipeline of one input can explain, by the causes of its differing rows."""
    upstream = views.upstreams[side]
    sources = {source: name for name, source in views.batch.map_columns(side).items() if name in names}
    is_open = _may_originate_upstream(side, has_reference=upstream.reference is not None)
    opened = rows.where(is_open & stream.is_in_range if stream else is_open)
    if not sources or opened.isEmpty():
        return rows
    differing = _select_source_rows(opened, side, sources, views)
    streamed = stream.select_input(sources, upstream.batch) if stream else None
    causes, _ = find_causes(differing, upstream, ComparedColumns(list(sources), list(sources), {}), streamed)
    return _replace_causes(rows, causes, side, is_open, views)


def _may_originate_upstream(side: SideName, *, has_reference: bool) -> Column:
    """Return True for rows whose cause may be in the pipeline that emits the row of an input.

    The input's row must be missing in the table that lacks the differing row. Without a reference the intermediate rows
    of the stream are unknown, so unexplained and padded rows count too.
    """
    cause = F.col("_cause")
    is_here = F.col("_pipeline").isNull() & F.col(f"_{side}").isNotNull()
    only_stream = F.col("_only_in") == STREAM
    is_missing = (cause == MISSING) & (F.col("_input") == side)
    if has_reference:
        return is_here & is_missing
    return is_here & ((only_stream & is_missing) | (~only_stream & cause.isin(UNEXPLAINED, PADDED)))


def _select_source_rows(
    opened: DataFrame, side: SideName, sources: Mapping[str, str], views: ComparedViews
) -> DataFrame:
    """Select the rows of an input as differing rows of the pipeline that emits them, each once."""
    # Rows of the batch have these columns even if the comparison leaves them out.
    names = {source: name for name, source in views.batch.map_columns(side).items() if name in opened.columns}
    extra_columns: dict[str, str] = {name: names[name] for name in ("_slice", "_emission") if name in names}
    only_stream = F.col("_only_in") == STREAM
    rows = _rename(opened, {**extra_columns, **sources}, F.col(f"_{side}").alias(_SOURCE_ROW), F.col("_only_in"))
    columns = {
        "_slice": F.col("_slice") if "_slice" in extra_columns else F.lit(None).cast("timestamp"),
        "_copies": F.lit(1).cast("long"),
        "_batch": F.when(only_stream, 0).otherwise(1).cast("long"),
        # The stream's table has the row once for each of its matches, so its number is unknown.
        "_stream": F.when(only_stream, F.lit(None)).otherwise(0).cast("long"),
    }
    rows = rows.dropDuplicates(["_only_in", _SOURCE_ROW]).transform(with_columns, columns)
    return _add_emission(rows, views.upstreams[side].batch)


def _rename(rows: DataFrame, sources: Mapping[str, str], *extra_columns: Column) -> DataFrame:
    """Select columns under the names that they have in an input."""
    return rows.select(
        *(F.col(quote_identifier(name)).alias(source) for source, name in sources.items()), *extra_columns
    )


def _add_emission(rows: DataFrame, view: CommittedView) -> DataFrame:
    """Add `_emission` to rows of a pipeline's output, derived from nulls where it is not known."""
    derived = derive_emission(rows, view)
    columns = [F.col("_emission")] if "_emission" in rows.columns else []
    columns += [] if derived is None else [derived]
    return rows.withColumn("_emission", F.coalesce(*columns, F.lit("matched")))


def _replace_causes(
    rows: DataFrame, causes: DataFrame, side: SideName, is_open: Column, views: ComparedViews
) -> DataFrame:
    """Take over the causes of the rows of an input, and the slice in which such a row would have been emitted."""
    grid, name = views.batch.grid, views.upstreams[side].batch.pipeline.name
    keys = {"_only_in": "_only_in", f"_{side}": _SOURCE_ROW}
    details = _rename(causes, {**keys, **{f"_upstream{column}": column for column in (*DETAIL_COLUMNS, "_clock")}})
    joined = rows.join(details, list(keys), "left")
    is_explained = F.coalesce(
        is_open
        & F.col("_upstream_cause").isNotNull()
        & ((F.col("_cause") == MISSING) | (F.col("_upstream_cause") != UNEXPLAINED)),
        F.lit(False),
    )
    new_values = {column: F.col(f"_upstream{column}") for column in DETAIL_COLUMNS}
    new_values["_pipeline"] = F.coalesce("_upstream_pipeline", F.lit(name))
    clock = F.greatest("_clock", "_upstream_clock")
    new_values["_clock"] = clock
    new_values["_slice"] = F.when(
        F.col("_only_in") == STREAM, grid.timestamp_column(grid.number_column(clock))
    ).otherwise(F.col("_slice"))
    columns = {column: F.when(is_explained, value).otherwise(F.col(column)) for column, value in new_values.items()}
    added = (f"_upstream{column}" for column in (*DETAIL_COLUMNS, "_clock"))
    return materialize(joined.transform(with_columns, columns).drop(*added), eager=True)


def _pair_unknown_rows(rows: DataFrame, compared: ComparedColumns, views: ComparedViews) -> DataFrame:
    """Report changed values where the first inputs of a chain do not contain a row of the stream."""
    is_unknown = (F.col("_only_in") == STREAM) & (F.col("_cause") == MISSING) & F.col("_pipeline").isNotNull()
    if rows.where(is_unknown).isEmpty():
        return rows
    is_partner = (F.col("_only_in") == BATCH) & ~F.col("_cause").isin("pending", CHANGED_VALUE)
    paired = rows.withColumnRenamed("_changed", "_changed_here")
    unordered = list_unordered_columns(views.batch.pipeline)
    paired = add_changed_columns(paired, compared, unordered, is_unknown | is_partner)
    is_changed = F.coalesce(F.size("_changed") > 0, F.lit(False))
    columns: dict[str, Column] = {name: F.when(~is_changed, F.col(name)) for name in DETAIL_COLUMNS}
    columns["_cause"] = F.when(is_changed, CHANGED_VALUE).otherwise(F.col("_cause"))
    columns["_detail"] = F.when(is_changed, F.concat_ws(", ", "_changed")).otherwise(F.col("_detail"))
    columns["_changed"] = F.when(is_changed, F.col("_changed")).otherwise(F.col("_changed_here"))
    return materialize(paired.transform(with_columns, columns).drop("_changed_here"), eager=True)
