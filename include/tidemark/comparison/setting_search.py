"""Search the settings under which a stream may have run, by replays of all committed slices.

A stream has one set of settings. So a trial is judged over all rows: by the rows without a cause that it explains, and
by the equal rows that would differ under it.
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
from tidemark.comparison.in_memory_replay import add_lane, replay_lanes, replay_slices, tune_for_replays
from tidemark.comparison.setting_candidates import SettingChanges, suggest_settings
from tidemark.config import with_overrides
from tidemark.config.sides import SIDES, SideName
from tidemark.formatting import format_count, quote_identifier
from tidemark.joins.output_schema import select_emissions
from tidemark.ledger.state_fingerprint import content_hash
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.materialization import materialize

WINDOW_COLUMNS = ("_window_start", "_window_end", "_right_window_start", "_right_window_end")
"""Bounds of windows, in emissions that contain them."""
PROVENANCE_COLUMNS = ("_emission", *WINDOW_COLUMNS)
"""Columns of emissions other than the inputs' that engines can provide too."""


@dataclass(frozen=True)
class SettingTrial:
    """Result of a replay under other settings."""

    settings: dict[str, str | tuple[str, ...]]
    """Settings that differ from the pipeline's, by dotted name."""
    explains: int
    """Number of rows without another cause that the trial emits as often as the stream."""
    contradicts: int
    """Number of rows that the trial emits more or less often than the stream, beyond those that differ now."""

    @property
    def is_supported(self) -> bool:
        """True if the trial explains more rows than it contradicts."""
        return self.explains > self.contradicts

    @property
    def sort_key(self) -> tuple[int, int]:
        """Key that sorts the best trial first; of equal ones that with fewer settings."""
        return self.contradicts - self.explains, len(self.settings)

    @property
    def summary(self) -> str:
        """The settings and both counts, in words."""
        values = {name: value if isinstance(value, str) else ", ".join(value) for name, value in self.settings.items()}
        settings = " and ".join(f"{name}: {value}" for name, value in values.items())
        return f"{settings} explains {format_count(self.explains, 'row')} and contradicts {self.contradicts:,}"


def replay_emissions(view: CommittedView, changes: SettingChanges) -> DataFrame:
    """Replay a view's slices from empty state under other settings; return emissions in the form of the table."""
    pipeline = with_overrides(view.pipeline, changes)
    answer = replay_slices(pipeline, view.inputs, _committed_range(view), drain=view.last.drained)
    return select_emissions(answer.joined, pipeline, view.grid)


def search_settings(
    unexplained: DataFrame, view: CommittedView, stream: DataFrame, names: Sequence[str], until: int | None
) -> tuple[tuple[SettingTrial, ...], DataFrame | None]:
    """Try the settings that rows without a cause suggest.

    Args:
        names: the columns to compare.
        until: clock up to which the stream has read (microseconds, exclusive). Later emissions contradict nothing.

    Returns:
        The trials, the best first, and the `_id` of the rows that the best one explains.
    """
    candidates, hasher = list(suggest_settings(unexplained, view, stream)), _RowHasher.create(view, names)
    if not candidates:
        return (), None
    scores = [_Score(f"_set_{number}") for number in range(len(candidates))]
    totals = Observation()
    with tune_for_replays(view.spark, view.inputs, len(candidates)):
        # Planning keeps one core busy, and each replay has jobs of its own.
        with ThreadPoolExecutor(2) as pool:
            replays = list(
                pool.map(lambda group: _replay_candidates(view, group, hasher, until), _group_by_job(candidates))
            )
        contents = [
            _select_contents(unexplained, hasher.hash(unexplained), F.lit(_OPEN), F.col("_copies")),
            *(
                _select_contents(rows, hasher.hash(rows), F.lit(name))
                for name, rows in ((_BATCH, view.read_emissions()), (_STREAM, stream))
            ),
            *replays,
        ]
        counts = _count_contents(reduce(DataFrame.unionByName, contents), scores)
        sums = (column for score in scores for column in score.sum_columns())
        counts = counts.observe(totals, *sums).where(F.col(_OPEN) > 0)
        agreeing = materialize(
            counts.select("_content", *(score.agrees.alias(score.name) for score in scores)), eager=True
        )
    trials = [score.to_trial(changes, totals) for score, changes in zip(scores, candidates, strict=True)]
    order = sorted(range(len(candidates)), key=lambda number: trials[number].sort_key)
    hashed = unexplained.select("_id", hasher.hash(unexplained).alias("_content"))
    explained = hashed.join(agreeing.where(scores[order[0]].name), "_content", "semi")
    return tuple(trials[number] for number in order), explained.select("_id")


