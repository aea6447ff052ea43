"""Search the settings under which a stream may have run, by replays of all committed slices.

A stream has one set of settings. So a trial is evaluated over all rows: by the rows without a cause that it explains,
and by the equal rows that would differ under it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce
from itertools import groupby, product

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from tidemark.comparison.committed_view import CommittedView
from tidemark.comparison.in_memory_replay import replay_slices, replay_variants, tune_for_replays
from tidemark.comparison.setting_candidates import WINDOW_OFFSET, SettingChanges, suggest_settings
from tidemark.comparison.setting_trials import SettingTrial, combine_settings, sort_trials
from tidemark.comparison.window_shift import WINDOW_COLUMNS, find_window_shift
from tidemark.config import with_overrides
from tidemark.config.sides import SIDES, SideName
from tidemark.execution.lane_replay import add_lane
from tidemark.formatting import quote_identifier
from tidemark.joins.output_schema import select_emissions
from tidemark.ledger.row_content import content_hash, list_unordered_columns
from tidemark.spark.dataframe_utils import with_columns
from tidemark.spark.engine import get_engine
from tidemark.spark.materialization import materialize_and_aggregate

PROVENANCE_COLUMNS = ("_emission", *WINDOW_COLUMNS)
"""Columns of emissions other than the inputs' that engines can provide too."""


def replay_emissions(view: CommittedView, changes: SettingChanges) -> DataFrame:
    """Replay a view's slices under other settings; return emissions in the form of the table."""
    pipeline = with_overrides(view.pipeline, changes)
    entries = view.ledger.entries
    results = (
        replay_slices(
            pipeline, view.inputs, chain, drain=entries[chain[-1]].drained, committed=view.ledger.entries.values()
        )
        for chain in view.chains
    )
    return reduce(DataFrame.unionByName, (select_emissions(each.joined, pipeline, view.grid) for each in results))


def search_settings(
    unexplained: DataFrame, view: CommittedView, stream: DataFrame, names: Sequence[str], until: int | None
) -> tuple[tuple[SettingTrial, ...], DataFrame | None]:
    """Try the settings that rows without a cause suggest.

    The first round has few settings each. If none of them explains all rows, the second one has pairs of single ones.

    Args:
        names: The columns to compare.
        until: Clock up to which the stream has read (microseconds, exclusive). Later emissions contradict nothing.

    Returns:
        The trials, the best first, and the `_id` of the rows that the best one explains.
    """
    search = _Search(unexplained, view, stream, _RowHasher.create(view, names), until)
    candidates = list(suggest_settings(unexplained, view, stream))
    if find_window_shift(unexplained, names, list_unordered_columns(view.pipeline)):
        # The stream lacks each emission, so any settings that emit fewer rows would seem to explain some.
        candidates = [changes for changes in candidates if WINDOW_OFFSET in changes]
    if not candidates:
        return (), None
    rounds = [search.try_settings(candidates)]
    pipeline = view.pipeline
    trials = sort_trials(pipeline, rounds[0].trials)
    if not rounds[0].is_perfect(trials[0]) and (combined := combine_settings(pipeline, trials)):
        rounds.append(search.try_settings(combined))
        trials = sort_trials(pipeline, [*trials, *rounds[1].trials])
    best = next(search_round for search_round in rounds if trials[0] in search_round.trials)
    return tuple(trials), search.select_agreeing(best, trials[0])


@dataclass(frozen=True)
class _Round:
    """Trials of one round of the search."""

    trials: tuple[SettingTrial, ...]
    agreeing: DataFrame
    """`_content` of rows without a cause; column `_set_NUMBER`: true if that trial emits it as often as the stream."""
    explainable: int
    """Number of rows without a cause."""

    def is_perfect(self, trial: SettingTrial) -> bool:
        """Return True if no trial can explain more rows, or contradict fewer."""
        return trial.explains == self.explainable and not trial.contradicts


