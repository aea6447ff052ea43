"""Rebuild a checkpoint from the inputs, at the versions that its slices have read, without writing.

The engine of the runs replays the slices in as few jobs as possible (`sources.job_inputs.split_into_jobs`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from tidemark.checkpoints.checkpoint_ref import CheckpointRef
from tidemark.config.candidate_version import format_cli_arguments
from tidemark.config.sides import SIDES
from tidemark.erasure.predicates import drop_excluded_rows
from tidemark.erasure.row_erasure import count_erased_carried_rows
from tidemark.errors import InputError, SliceOrderError
from tidemark.execution.job_spec import is_tiny_job, repeat_drains
from tidemark.execution.replay import replay
from tidemark.joins.base import Join
from tidemark.joins.factory import create_join, create_lane
from tidemark.ledger.checkpoint_files import filter_buffered_rows, to_table_rows, with_slice_numbers
from tidemark.ledger.config_fingerprint import find_slices_with_other_settings, serialize_settings
from tidemark.ledger.entry import Entry
from tidemark.ledger.erasure_records import parse_erasure_records, predicates_from_json, predicates_to_json
from tidemark.ledger.staleness import find_stale_slices, find_start_of_chain
from tidemark.ledger.state_fingerprint import compute_fingerprints, state_parts
from tidemark.sources.job_inputs import JobInputs, split_into_jobs
from tidemark.sources.stored_input import get_query_trace, get_schemas
from tidemark.spark.lazy_session import resolve_session
from tidemark.spark.materialization import materialize
from tidemark.spark.missing_files import is_missing_file_error
from tidemark.spark.temporary_settings import tuned_for_tiny_queries
from tidemark.watermarks.buckets import Buckets
from tidemark.watermarks.values import Watermarks


@dataclass(frozen=True)
class RebuiltState:
    """A state recomputed from the inputs."""

    rows: DataFrame
    """The rows in the buffers at the end of the last slice."""
    join: Join
    fingerprints: dict[int, str]
    """Fingerprint of the state at the end of each slice."""
    jobs: int


def rebuild_state(checkpoint: CheckpointRef, trusted: Entry | None = None) -> RebuiltState:
    """Replay the slices up to a checkpoint.

    Args:
        trusted: Slice whose checkpoint the replay starts from. Default: start with the first slice of the chain.

    Raises:
        SliceOrderError: A slice is stale, or ran under other settings.
        InputError: A version that a slice has read is gone.
    """
    resolve_session(checkpoint.spark)
    start = trusted or find_start_of_chain(checkpoint.ledger, checkpoint.entry)
    assert start, "the slice itself is a start"
    first = start.number + 1 if trusted else start.number
    chain = [checkpoint.ledger.entries[number] for number in range(first, checkpoint.entry.number + 1)]
    _require_rebuildable(checkpoint, chain)
    if trusted and _has_processed(chain[0], _get_erasure_predicates(trusted)):
        raise SliceOrderError(
            f"--from {checkpoint.grid.label(first)}: rows of that state were erased after later slices had processed "
            "them. Omit --from, or name another slice."
        )
    fingerprints: dict[int, str] = {}
    carried = checkpoint.read_rows(trusted) if trusted else None
    watermarks = trusted.watermarks if trusted else Watermarks()
    jobs = list(split_into_jobs(chain))
    for job in jobs:
        with _explain_missing_version(checkpoint, job):
            carried, join, job_fingerprints, watermarks = _replay_job(checkpoint, job, carried, watermarks)
        fingerprints |= job_fingerprints
    assert carried is not None, "there is at least one slice"
    return RebuiltState(
        drop_excluded_rows(carried, predicates_from_json(_get_erasure_predicates(checkpoint.entry))),
        join,
        fingerprints,
        len(jobs),
    )


def _replay_job(
    checkpoint: CheckpointRef, job: list[Entry], carried: DataFrame | None, before: Watermarks
) -> tuple[DataFrame, Join, dict[int, str], Watermarks]:
    """Return the rows in the buffers after a job, its join, the fingerprint after each slice, and the watermarks."""
    pipeline, grid, spark = checkpoint.pipeline, checkpoint.grid, checkpoint.spark
    slices, last = range(job[0].number, job[-1].number + 1), job[-1]
    # Rows erased since then took part in the run, so they are removed from its results instead of its inputs.
    excluded = predicates_from_json(last.excluded_predicates)
    inputs = JobInputs.open(spark, pipeline, checkpoint.lake, checkpoint.ledger, job)
    join = create_join(pipeline, spark, get_schemas(inputs.stored))
    rows = inputs.read().withColumn("lane", F.lit(0))
    drain = last.number if last.drained else None
    lane = repeat_drains(create_lane(pipeline, before, drain, get_query_trace(inputs.stored)), job)
    carried_in = drop_excluded_rows(carried, excluded).withColumn("lane", F.lit(0)) if carried is not None else None
    is_tiny = is_tiny_job(sum(sum(entry.read) for entry in job), checkpoint.ledger.entry(job[0].number - 1))
    with tuned_for_tiny_queries(spark) if is_tiny else nullcontext():
        result = replay(rows, carried_in, [lane], join, Buckets.create(grid, slices, join.buckets_per_slice))
        carried = result.carried.persist()
        ends = result.timelines[0].end_watermarks
        fingerprints: dict[int, str] = {}
        for erased in sorted({_get_erasure_predicates(entry) for entry in job}):
            remaining = with_slice_numbers(
                to_table_rows(drop_excluded_rows(carried, predicates_from_json(erased)), slices, grid, join), grid
            )
            erased_counts = {entry.number: count_erased_carried_rows(entry) for entry in job}
            computed = compute_fingerprints(state_parts(remaining, join).toPandas(), ends, erased_counts)
            fingerprints |= {
                entry.number: computed[entry.number] for entry in job if _get_erasure_predicates(entry) == erased
            }
        # Not `persist`: the plan of the next job would contain this one.
        buffered = materialize(filter_buffered_rows(carried.drop("lane"), last.number), eager=True)
    carried.unpersist()
    return buffered, join, fingerprints, ends[last.number]


def _get_erasure_predicates(entry: Entry) -> str:
    """Return the predicates of erasures from the state after a slice as JSON; empty without any."""
    erasures = [
        record.predicates
        for record in parse_erasure_records(entry.erasures)
        if record.slice_row_counts.get("checkpoint")
    ]
    return predicates_to_json({side: [where[side] for where in erasures if side in where] for side in SIDES}) or ""


def _has_processed(entry: Entry, erased: str) -> bool:
    """Return True if a slice ran before some rows of its initial state were erased."""
    excluded = predicates_from_json(entry.excluded_predicates)
    return any(
        predicate not in excluded.get(side, ())
        for side, predicates in predicates_from_json(erased).items()
        for predicate in predicates
    )


def _require_rebuildable(checkpoint: CheckpointRef, chain: list[Entry]) -> None:
    command = f"tidemark run {format_cli_arguments(checkpoint.pipeline)}"
    label = checkpoint.grid.label
    if stale_slices := sorted(find_stale_slices(checkpoint.ledger).keys() & {entry.number for entry in chain}):
        raise SliceOrderError(
            f"slice {label(stale_slices[0])} is stale: slices before it were recomputed, so the state after it cannot "
            f"be rebuilt. Run {command} first."
        )
    if mismatch := next(
        find_slices_with_other_settings(chain, serialize_settings(checkpoint.pipeline), checkpoint.grid), None
    ):
        raise SliceOrderError(
            f"slice {label(mismatch[0])} ran under other settings than the pipeline file has now. Restore them to "
            "rebuild its state."
        )


@contextmanager
def _explain_missing_version(checkpoint: CheckpointRef, job: list[Entry]) -> Iterator[None]:
    """Replace the errors of missing files by an `InputError`."""
    try:
        with warnings.catch_warnings():
            # The warning repeats the stack of the error.
            warnings.filterwarnings("ignore", "toPandas attempted Arrow optimization")
            yield
    except (PySparkException, Py4JJavaError) as error:
        if not is_missing_file_error(error):
            raise
        left, right = job[0].versions
        label = checkpoint.grid.label
        advice = "Restore the version, or name another state with --at."
        if job[-1].number < checkpoint.entry.number:
            advice += (
                f" tidemark checkpoint verify {format_cli_arguments(checkpoint.pipeline)} can also start from a later "
                f"checkpoint, with --from {label(job[-1].number + 1)} or later."
            )
        raise InputError(
            f"version {left} of {checkpoint.pipeline.left.table} or {right} of {checkpoint.pipeline.right.table}, "
            f"which slice {label(job[0].number)} has read, is gone (VACUUM, or an expired log). {advice}"
        ) from None
