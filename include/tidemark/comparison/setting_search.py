"""Under which other settings a stream may have run: few sets of them, each replayed once over all committed slices.

A stream has one set of settings. So a set is judged over all rows: by those without a cause that it explains, and by
those that are the same now and would differ under it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import groupby

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.in_memory_replay import replayed, side_by_side, tuned_for, with_lane
from tidemark.comparison.setting_candidates import Changes, candidates
from tidemark.config import changed
from tidemark.config.sides import SIDES, SideName
from tidemark.formatting import counted, quoted
from tidemark.joins.output_schema import emissions
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import computed_once

WINDOWS = ("_window_start", "_window_end", "_right_window_start", "_right_window_end")
"""The bounds of windows, where emissions tell them."""
PROVENANCE = ("_emission", *WINDOWS)
"""What emissions tell beside columns of the inputs, and engines too."""


@dataclass(frozen=True)
class Tried:
    """A set of settings under which all slices were replayed."""

    settings: dict[str, str | tuple[str, ...]]
    """Those in which it is not the pipeline's, by their dotted names."""
    explains: int
    """Rows without another cause that it gives as often as the stream has them."""
    contradicts: int
    """Rows that it gives more or less often than the stream, beyond those that differ now."""

    @property
    def holds(self) -> bool:
        """Whether the stream as a whole speaks for it."""
        return self.explains > self.contradicts

    @property
    def rank(self) -> tuple[int, int]:
        """By what the best one has least: where as much speaks for two, that is the one with fewer settings."""
        return self.contradicts - self.explains, len(self.settings)

    @property
    def told(self) -> str:
        """The settings and both counts, in words."""
        values = {name: one if isinstance(one, str) else ", ".join(one) for name, one in self.settings.items()}
        settings = " and ".join(f"{name}: {value}" for name, value in values.items())
        return f"{settings} explains {counted(self.explains, 'row')} and contradicts {self.contradicts:,}"


def emissions_under(view: CommittedView, changes: Changes) -> DataFrame:
    """The emissions of a view's slices under other settings, from empty state; as the table has them."""
    pipeline = changed(view.pipeline, changes)
    result = replayed(pipeline, view.inputs, _slices(view), drain=view.last.drained)
    return emissions(result.joined, pipeline, view.grid)


def try_settings(
    unexplained: DataFrame, view: CommittedView, stream: DataFrame, names: Sequence[str], until: int | None
) -> tuple[tuple[Tried, ...], DataFrame | None]:
    """The sets of settings that rows without a cause suggest, the best first; and the `_id` of the rows it explains.

    Rows are compared by the columns `names`. `until` is how far the stream has come on the clock (microseconds,
    exclusive): what a set gives later than that contradicts nothing.
    """
    sets, contents = list(candidates(unexplained, view, stream)), _Contents.of(view, names)
    if not sets:
        return (), None
    judged = [_Judged(f"_set_{number}") for number in range(len(sets))]
    totals = Observation()
    with tuned_for(view.spark, view.inputs, len(sets)):
        # Planning keeps one core busy, and each has jobs of its own.
        with ThreadPoolExecutor(2) as pool:
            answers = list(pool.map(lambda part: _answer(view, part, contents, until), _by_kind(sets)))
        parts = [
            _copies(unexplained, contents.of_rows(unexplained), F.lit(_OPEN), F.col("_copies")),
            *(
                _copies(rows, contents.of_rows(rows), F.lit(of))
                for of, rows in ((_OURS, view.emissions()), (_THEIRS, stream))
            ),
            *answers,
        ]
        whole = _counted(reduce(DataFrame.unionByName, parts), judged)
        whole = whole.observe(totals, *(sum_ for one in judged for sum_ in one.sums())).where(F.col(_OPEN) > 0)
        agreeing = computed_once(whole.select("_content", *(one.agrees.alias(one.name) for one in judged)), now=True)
    tried = [one.told(changes, totals) for one, changes in zip(judged, sets, strict=True)]
    order = sorted(range(len(sets)), key=lambda number: tried[number].rank)
    explained = unexplained.select("_id", contents.of_rows(unexplained).alias("_content")).join(
        agreeing.where(judged[order[0]].name), "_content", "semi"
    )
    return tuple(tried[number] for number in order), explained.select("_id")