@dataclass(frozen=True)
class _Search:
    """The rows by which trials are evaluated."""

    unexplained: DataFrame
    view: CommittedView
    stream: DataFrame
    hasher: _RowHasher
    until: int | None

    def try_settings(self, candidates: Sequence[SettingChanges]) -> _Round:
        """Replay candidates, and count the rows that each explains and contradicts."""
        scores = [_Score(f"_set_{number}") for number in range(len(candidates))]
        with tune_for_replays(self.view.spark, self.view.inputs, len(candidates)):
            # Planning keeps one core busy, and each replay has jobs of its own.
            with ThreadPoolExecutor(2 if get_engine(self.view.spark).can_share_session else 1) as pool:
                replays = list(
                    pool.map(
                        lambda job: _replay_candidates(self.view, job[0], job[1], self.hasher, self.until),
                        product(self.view.chains, _group_by_job(candidates)),
                    )
                )
            counts = _count_contents(reduce(DataFrame.unionByName, [*self._select_contents(), *replays]), scores)
            sums = {name: column for score in scores for name, column in score.list_sums().items()}
            sums["_explainable"] = F.sum(_count_explainable())
            agrees = [score.agrees.alias(score.name) for score in scores]
            agreeing, totals = materialize_and_aggregate(
                counts, sums, lambda counts: counts.where(F.col(_OPEN) > 0).select("_content", *agrees)
            )
        trials = (score.to_trial(changes, totals) for score, changes in zip(scores, candidates, strict=True))
        return _Round(tuple(trials), agreeing, totals["_explainable"])

    def select_agreeing(self, tried: _Round, trial: SettingTrial) -> DataFrame:
        """Return the `_id` of rows without a cause that a trial explains."""
        hashed = self.unexplained.select("_id", self.hasher.hash(self.unexplained).alias("_content"))
        name = f"_set_{tried.trials.index(trial)}"
        return hashed.join(tried.agreeing.where(name), "_content", "semi").select("_id")

    def _select_contents(self) -> Iterator[DataFrame]:
        """Yield the contents of rows without a cause, of the emissions and of the stream."""
        rows, contents = self.unexplained, self.hasher.hash
        yield _select_contents(rows, contents(rows), F.lit(_OPEN), F.col("_copies"))
        for name, rows in ((_BATCH, self.view.read_emissions()), (_STREAM, self.stream)):
            yield _select_contents(rows, contents(rows), F.lit(name))


@dataclass(frozen=True)
class _RowHasher:
    """Hashes emissions of the table, of the stream and of replays alike."""

    input_columns: dict[SideName, dict[str, str]]
    """Compared columns of each input, by their names in the emissions."""
    other_columns: list[str]
    unordered: tuple[str, ...]
    """Columns whose arrays have no order."""
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
        unordered = list_unordered_columns(view.pipeline)
        return cls(input_columns, other_columns, unordered, from_input_hashes=from_hashes)

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
        return F.xxhash64(*parts, content_hash(rows, self.other_columns, self.unordered))


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

    def list_sums(self) -> dict[str, Column]:
        """Return the number of rows that the trial explains, and that it contradicts."""
        would_differ = F.abs(F.col(self.name) - F.col(_STREAM))
        is_excused = F.col("_not_due") & (F.col(self.name) > F.col(_STREAM))
        worse = F.when(~is_excused, F.greatest(would_differ - _count_differing(), F.lit(0)))
        explained = F.sum(F.when(self.agrees, _count_explainable()))
        return {f"{self.name}_explains": explained, f"{self.name}_contradicts": F.sum(worse)}

    def to_trial(self, settings: SettingChanges, totals: Mapping[str, int]) -> SettingTrial:
        """Return the trial with its totals."""
        explains, contradicts = (totals[f"{self.name}_{name}"] for name in ("explains", "contradicts"))
        return SettingTrial(dict(settings), explains, contradicts)


def _count_differing() -> Column:
    """Return the number of rows of a content that differ now."""
    return F.abs(F.col(_BATCH) - F.col(_STREAM))


def _count_explainable() -> Column:
    """Return the number of rows of a content that have no cause."""
    return F.least(_OPEN, _count_differing())


def _group_by_job(candidates: Sequence[SettingChanges]) -> Iterator[dict[int, SettingChanges]]:
    """Group consecutive candidates that can be lanes of one job, by their number."""
    # Lanes of a job have one dialect, one class of lane (restarts) and one window assigner.
    separate = ("dialect", "restarts", WINDOW_OFFSET)
    for _, group in groupby(enumerate(candidates), key=lambda item: [item[1].get(name) for name in separate]):
        yield dict(group)


def _replay_candidates(
    view: CommittedView,
    slices: range,
    candidates: Mapping[int, SettingChanges],
    hasher: _RowHasher,
    until: int | None,
) -> DataFrame:
    """Replay a chain of slices under candidates with successive numbers as lanes of one job.

    Returns:
        The contents that they emit.
    """
    pipelines = [with_overrides(view.pipeline, changes) for changes in candidates.values()]
    if hasher.from_input_hashes:
        pipelines = [pipeline.model_copy(update={"select": None}) for pipeline in pipelines]
    result = replay_variants(
        pipelines,
        view.inputs,
        slices,
        drain=view.ledger.entries[slices[-1]].drained,
        committed=view.ledger.entries.values(),
        transform=hasher.reduce_inputs,
    )
    emitted = select_emissions(add_lane(result.joined), pipelines[0], view.grid)
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
