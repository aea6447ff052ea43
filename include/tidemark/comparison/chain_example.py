"""Reduce one difference of a chain to the fewest rows that still show it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from tidemark.comparison.chain_difference import ChainDifferenceCheck, ChainRow
from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.minimal_example import MAX_CANDIDATES, find_example, minimize_context
from tidemark.comparison.multiset_diff import STREAM
from tidemark.comparison.result import Cause, Comparison
from tidemark.comparison.row_lookup import has_value, is_scalar
from tidemark.config import Pipeline
from tidemark.config.output_stream import EMITTED_AT
from tidemark.config.sides import SIDES, SideName
from tidemark.errors import UserError
from tidemark.formatting import quote_identifier
from tidemark.pipeline_tests.chain import TESTED, Chain, TableInput, format_name
from tidemark.pipeline_tests.new_case import select_relevant_columns
from tidemark.sources.stored_input import StoredInput
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.row_status import is_filtered

_ROW_COLUMNS = ("clock", "tiebreak", "event_time")
_MAX_EMISSIONS = 5
"""Largest number of emissions of the earlier joins whose causes are among the rows to try."""


@dataclass(frozen=True)
class ChainExample:
    """The fewest rows of the tables of a chain that show a difference."""

    number: int
    cause: Cause
    tables: ChainTables
    events: Sequence[ChainRow]
    """The rows in order of arrival."""
    check: ChainDifferenceCheck


def find_chain_example(
    spark: SparkSession, pipeline: Pipeline, lake: str, comparison: Comparison, number: int
) -> ChainExample:
    """Find the fewest rows of the tables of a chain that reproduce one difference of a comparison.

    Args:
        spark: A session.
        pipeline: The last pipeline of the chain.
        lake: The lake root.
        comparison: The comparison.
        number: Number of the difference among its examples.

    Raises:
        UserError: No such difference, not a matter of the joins' rules, or not shown by the rows around it.
        InputError: An input is missing or unusable.
    """
    cause, example = find_example(comparison, number)
    tables = ChainTables.open(CommittedView.read(spark, pipeline, lake))
    traced = tables.trace_columns(TESTED, list(example))
    values = {name: example[name] for name in traced if is_scalar(example[name])}
    values |= {name: example[name] for name in ("_emission",) if name in example}
    with tuned_for_tiny_queries(spark):
        targets = tables.find_targets(example, traced)
        context = tables.find_context(targets, example)
        check = ChainDifferenceCheck(
            spark, tables.chain, tables.schemas, targets, values, only_batch=cause.missing_in == STREAM
        )
        smallest = minimize_context(number, targets, context, check)
        return ChainExample(number, cause, tables, sorted([*targets, *smallest], key=ChainRow.position), check)


@dataclass(frozen=True)
class ChainTables:
    """The tables that the joins of a chain read."""

    chain: Chain
    views: Mapping[str, CommittedView]
    """The committed pipelines, by join."""

    @classmethod
    def open(cls, view: CommittedView) -> ChainTables:
        """Open the tables of all joins.

        Raises:
            SliceOrderError: One of the pipelines has no committed slice.
        """
        return cls(Chain.from_pipeline(view.pipeline), {TESTED: view, **dict(_list_views(view))})

    @cached_property
    def schemas(self) -> dict[str, T.StructType]:
        """Columns of the inputs that matter in a case, by the names of the inputs."""
        return {
            source.name: select_relevant_columns(self.chain, source, self.open_input(source).side.schema)
            for source in self.chain.inputs
        }

    def open_input(self, source: TableInput) -> StoredInput:
        """Return an input that is a table."""
        return self.views[source.join].inputs[SIDES.index(source.side)]

    def trace_columns(self, join: str, names: Iterable[str]) -> dict[str, tuple[str, str]]:
        """Map columns of a join's emissions to input and column of the table that they are copied from."""
        traced: dict[str, tuple[str, str]] = {}
        chosen = set(names)
        for side in SIDES:
            columns = {name: source for name, source in self.views[join].map_columns(side).items() if name in chosen}
            upstream = self.chain.joins[join].upstreams.get(side)
            if upstream is None:
                traced |= {name: (format_name(join, side), column) for name, column in columns.items()}
                continue
            inner = self.trace_columns(upstream.pipeline, columns.values())
            traced |= {name: inner[column] for name, column in columns.items() if column in inner}
        return traced

    def find_targets(self, example: Mapping[str, Any], traced: Mapping[str, tuple[str, str]]) -> list[ChainRow]:
        """Find the rows of the tables that a differing row consists of; none of a table whose row is padded.

        Raises:
            UserError: A table has no such row.
        """
        targets = []
        for source in self.chain.inputs:
            values = {column: example[name] for name, (table, column) in traced.items() if table == source.name}
            if conditions := self._list_conditions(self.open_input(source), values):
                rows = self._read_rows(source).where(reduce(Column.__and__, conditions))
                matching = self._collect(source, rows.orderBy("clock", "tiebreak").limit(1))
                if not matching:
                    raise UserError(
                        f"compare minimize: {source.name} does not contain a row of the difference. Run compare again."
                    )
                targets += matching
        if not targets:
            raise UserError("compare minimize: the compared columns are not columns of a table. Compare more columns.")
        return targets

    def _list_conditions(self, source: StoredInput, values: Mapping[str, Any]) -> list[Column]:
        return [
            has_value(source, name, str(value), F.col(f"row.{quote_identifier(name)}"))
            for name, value in values.items()
            if is_scalar(value)
        ]

    def find_context(self, targets: Sequence[ChainRow], example: Mapping[str, Any]) -> list[ChainRow]:
        """Find other rows that may decide a difference, in order of arrival.

        They are rows of the same keys near the targets, and the rows that determine the watermarks at all of these and
        where the earlier joins emit rows of the targets.
        """
        keys = self._find_keys(TESTED, example)
        limit = MAX_CANDIDATES // len(self.chain.inputs)
        times = [target.event_time for target in targets]
        distance = F.least(*(F.abs(F.col("event_time") - time) for time in times), F.lit(2**62))
        rows = list(targets)
        for source in self.chain.inputs:
            conditions = self._list_conditions(self.open_input(source), keys.get(source.name, {}))
            near = self._read_rows(source).where(reduce(Column.__and__, conditions, F.lit(True)))
            rows += self._collect(source, near.orderBy(distance).limit(limit))
        positions = sorted({*(row.clock for row in rows), *self._find_emission_clocks(TESTED, example)})
        for source in self.chain.inputs:
            rows += self._collect(source, self._find_newest(source, positions))
        distinct = {row.identity: row for row in rows}
        is_target = {target.identity for target in targets}
        return sorted((row for identity, row in distinct.items() if identity not in is_target), key=ChainRow.position)

    def _find_keys(self, join: str, values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Find the values of key columns of the tables, as far as a row of a join's output has them."""
        keys: dict[str, dict[str, Any]] = {}
        by_side: dict[SideName, dict[str, Any]] = {side: self._select_values(join, side, values) for side in SIDES}
        for pair in self.chain.joins[join].join.keys:
            value = by_side["left"].get(pair.left, by_side["right"].get(pair.right))
            by_side["left"][pair.left] = by_side["right"][pair.right] = value
        for side in SIDES:
            upstream = self.chain.joins[join].upstreams.get(side)
            if upstream:
                keys |= self._find_keys(upstream.pipeline, by_side[side])
                continue
            names = {getattr(pair, side) for pair in self.chain.joins[join].join.keys}
            columns = names & set(self.views[join].inputs[SIDES.index(side)].side.schema.names)
            keys[format_name(join, side)] = {name: by_side[side][name] for name in columns}
        return keys

    def _select_values(self, join: str, side: SideName, values: Mapping[str, Any]) -> dict[str, Any]:
        columns = self.views[join].map_columns(side)
        return {column: values[name] for name, column in columns.items() if values.get(name) is not None}

    def _find_emission_clocks(self, join: str, values: Mapping[str, Any]) -> Iterator[int]:
        """Yield the clocks after which earlier joins have emitted rows with the values of a row of a join's output."""
        for side in self.chain.joins[join].upstreams:
            own = self._select_values(join, side, values)
            source = self.views[join].inputs[SIDES.index(side)]
            copied = self.trace_columns(self.chain.joins[join].upstreams[side].pipeline, own)
            conditions = [has_value(source, name, str(own[name])) for name in copied if is_scalar(own[name])]
            if conditions:
                rows = source.table.read().where(reduce(Column.__and__, conditions))
                clocks = rows.select(F.unix_micros(EMITTED_AT).alias("clock")).limit(_MAX_EMISSIONS).collect()
                yield from (row["clock"] + 1 for row in clocks)
            yield from self._find_emission_clocks(self.chain.joins[join].upstreams[side].pipeline, own)

    def _read_rows(self, source: TableInput) -> DataFrame:
        """Read the rows of a table that can advance its watermark: position, event time in ms, and the columns."""
        stored = self.open_input(source)
        grid = self.views[source.join].grid
        side = stored.side
        stored.changes.require_exact_arrivals(grid, 0)
        rows = side.normalize(stored.table.read().where(side.clock.micros >= grid.start), grid, grid.start)
        columns = [F.col(side.name)[name].alias(name) for name in side.schema.names]
        takes_part = F.col("rejected").isNull() | is_filtered()
        return rows.where(takes_part).select(*_ROW_COLUMNS, F.struct(*columns).alias("row"))

    def _find_newest(self, source: TableInput, positions: Sequence[int]) -> DataFrame:
        """Find the row with the newest event time before each position."""
        rows = self._read_rows(source)
        table = rows.sparkSession.createDataFrame([(position,) for position in positions], "position long")
        earlier = rows.join(F.broadcast(table), F.col("clock") < F.col("position"))
        newest = F.max_by(F.struct(*rows.columns), F.col("event_time")).alias("newest")
        return earlier.groupBy("position").agg(newest).select("newest.*")

    def _collect(self, source: TableInput, rows: DataFrame) -> list[ChainRow]:
        names = self.schemas[source.name].names
        columns = F.struct(*(F.col("row")[name].alias(name) for name in names)).alias("row")
        collected = rows.select(*_ROW_COLUMNS, columns).toArrow().to_pylist()
        return [
            ChainRow(source.name, row["clock"], row["tiebreak"], row["event_time"], row["row"]) for row in collected
        ]


def _list_views(view: CommittedView) -> Iterator[tuple[str, CommittedView]]:
    for upstream in view.upstreams.values():
        yield from _list_views(upstream)
        yield upstream.pipeline.name, upstream