@dataclass(frozen=True)
class _Contents:
    """What rows are compared by: columns of each input, by their names in the emissions, and others."""

    sides: dict[SideName, dict[str, str]]
    others: list[str]
    by_hash: bool
    """Whether emissions can be told by hashes of their input rows, so that a replay need not carry their columns."""

    @classmethod
    def of(cls, view: CommittedView, names: Sequence[str]) -> _Contents:
        """Sort out the columns compared."""
        sides: dict[SideName, dict[str, str]] = {
            side: {name: source for name, source in view.columns(side).items() if name in names} for side in SIDES
        }
        others = [name for name in names if not any(name in columns for columns in sides.values())]
        as_joined = view.pipeline.join.condition is None and view.pipeline.flatten is None
        return cls(sides, others, by_hash=set(others).issubset(PROVENANCE) and as_joined)

    def of_rows(self, rows: DataFrame) -> Column:
        """A hash of rows of emissions."""
        return self._combined(rows, [_hash_of_side(rows, list(columns)) for columns in self.sides.values() if columns])

    def carried(self, rows: DataFrame) -> DataFrame:
        """The rows that a replay reads; where hashes tell emissions, `left` and `right` have nothing else."""
        if not self.by_hash:
            return rows
        for side, columns in self.sides.items():
            flat = {f"_column_{number}": F.col(side)[source] for number, source in enumerate(columns.values())}
            wide = rows.transform(with_columns, flat)
            part = F.struct(_hash_of_side(wide, list(flat)).alias("_hash"))
            rows = wide.withColumn(side, F.when(F.col("side") == side, part)).drop(*flat)
        return rows

    def of_replayed(self, rows: DataFrame) -> Column:
        """The hash, as `of_rows`, of emissions that a replay makes of `carried`."""
        if not self.by_hash:
            return self.of_rows(rows)
        return self._combined(rows, [F.col(f"{side}__hash") for side, columns in self.sides.items() if columns])

    def _combined(self, rows: DataFrame, parts: Sequence[Column]) -> Column:
        return F.xxhash64(*parts, *([content_hash(rows, self.others)] if self.others else []))


def _hash_of_side(rows: DataFrame, names: Sequence[str]) -> Column:
    """A hash of an input's columns; null where all of them are, as in padded rows."""
    if not names:
        return F.lit(None).cast("long")
    absent = reduce(Column.__and__, (F.col(quoted(name)).isNull() for name in names))
    return F.when(~absent, content_hash(rows, names))


_OPEN, _OURS, _THEIRS = "_open", "_ours", "_theirs"
"""How often the rows without a cause, the emissions and the stream have a content; beside them the sets' own counts."""


@dataclass(frozen=True)
class _Judged:
    """A set whose answer is counted in a column of this name."""

    name: str

    @property
    def agrees(self) -> Column:
        """Whether it gives a content as often as the stream has it."""
        return F.col(self.name) == F.col(_THEIRS)

    def sums(self) -> Iterator[Column]:
        """How many rows it explains, and how many it contradicts."""
        differs_now = F.abs(F.col(_OURS) - F.col(_THEIRS))
        would_differ = F.abs(F.col(self.name) - F.col(_THEIRS))
        excused = F.col("_not_due") & (F.col(self.name) > F.col(_THEIRS))
        worse = F.when(~excused, F.greatest(would_differ - differs_now, F.lit(0)))
        yield F.sum(F.when(self.agrees, F.least(_OPEN, differs_now))).alias(f"{self.name}_explains")
        yield F.sum(worse).alias(f"{self.name}_contradicts")

    def told(self, settings: Changes, totals: Observation) -> Tried:
        """What came of it."""
        return Tried(dict(settings), *(totals.get[f"{self.name}_{sum_}"] or 0 for sum_ in ("explains", "contradicts")))


def _by_kind(sets: Sequence[Changes]) -> Iterator[dict[int, Changes]]:
    """Sets by their number, those together that can be lanes of one job."""
    for _, part in groupby(enumerate(sets), key=lambda one: (one[1].get("dialect"), "restarts" in one[1])):
        yield dict(part)


def _answer(view: CommittedView, sets: Mapping[int, Changes], contents: _Contents, until: int | None) -> DataFrame:
    """`_copies` of what sets with successive numbers give."""
    pipelines = [changed(view.pipeline, changes) for changes in sets.values()]
    if contents.by_hash:
        pipelines = [one.model_copy(update={"select": None}) for one in pipelines]
    drain, altered = view.last.drained, contents.carried
    result = side_by_side(pipelines, view.inputs, _slices(view), drain=drain, altered=altered)
    emitted = emissions(with_lane(result.joined), pipelines[0], view.grid)
    # A column that this dialect does not know is null.
    unknown = {name for name in contents.others if name not in emitted.columns}
    emitted = emitted.transform(with_columns, dict.fromkeys(unknown, F.lit(None)))
    number = (F.col("_lane") + min(sets)).cast("string")
    not_due = F.lit(False) if until is None else view.grid.end_column(F.unix_micros("_slice")) > until
    return _copies(emitted, contents.of_replayed(emitted), F.concat(F.lit("_set_"), number), not_due=not_due)


def _copies(
    rows: DataFrame, content: Column, of: Column, copies: Column | None = None, not_due: Column | None = None
) -> DataFrame:
    return rows.select(
        content.alias("_content"),
        of.alias("_of"),
        (F.lit(1) if copies is None else copies).cast("long").alias("_copies"),
        (F.lit(False) if not_due is None else not_due).alias("_not_due"),
    )


def _counted(contents: DataFrame, judged: Sequence[_Judged]) -> DataFrame:
    """How often each content is whose, in columns."""
    names = [_OPEN, _OURS, _THEIRS, *(one.name for one in judged)]
    counts = (F.sum(F.when(F.col("_of") == name, F.col("_copies")).otherwise(0)).alias(name) for name in names)
    return contents.groupBy("_content").agg(F.bool_or("_not_due").alias("_not_due"), *counts)


def _slices(view: CommittedView) -> range:
    return range(next(iter(view.ledger.entries)), view.end)