@dataclass(frozen=True)
class _RowHasher:
    """Hashes emissions of the table, of the stream and of replays alike."""

    input_columns: dict[SideName, dict[str, str]]
    """Compared columns of each input, by their names in the emissions."""
    other_columns: list[str]
    from_input_hashes: bool
    """True if hashes of the input rows suffice, so that a replay need not carry their columns."""

    @classmethod
    def create(cls, view: CommittedView, names: Sequence[str]) -> _RowHasher:
        """Divide the compared columns by their origin."""
        input_columns: dict[SideName, dict[str, str]] = {
            side: {name: source for name, source in view.map_columns(side).items() if name in names} for side in SIDES
        }
        other_columns = [name for name in names if not any(name in columns for columns in input_columns.values())]
        is_plain = view.pipeline.join.condition is None and view.pipeline.explode is None
        from_hashes = set(other_columns).issubset(PROVENANCE_COLUMNS) and is_plain
        return cls(input_columns, other_columns, from_input_hashes=from_hashes)

    def hash(self, rows: DataFrame) -> Column:
        """Return a hash of emissions."""
        parts = [_hash_side(rows, list(columns)) for columns in self.input_columns.values() if columns]
        return self._combine(rows, parts)

    def reduce_inputs(self, rows: DataFrame) -> DataFrame:
        """Replace `left` and `right` of the rows of a replay by their hashes, if these suffice."""
        if not self.from_input_hashes:
            return rows
        for side, columns in self.input_columns.items():
            flat = {f"_column_{number}": F.col(side)[source] for number, source in enumerate(columns.values())}
            wide = rows.transform(with_columns, flat)
            hashed = F.struct(_hash_side(wide, list(flat)).alias("_hash"))
            rows = wide.withColumn(side, F.when(F.col("side") == side, hashed)).drop(*flat)
        return rows

    def hash_replayed(self, rows: DataFrame) -> Column:
        """Return the hash, equal to `hash`, of emissions of a replay of `reduce_inputs`."""
        if not self.from_input_hashes:
            return self.hash(rows)
        return self._combine(rows, [F.col(f"{side}__hash") for side, columns in self.input_columns.items() if columns])

    def _combine(self, rows: DataFrame, parts: Sequence[Column]) -> Column:
        return F.xxhash64(*parts, *([content_hash(rows, self.other_columns)] if self.other_columns else []))


def _hash_side(rows: DataFrame, names: Sequence[str]) -> Column:
    """Return a hash of an input's columns; null if all are null, as in padded rows."""
    if not names:
        return F.lit(None).cast("long")
    is_absent = reduce(Column.__and__, (F.col(quote_identifier(name)).isNull() for name in names))
    return F.when(~is_absent, content_hash(rows, names))


_OPEN, _BATCH, _STREAM = "_open", "_batch", "_stream"
"""Columns with the copies of a content among rows without a cause, emissions and stream. Each trial has another one."""


@dataclass(frozen=True)
class _Score:
    """Score of a trial, whose copies of each content are in column `name`."""

    name: str

    @property
    def agrees(self) -> Column:
        """True if the trial emits a content as often as the stream."""
        return F.col(self.name) == F.col(_STREAM)

    def sum_columns(self) -> Iterator[Column]:
        """Yield the number of rows that the trial explains, and that it contradicts."""
        differs_now = F.abs(F.col(_BATCH) - F.col(_STREAM))
        would_differ = F.abs(F.col(self.name) - F.col(_STREAM))
        is_excused = F.col("_not_due") & (F.col(self.name) > F.col(_STREAM))
        worse = F.when(~is_excused, F.greatest(would_differ - differs_now, F.lit(0)))
        yield F.sum(F.when(self.agrees, F.least(_OPEN, differs_now))).alias(f"{self.name}_explains")
        yield F.sum(worse).alias(f"{self.name}_contradicts")

    def to_trial(self, settings: SettingChanges, totals: Observation) -> SettingTrial:
        """Return the trial with its observed totals."""
        explains, contradicts = (totals.get[f"{self.name}_{name}"] or 0 for name in ("explains", "contradicts"))
        return SettingTrial(dict(settings), explains, contradicts)


def _group_by_job(candidates: Sequence[SettingChanges]) -> Iterator[dict[int, SettingChanges]]:
    """Group consecutive candidates that can be lanes of one job, by their number."""
    for _, group in groupby(enumerate(candidates), key=lambda item: (item[1].get("dialect"), "restarts" in item[1])):
        yield dict(group)


def _replay_candidates(
    view: CommittedView, candidates: Mapping[int, SettingChanges], hasher: _RowHasher, until: int | None
) -> DataFrame:
    """Replay candidates with successive numbers as lanes of one job, and return the contents they emit."""
    pipelines = [with_overrides(view.pipeline, changes) for changes in candidates.values()]
    if hasher.from_input_hashes:
        pipelines = [pipeline.model_copy(update={"select": None}) for pipeline in pipelines]
    slices, drain = _committed_range(view), view.last.drained
    answer = replay_lanes(pipelines, view.inputs, slices, drain=drain, transform=hasher.reduce_inputs)
    emitted = select_emissions(add_lane(answer.joined), pipelines[0], view.grid)
    # Columns that this dialect does not provide are null.
    missing = {name for name in hasher.other_columns if name not in emitted.columns}
    emitted = emitted.transform(with_columns, dict.fromkeys(missing, F.lit(None)))
    number = (F.col("_lane") + min(candidates)).cast("string")
    not_due = F.lit(False) if until is None else view.grid.end_column(F.unix_micros("_slice")) > until
    name = F.concat(F.lit("_set_"), number)
    return _select_contents(emitted, hasher.hash_replayed(emitted), name, not_due=not_due)


def _select_contents(
    rows: DataFrame, content: Column, name: Column, copies: Column | None = None, not_due: Column | None = None
) -> DataFrame:
    """Select the hash of each row's content, and the name of the column that counts it."""
    return rows.select(
        content.alias("_content"),
        name.alias("_of"),
        (F.lit(1) if copies is None else copies).cast("long").alias("_copies"),
        (F.lit(False) if not_due is None else not_due).alias("_not_due"),
    )


def _count_contents(contents: DataFrame, scores: Sequence[_Score]) -> DataFrame:
    """Count the copies of each content, in a column for each name."""
    names = [_OPEN, _BATCH, _STREAM, *(score.name for score in scores)]
    counts = (F.sum(F.when(F.col("_of") == name, F.col("_copies")).otherwise(0)).alias(name) for name in names)
    return contents.groupBy("_content").agg(F.bool_or("_not_due").alias("_not_due"), *counts)


def _committed_range(view: CommittedView) -> range:
    return range(next(iter(view.ledger.entries)), view.end)
