"""A checkpoint made once more from the inputs, at the versions that its slices have read. Nothing is written.

The slices are replayed by the engine that ran them, in as few jobs as their input versions allow: a new one begins
where another version was read, or where rows of earlier slices were taken.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import SavedState
from tidemark.config.sides import SIDES
from tidemark.erasure.logical import rows_forgotten, without
from tidemark.errors import InputError, SliceOrderError
from tidemark.execution.job_spec import is_tiny
from tidemark.execution.replay import replay
from tidemark.joins import Join, join_of, lane_of
from tidemark.ledger.checkpoint_files import buffered_after, numbered, stored
from tidemark.ledger.config_fingerprint import settings_text, under_others
from tidemark.ledger.erasure_records import as_text, forgotten_of, from_text
from tidemark.ledger.ledger import Entry
from tidemark.ledger.staleness import ConsumedVersions, consumed_versions, stale, start_of_chain
from tidemark.ledger.state_fingerprint import digests, state_parts
from tidemark.sources.stored_input import StoredInput, rows_of_slices, schemas_of, stored_inputs, trace_of
from tidemark.spark.lazy_session import awake
from tidemark.spark.materialization import computed_once
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.buckets import Buckets, Lane, Watermarks
from tidemark.watermarks.micro_batches import QueryLane


@dataclass(frozen=True)
class Rebuilt:
    """A state as the inputs have it."""

    rows: DataFrame
    """The rows in the buffers at the end of the last slice."""
    join: Join
    digests: dict[int, str]
    """The digest of the state at the end of each slice."""
    jobs: int


def rebuild(state: SavedState, trusted: Entry | None = None) -> Rebuilt:
    """Replay the slices up to a state's, from the first of its chain or behind one whose checkpoint is trusted.

    Raises:
        SliceOrderError: a slice no longer holds, or ran under other settings.
        InputError: a version that a slice has read is gone.
    """
    awake(state.spark)
    start = trusted or start_of_chain(state.ledger, state.entry)
    assert start, "the slice itself is a start"
    first = start.number + 1 if trusted else start.number
    chain = [state.ledger.entries[number] for number in range(first, state.entry.number + 1)]
    _refuse(state, chain)
    if trusted and _has_met(chain[0], _lost(trusted)):
        raise SliceOrderError(
            f"--from {state.grid.name(first)}: rows of the state there were forgotten since, and the slices behind it "
            "had met them; leave --from out, or name another"
        )
    digest_of: dict[int, str] = {}
    carried = state.rows(trusted) if trusted else None
    marks = trusted.watermarks if trusted else Watermarks()
    jobs = list(_jobs(chain, back_to_back=state.pipeline.spark.batches == "back_to_back"))
    for job in jobs:
        with _gone(state, job):
            carried, join, part, marks = _replayed(state, job, carried, marks)
        digest_of |= part
    assert carried is not None, "there is at least one slice"
    return Rebuilt(without(carried, from_text(_lost(state.entry))), join, digest_of, len(jobs))


def _replayed(
    state: SavedState, job: list[Entry], carried: DataFrame | None, before: Watermarks
) -> tuple[DataFrame, Join, dict[int, str], Watermarks]:
    """The rows in the buffers after a job, its join, the digest after each of its slices, and the watermarks."""
    pipeline, grid, spark = state.pipeline, state.grid, state.spark
    slices, last = range(job[0].number, job[-1].number + 1), job[-1]
    # What was forgotten since has taken part: it goes from what comes of it.
    gone = from_text(last.left_out)
    inputs = stored_inputs(spark, pipeline, state.lake, last.versions, gone)
    join = join_of(pipeline, spark, schemas_of(inputs))
    consumed = [_consumed(state, job[0], side) for side in range(len(inputs))]
    rows = rows_of_slices(inputs, grid, slices, consumed).withColumn("lane", F.lit(0))
    lane = _lane(state, inputs, before, last)
    came = without(carried, gone).withColumn("lane", F.lit(0)) if carried is not None else None
    tiny = is_tiny(sum(sum(entry.read) for entry in job), state.ledger.entry(job[0].number - 1))
    with tuned_for_tiny_queries(spark) if tiny else nullcontext():
        answer = replay(rows, came, [lane], join, Buckets.of(grid, slices, join.buckets_per_slice))
        carried = answer.carried.persist()
        ends = answer.lines[0].ends
        digest_of: dict[int, str] = {}
        for lost in sorted({_lost(entry) for entry in job}):
            left = numbered(stored(without(carried, from_text(lost)), slices, grid, join), grid)
            counts = {entry.number: rows_forgotten(entry) for entry in job}
            found = digests(state_parts(left, join).toPandas(), ends, counts)
            digest_of |= {entry.number: found[entry.number] for entry in job if _lost(entry) == lost}
        # Not `persist`: the next job's plan would have all of this one in it.
        kept = computed_once(buffered_after(carried.drop("lane"), last.number), now=True)
    carried.unpersist()
    return kept, join, digest_of, ends[last.number]


def _lost(entry: Entry) -> str:
    """What rows of a state were forgotten by, as `forgotten.as_text`; empty where none were."""
    told = [one.where for one in forgotten_of(entry.forgotten) if one.rows.get("checkpoint")]
    return as_text({side: [where[side] for where in told if side in where] for side in SIDES}) or ""


def _has_met(entry: Entry, lost: str) -> bool:
    """Whether a slice ran before all that was forgotten of the state before it was."""
    known = from_text(entry.left_out)
    return any(text not in known.get(side, ()) for side, texts in from_text(lost).items() for text in texts)


def _lane(state: SavedState, inputs: tuple[StoredInput, StoredInput], before: Watermarks, last: Entry) -> Lane:
    """The stream of a job whose last slice ended the input, or not."""
    lane = lane_of(state.pipeline, before, None, trace_of(inputs))
    drained = last.drained
    if isinstance(lane, QueryLane):  # the batch that follows the last one has run, or there was none to run
        drained = lane.next_watermark(last.watermarks) == last.watermarks.batch
    return replace(lane, drain=last.number) if drained else lane


def _consumed(state: SavedState, first: Entry, side: int) -> ConsumedVersions:
    """What a job had no need to take, of the version that it read."""
    version = first.versions[side]
    if not first.landed:
        return ConsumedVersions((), version)
    consumed = consumed_versions(
        (entry for entry in state.ledger.entries.values() if entry.number < first.number), side
    )
    homes = consumed.by_slice if first.landing == "append" else ()
    unplaced = None if consumed.unplaced is None else min(consumed.unplaced, version)
    return ConsumedVersions(tuple((home, min(known, version)) for home, known in homes), unplaced)


def _jobs(chain: Iterable[Entry], *, back_to_back: bool) -> Iterator[list[Entry]]:
    """Slices that one replay can take; where batches run back to back, a job may have ended the input for a while."""
    job: list[Entry] = []
    for entry in chain:
        other = job and (
            entry.left_out != job[-1].left_out
            or entry.versions != job[-1].versions
            or (back_to_back and entry.run != job[-1].run)
        )
        if other or entry.landed:
            yield from [job] if job else []
            job = []
        job.append(entry)
    yield job


def _refuse(state: SavedState, chain: list[Entry]) -> None:
    command, label = f"tidemark run {state.pipeline.name}", state.grid.name
    if bad := sorted(stale(state.ledger).keys() & {entry.number for entry in chain}):
        raise SliceOrderError(
            f"slice {label(bad[0])} no longer follows from what stands before it, so the state after it cannot be "
            f"rebuilt; {command} repairs it"
        )
    if other := next(under_others(chain, settings_text(state.pipeline), state.grid), None):
        raise SliceOrderError(
            f"slice {label(other[0])} ran under other settings than the pipeline file has now; restore them to "
            "rebuild its state"
        )


@contextmanager
def _gone(state: SavedState, job: list[Entry]) -> Iterator[None]:
    """Tell files that a version had, and that are gone, as such."""
    try:
        with warnings.catch_warnings():
            # It has the stack of the error that is told here in one line.
            warnings.filterwarnings("ignore", "toPandas attempted Arrow optimization")
            yield
    except (PySparkException, Py4JJavaError) as error:
        if not any(sign in str(error) for sign in _SIGNS):
            raise
        left, right = job[0].versions
        label = state.grid.name
        raise InputError(
            f"version {left} of {state.pipeline.left.table} or {right} of {state.pipeline.right.table}, which slice "
            f"{label(job[0].number)} has read, is gone (VACUUM, or an expired log); trust a later checkpoint: "
            f"--from {label(job[-1].number + 1)} or after"
        ) from None


_SIGNS = (
    "PATH_NOT_FOUND",
    "FILE_NOT_EXIST",
    "FILE_NOT_FOUND",
    "FileNotFoundException",
    "DELTA_VERSION_NOT_FOUND",
    "Cannot time travel",
)
